"""What travels: nobody receives a parameter that it has not earned, and bytes are those of what is kept."""

import json

import pytest
import torch
from flwr.app import Message
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

from cofair.config.experiment import Experiment
from cofair.engine.phases import ALONE, PERSONALISE, Phase
from cofair.engine.work import Work
from cofair.flower import messages, wire
from cofair.flower.local_training import Local, read_work, work_text
from cofair.models import build
from tests.flower.federations import CLASSES, experiment, grid_of, served, shares


def wide():
    return build("mlp", (6,), CLASSES, hidden=(200, 200))


def trainings(grid, client):
    """Return the messages to a client and its answers, those of trainings."""
    pairs = list(zip(grid.seen[::2], grid.seen[1::2], strict=True))
    return [(m, r) for m, r in pairs if m.metadata.dst_node_id == 100 + client and m.metadata.message_type == "train"]


def on_the_wire(message: Message) -> int:
    return sum(len(part.deflate()) for part in get_all_nested_objects(message).values())


def test_a_client_never_receives_a_parameter_that_it_has_not_earned():
    chosen = experiment("fedrac", last=6, run={"precision": "float32"}, method={"pack": 4})
    grid = grid_of(chosen, model=wide)
    grid.watch = True
    served(chosen, grid, model=wide)
    clients, _, _ = shares()
    local = Local.of(Experiment.from_dict({}), "0", clients[0], CLASSES, wide)
    neurons, size = local.problem.neurons, local.problem.layout.size
    partial = 0
    for client in range(4):
        for message, reply in trainings(grid, client):
            arrays = {name: messages.numbers(array) for name, array in message.content.array_records["arrays"].items()}
            if "neurons" not in arrays:  # it trains alone
                assert messages.config_of(message)["memory"] == "none"
                continue
            mask = wire.from_bits(arrays.pop("neurons"), neurons.count)
            kept = neurons.parameter_mask(mask[None])[0]
            earned = int(kept.sum())
            partial += earned < size
            assert set(arrays) <= {"values", "bitmap", "indices"}
            assert len(arrays["values"]) <= earned
            marked = torch.full((size,), torch.nan)
            received = wire.unpack(arrays, marked, kept)
            assert bool(received[~kept].isnan().all())
            uploaded = {name: messages.numbers(array) for name, array in reply.content.array_records["arrays"].items()}
            assert bool((wire.unpack(uploaded, torch.zeros(size), kept)[~kept] == 0).all())
            for sent in (message, reply):
                allowed = 1.05 * 4 * earned + size / 8
                assert on_the_wire(sent) <= allowed + 2000  # two thousand bytes of settings and headers
                if earned > size / 10:
                    assert messages.payload(sent.content) <= allowed
    assert partial > 4


def test_the_bytes_of_a_sparsified_reward_are_those_of_its_entries():
    chosen = experiment("cgsv", last=5, run={"precision": "float32"}, method={"beta": 1.0})
    grid = grid_of(chosen, model=wide)
    grid.watch = True
    result = served(chosen, grid, model=wide)
    D = sum(parameter.numel() for parameter in wide().parameters())
    for client in range(4):
        sent = [message for message, _ in trainings(grid, client)]
        total = sum(messages.payload(message.content) for message in sent[1:])
        entries = result.history[-1].download[client] * 5 * D
        assert total <= 1.05 * 4 * entries + 5 * (D / 8 + 256)


def test_what_is_counted_is_what_travels(tmp_path):
    import json

    from cofair.storage.folder import RunFolder

    chosen = experiment("fedrac", last=3)
    grid = grid_of(chosen)
    grid.watch = True
    served(chosen, grid, folder=RunFolder(tmp_path / "run"))
    counted = json.loads((tmp_path / "run" / "traffic.json").read_text())
    for client, row in enumerate(counted):
        pairs = trainings(grid, client)
        assert row["client"] == str(client)
        assert row["bytes_down"] == sum(messages.payload(message.content) for message, _ in pairs)
        assert row["bytes_up"] == sum(messages.payload(reply.content) for _, reply in pairs)


@pytest.mark.parametrize("share", [0.0, 0.001, 0.02, 0.5, 1.0])
def test_values_travel_with_what_is_smaller(share):
    random = torch.Generator().manual_seed(1)
    row = torch.randn(8000, generator=random)
    scope = torch.rand(8000, generator=random) < 0.7
    chosen = scope & (torch.rand(8000, generator=random) < share)
    arrays = wire.pack(row, chosen, scope)
    base = torch.randn(8000, generator=random)
    assert torch.equal(wire.unpack(arrays, base, scope), torch.where(chosen, row, base))
    extra = sum(array.nbytes for name, array in arrays.items() if name != "values")
    assert extra <= min(4 * int(chosen.sum()), (int(scope.sum()) + 7) // 8)


def test_a_message_tells_nothing_of_the_others():
    """No count grows with what others are sent, and nobody's name, number or path is in it."""
    chosen = experiment("fedrac", last=3)
    grid = grid_of(chosen)
    grid.watch = True
    served(chosen, grid)
    versions = []
    for message, _ in trainings(grid, 1):
        asked = messages.config_of(message)
        versions.append(asked["version"])
        assert set(asked) == {"round", "work", "model", "base", "version", "choices", "memory", "ledger", "classes"}
    assert len(set(versions)) == len(versions)
    assert all(len(version) == 16 and int(version, 16) >= 0 for version in versions)


WORK = Work(
    steps=None, epochs=2, clip=0.5, phase=ALONE.again_in(7), epochs_a_round=3, statistics=("batch_losses_before",),
    looks=2,
)  # fmt: skip


def test_work_arrives_as_it_was_sent():
    for work in (Work(), WORK, WORK.times(3, PERSONALISE), Work(phase=Phase("finetune", uploads=False))):
        assert read_work(work_text(work)) == work


@pytest.mark.parametrize(
    "change",
    [
        {"phase": "train"}, {"phase": {"name": "train"}}, {"phase": {**vars(ALONE), "more": 1}}, {"lr": "0.1"},
        {"phase": {**vars(ALONE), "repeated_in": "7"}}, {"batch_size": 8.5}, {"statistics": ["everything"]},
        {"optimiser": "unknown"}, {"more": 1}, {"steps": 3}, {"lr": float("nan")}, {"statistics": "loss_before"},
    ],
)  # fmt: skip
def test_work_that_is_none_is_refused(change):
    asked = json.loads(work_text(WORK))
    with pytest.raises(wire.RefusedError, match="cannot be read here, install the same versions"):
        read_work(json.dumps(asked | change))
    with pytest.raises(wire.RefusedError, match="these are not the fields of a Work"):
        read_work(json.dumps({name: value for name, value in asked.items() if name != "lr"}))


@pytest.mark.parametrize("text", ["", "[]", "null", "{", "[" * 100_000, '{"steps": 1}'])
def test_text_that_is_no_work_is_refused(text):
    with pytest.raises(wire.RefusedError, match="cannot be read here"):
        read_work(text)
