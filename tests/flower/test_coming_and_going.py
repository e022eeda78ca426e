"""Clients that are late, go, come back, forget or refuse: rounds go on, and nothing waits for ever."""

import json
import logging
import threading
import time
from dataclasses import replace

import pytest
import torch
from flwr.app import ConfigRecord, RecordDict

from cofair.errors import RunError, UsageError
from cofair.flower import messages
from cofair.flower.client import client_app
from cofair.flower.flower_settings import ServerSettings, server_settings
from cofair.flower.local_training import read_work
from cofair.storage.folder import RunFolder
from tests.flower.federations import SOON, experiment, grid_of, mlp, node_of, served, shares, simulated
from tests.flower.test_bad_uploads import empty, tampering


@pytest.fixture(autouse=True)
def log(caplog):
    caplog.set_level(logging.INFO, logger="flwr.cofair")
    logging.getLogger("flwr").propagate = True
    return caplog


def while_round(grid, client, happens):
    """Let something happen whenever a client is asked to train: `happens(round, node)` may take it away."""
    node = node_of(grid, client)
    honest = node.app

    def app(message, context):
        asked = messages.config_of(message)
        if message.metadata.message_type == "train" and asked["memory"] != "none":
            happens(asked["round"], node)
        return honest(message, context)

    node.app = app
    return grid


def arriving(chosen, client, before, model=mlp):
    """Return a grid on which a client appears while the round before goes on."""
    grid = grid_of(chosen, model=model)
    node_of(grid, client).online = False

    def arrive(t, _):
        node_of(grid, client).online = t >= before - 1

    for other in set(range(4)) - {client}:
        while_round(grid, other, arrive)
    return grid


@pytest.mark.parametrize("name", ["cgsv", "fedrac"])
def test_an_absent_client_is_missed_only_while_it_is_absent(name):
    chosen = experiment(name, last=5)
    grid = grid_of(chosen)

    def leave(t, _):
        node_of(grid, 3).online = t not in (2, 3)

    while_round(grid, 0, leave)  # client 0 is asked first: client 3 leaves while round 2 goes on, returns during 4
    result = served(chosen, grid)
    records, _ = simulated(chosen, present=lambda t, i: i != 3 or t not in (2, 3, 4))
    for one, other in zip(result.history, records, strict=True):
        assert one.accuracies == pytest.approx(other.accuracies)
        assert one.reputation == pytest.approx(other.reputation)


def test_a_client_that_lost_its_memory_is_sent_its_model_whole_once(log):
    chosen = experiment("cgsv", last=4)
    grid = grid_of(chosen)
    grid.watch = True

    def forget(t, node):
        if t == 3:
            node.context.state = RecordDict()

    result = served(chosen, while_round(grid, 1, forget))
    assert [r.accuracies for r in result.history] == [r.accuracies for r in simulated(chosen)[0]]
    sent = [m for m in grid.seen[::2] if m.metadata.dst_node_id == 101 and m.metadata.group_id == "3"]
    assert [bool(messages.config_of(m)["base"]) for m in sent] == [True, False]
    whole = sum(parameter.numel() for parameter in mlp().parameters())
    assert sent[1].content.array_records["arrays"]["values"].shape == (whole,)


def test_who_does_not_allow_what_is_asked_is_absent_and_says_so(log):
    chosen = experiment("q-ffl", last=2)
    grid = grid_of(chosen)
    node_of(grid, 1).context.node_config["allow"] = "size"
    wait = replace(SOON, minimum=3)
    result = served(chosen, grid, wait)
    assert result.names == ("0", "2", "3")
    assert "Refused: this participant does not allow 'loss_before'." in log.messages
    assert any("does not take part: this participant does not allow 'loss_before'" in line for line in log.messages)


def test_a_server_that_asks_for_more_than_it_declared_gets_nothing(monkeypatch):
    monkeypatch.setattr("cofair.flower.federation_server.asked_by", lambda _: ("size",))
    chosen = experiment("q-ffl", last=2)
    grid = grid_of(chosen, node={"allow": "size"})
    with pytest.raises(RunError, match="does not allow 'loss_before'"):
        served(chosen, grid)


