"""The same experiment gives the same through the vectorised engine and through messages."""

import pytest
import torch
from flwr.app import ArrayRecord

from cofair import methods
from cofair.flower.asks import asked_by
from cofair.flower.client import client_app
from cofair.models import build
from tests.flower.federations import experiment, grid_of, mlp, served, shares, simulated

methods.load_installed()
every_method = pytest.mark.parametrize("name", methods.names())


def same(result, records, exactly=True):
    assert len(result.history) == len(records)
    for one, other in zip(result.history, records, strict=True):
        assert one.accuracies == pytest.approx(other.accuracies, abs=1e-9 if exactly else 0.03)
        assert one.download == pytest.approx(other.download)
        assert (one.reputation is None) == (other.reputation is None)
        if one.reputation is not None:
            assert one.reputation == pytest.approx(other.reputation, abs=1e-9 if exactly else 1e-4)


@every_method
def test_rewards_reputations_and_accuracies_are_those_of_the_vectorised_engine(name):
    chosen = experiment(name)
    grid = grid_of(chosen, node={"allow": " ".join(asked_by(chosen))})
    grid.watch = True
    result = served(chosen, grid)
    records, prepared = simulated(chosen)
    same(result, records)
    assert result.contributions == pytest.approx(tuple(prepared.server.contributions.tolist()))
    nothing_is_told_beside_what_is_declared(grid, asked_by(chosen))


def nothing_is_told_beside_what_is_declared(grid, asked):
    declared = {"values", "bitmap", "indices", *asked}
    for reply in grid.seen[1::2]:
        assert set(reply.content.array_records.get("arrays", ArrayRecord())) <= declared
        names = set(reply.content.config_records["config"])
        assert names <= {"status", "name", "size", "class_counts", "round", "phase", "model", "version"}
        assert "class_counts" not in names or "class_counts" in declared


@pytest.mark.parametrize("name", ["fedavg", "cgsv"])
def test_the_memory_of_an_optimiser_stays_with_its_client(name):
    chosen = experiment(name, last=3, training={"optimiser": "adam", "lr": 0.01})
    same(served(chosen, grid_of(chosen)), simulated(chosen)[0])


@pytest.mark.parametrize(
    "tables",
    [
        {"training": {"optimiser": "adam", "lr": 0.01}},
        {"training": {"optimiser": "adamw", "lr": 0.01}},
        {"training": {"optimiser": "momentum", "lr": 0.01}},
        {"run": {"precision": "float32"}},
        {"training": {"epochs": 2, "steps": "none", "decay": 0.9, "decay_every": "epoch", "clip": 0.5}},
        {"contribution": {"measure": "entropy"}},
        {"contribution": {"measure": "cosine", "on": "validation"}},
        {"contribution": {"every": 2}},
        {"contribution": {"every": 2, "epochs": "none", "steps": 30, "stage": 8, "patience": 1}},
        {"participation": {"fraction": 0.5}},
    ],
    ids=[
        "adam",
        "adamw",
        "momentum",
        "float32",
        "epochs",
        "entropy",
        "cosine",
        "measured anew",
        "in stages",
        "half of the clients",
    ],
)
def test_settings_mean_the_same(tables):
    chosen = experiment("fedrac", **tables)
    same(served(chosen, grid_of(chosen)), simulated(chosen)[0], tables.get("run") is None)


def test_a_convolution_with_groups_is_trained_alike():
    def cnn():
        return torch.nn.Sequential(torch.nn.Unflatten(1, (1, 2, 3)), torch.nn.Conv2d(1, 4, 2), torch.nn.ReLU(),
                                   torch.nn.Flatten(), torch.nn.Linear(8, 5), torch.nn.Tanh(),
                                   torch.nn.Linear(5, 3))  # fmt: skip

    chosen = experiment("fedsac")
    same(served(chosen, grid_of(chosen, model=cnn), model=cnn), simulated(chosen, model=cnn)[0])


def test_what_a_method_asks_for_is_known_before_anybody_joins():
    assert asked_by(experiment("fedrac")) == ("size",)
    assert asked_by(experiment("q-ffl")) == ("size", "loss_before")
    assert asked_by(experiment("fedave")) == ("size", "batch_losses_before")
    assert asked_by(experiment("cffl", method={"share": "classes"})) == ("size", "class_counts")
    assert asked_by(experiment(contribution={"measure": "diversity"})) == ("size", "class_counts")


# CFFL is not among them: a client's model there holds its own update as the server scaled it, which travels whole
@pytest.mark.parametrize("name", ["fedavg", "rr", "iafl", "cgsv", "fedave", "fjord", "fedrac"])
def test_downloads_are_what_the_history_says(name):
    def wide():
        return build("mlp", (6,), 3, hidden=(150, 100))

    chosen = experiment(name, run={"precision": "float32"})
    grid = grid_of(chosen, model=wide)
    grid.watch = True
    result = served(chosen, grid, model=wide)
    D = sum(parameter.numel() for parameter in wide().parameters())
    for client in range(4):
        sent = [m for m in grid.seen[::2] if m.metadata.dst_node_id == 100 + client and m.metadata.group_id]
        bytes_down = sum(len(array.data) for m in sent[1:] for array in m.content.array_records["arrays"].values())
        # what came with the training alone, the whole model, is not sent again
        counted = result.history[-1].download[client] * 4 * 4 * D
        assert bytes_down <= 1.05 * counted + len(sent) * (D / 8 + 3 * 128 + 256), name


def test_a_data_loader_is_read_whole():
    chosen = experiment(last=2)
    clients, _, _ = shares()
    grid = grid_of(chosen)

    def loader(context):
        x, y = clients[context.node_config["partition-id"]]
        return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=7)

    app = client_app(chosen, mlp, loader)
    for node in grid.nodes.values():
        node.app = app
    same(served(chosen, grid), simulated(chosen)[0])