def test_a_run_does_not_start_without_those_that_it_needs():
    chosen = experiment(last=2)
    grid = grid_of(chosen)
    node_of(grid, 0).online = False
    began = time.monotonic()
    with pytest.raises(RunError, match=r"3 participants joined within 0\.2 s, of 4"):
        served(chosen, grid)
    assert time.monotonic() - began < 10
    assert served(chosen, grid, replace(SOON, minimum=2)).names == ("1", "2", "3")


def test_a_run_ends_in_a_sentence_when_nobody_answers_any_more():
    chosen = experiment(last=3)
    grid = grid_of(chosen)

    def everybody_leaves(t, _):
        for node in grid.nodes.values():
            node.online = t < 2

    while_round(grid, 0, everybody_leaves)

    with pytest.raises(RunError, match="Nobody answered in round 3, 2 times"):
        served(chosen, grid)


def test_where_nobody_goes_on_training_alone_the_best_so_far_counts():
    length = {"epochs": "none", "stage": 8, "patience": 2}
    chosen = experiment("fedavg", last=1, contribution={**length, "steps": 24})
    grid = grid_of(chosen)
    for node in grid.nodes.values():

        def app(message, context, honest=node.app):
            asked = messages.config_of(message)
            later = message.metadata.message_type == "train" and read_work(asked["work"]).phase.stage
            return None if later else honest(message, context)

        node.app = app
    _, one_stage = simulated(experiment("fedavg", last=1, contribution={**length, "steps": 8}))
    assert served(chosen, grid).contributions == pytest.approx(one_stage.server.contributions.tolist())


def test_two_participants_of_one_name_are_not_both_taken(log):
    chosen = experiment(last=2)
    grid = grid_of(chosen)
    node_of(grid, 3).context.node_config["name"] = "0"
    assert served(chosen, grid, replace(SOON, minimum=3)).names == ("0", "1", "2")
    assert any("there is already a participant '0'" in line for line in log.messages)


def test_another_model_or_other_data_does_not_join(log):
    chosen = experiment(last=2)
    grid = grid_of(chosen)
    clients, _, _ = shares()

    def wider():
        return torch.nn.Sequential(torch.nn.Linear(6, 9), torch.nn.ReLU(), torch.nn.Linear(9, 3))

    node_of(grid, 0).app = client_app(chosen, wider, lambda _: clients[0])
    node_of(grid, 1).app = client_app(chosen, mlp, lambda _: (clients[1][0], clients[1][1] + 77))
    assert served(chosen, grid, replace(SOON, minimum=2)).names == ("2", "3")
    refusals = "\n".join(line for line in log.messages if "does not take part" in line)
    assert "its model is not the server's" in refusals
    assert "its own log says why" in refusals
    assert "79" not in refusals  # a label stays where it is
    assert any("labels" in line for line in log.messages)  # its own log says why


def test_a_newcomer_waits_for_the_next_run_where_the_door_is_closed(log):
    chosen = experiment("fedavg", last=4)
    grid = arriving(chosen, 3, before=3)
    result = served(chosen, grid, replace(SOON, clients=3, newcomers=False))
    assert result.names == ("0", "1", "2")
    assert sum("takes part from the next run on" in line for line in log.messages) == 1


def test_an_empty_client_is_never_asked():
    chosen = experiment("fedavg", last=2)
    clients, _, _ = shares()
    grid = grid_of(chosen)
    nothing = (clients[0][0][:0], clients[0][1][:0])
    node_of(grid, 0).app = client_app(chosen, mlp, lambda _: nothing)
    result = served(chosen, grid)
    assert result.sizes == (0, 30, 70, 20)


@pytest.mark.parametrize("name", ["fedrac", "cgsv", "fedavg"])
def test_a_restarted_server_goes_on_where_it_was(name, tmp_path):
    chosen = experiment(name, last=5, run={"checkpoint_every": 1})
    grid = grid_of(chosen)

    class KilledError(Exception):
        pass

    def listener(_method, _seed, record):
        if record is not None and record.round == 3:
            raise KilledError

    with pytest.raises(KilledError):
        served(chosen, grid, folder=RunFolder(tmp_path / "run"), listener=listener)
    for node in grid.nodes.values():
        node.context.state = RecordDict()  # a new run has a new context
    result = served(chosen, grid, folder=RunFolder(tmp_path / "run", resume=True))
    whole = served(chosen, grid_of(chosen))
    assert [r.accuracies for r in result.history] == [r.accuracies for r in whole.history]
    assert [r.reputation for r in result.history] == [r.reputation for r in whole.history]


@pytest.mark.parametrize("how", ["absent", "refused"])
@pytest.mark.parametrize(
    "method", [{"name": "fedsac"}, {"name": "contract", "hands": "submodels"}, {"name": "contract"}]
)
def test_who_is_measured_and_then_contributes_in_two_of_fifteen_rounds_is_paid_for_little(method, how):
    """The two are the last ones: to be there when rewards are handed out is not to have taken part."""

    def rewarded(**participation):
        chosen = experiment(last=15, participation=participation, method=method)
        grid = grid_of(chosen)
        if how == "absent":

            def leave(t, _):
                node_of(grid, 2).online = t > 13

            while_round(grid, 0, leave)
        else:
            tampering(grid, lambda reply, message: reply if rounds_of(message) > 13 else empty(reply, message), since=1)
        result = served(chosen, grid)
        return result.history[-1].accuracies[2], result.contributions[2]

    kept, brought = rewarded(fade=0.0)
    assert kept > 0.8 * brought, "unless its standing fades"
    assert rewarded()[0] < 0.5 * brought  # three classes: a third is chance


def rounds_of(message):
    asked = messages.config_of(message)
    return asked["round"] if asked["memory"] != "none" else 99  # it trains alone as it should


def test_who_is_silent_holds_up_one_training_of_a_round_and_not_the_next(log):
    chosen = experiment("fedavg", last=1, contribution={"measure": "size"})  # two trainings: the second is personal
    grid = grid_of(chosen)
    honest, asked = node_of(grid, 3).app, []

    def silent(message, context):
        if message.metadata.message_type == "train":
            asked.append(messages.config_of(message)["work"])
            return None
        return honest(message, context)

    node_of(grid, 3).app = silent
    began = time.monotonic()
    served(chosen, grid, replace(SOON, round_seconds=2.0))
    assert time.monotonic() - began < 2 * 2.0
    assert len(asked) == 1


def test_a_participant_trains_on_no_smaller_batches_than_were_agreed_on():
    """Of a batch of one, an update can be the sample itself."""
    chosen = experiment("cgsv", last=2)
    grid = grid_of(chosen)
    node, honest = node_of(grid, 1), node_of(grid, 1).app

    def asked(message, context):
        asked = messages.config_of(message)
        if message.metadata.message_type == "train" and asked["memory"] != "none":
            work = json.loads(asked["work"]) | {"batch_size": 1}
            message.content["config"] = ConfigRecord({**asked, "work": json.dumps(work)})
        return honest(message, context)

    node.app = asked
    refused = served(chosen, grid).history[-1].refused
    assert refused == {"1": "batches of 1 are asked for, where 8 were agreed on"}


def test_a_round_waits_for_somebody_while_the_network_is_away():
    chosen = experiment("cgsv", last=3)
    grid = grid_of(chosen)

    def back():
        time.sleep(1.0)
        for node in grid.nodes.values():
            node.online = True

    def away(t, _):
        if t == 2:
            for node in grid.nodes.values():
                node.online = False
            threading.Thread(target=back, daemon=True).start()

    while_round(grid, 3, away)  # client 3 is asked last: all answer round 2, and nobody is there when round 3 begins
    result = served(chosen, grid, replace(SOON, round_seconds=3.0, tries=1))
    assert [record.round for record in result.history] == [1, 2, 3]


def test_what_only_the_server_knows_is_read_from_its_own_file_and_checked(tmp_path, monkeypatch):
    assert server_settings({}) == ServerSettings()  # Flower's simulation has no organiser's folder
    monkeypatch.setenv("COFAIR_ORGANISER", str(tmp_path))
    (tmp_path / "server.toml").write_text('round_seconds = 30\nclients = 3\nout = "x"\n')
    known = server_settings({})
    assert (known.clients, known.round_seconds, known.out_folder, known.data_file) == (3, 30.0, tmp_path / "x", None)
    (tmp_path / "second.toml").write_text("round_seconds = 0\n")
    with pytest.raises(UsageError, match="round_seconds must be above 0"):
        server_settings({"settings": "second"})
    with pytest.raises(UsageError, match=r"Cannot read the server's settings .*third\.toml"):
        server_settings({"settings": "third"})
    with pytest.raises(UsageError, match="name of a file"):
        server_settings({"settings": "../server"})
