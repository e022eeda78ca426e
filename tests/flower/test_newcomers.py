"""Clients that come while a run goes on: they are measured, take the last places, and get what they have earned."""

import json
import logging
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from flwr.app import Message, RecordDict

from cofair import methods
from cofair.flower import messages
from cofair.flower.grid_engine import GridEngine
from cofair.models import build
from cofair.report.page import write, write_statement
from cofair.report.reported_runs import read_methods, read_run
from cofair.storage import ledger
from cofair.storage.folder import RunFolder
from tests.flower.federations import CLASSES, SOON, experiment, grid_of, node_of, served, simulated
from tests.flower.test_coming_and_going import arriving, while_round

THREE = replace(SOON, clients=3, round_seconds=4.0)  # of which a newcomer has a quarter to train alone


@pytest.fixture(autouse=True)
def log(caplog):
    caplog.set_level(logging.INFO, logger="flwr.cofair")
    logging.getLogger("flwr").propagate = True
    return caplog


@pytest.mark.parametrize("name", methods.names())
def test_every_method_takes_a_newcomer_in(name):
    chosen = experiment(name, last=5)
    result = served(chosen, arriving(chosen, 3, before=3), THREE)
    if name == "standalone":  # it has one round
        assert result.names == ("0", "1", "2")
        return
    assert result.names == ("0", "1", "2", "3")
    assert result.sizes == (8, 30, 70, 20)
    _, prepared = simulated(chosen)
    assert result.contributions == pytest.approx(prepared.server.contributions.tolist())  # measured as at the start
    before, after = result.history[1], result.history[2]
    assert torch.tensor(before.accuracies).isnan().tolist() == [False, False, False, True]
    assert torch.isfinite(torch.tensor(after.accuracies)).all()
    assert len(list(result.rewards)) == 4


def test_a_newcomer_trains_alone_in_stages_and_again_with_the_others():
    length = {"epochs": "none", "steps": 30, "stage": 8, "patience": 1, "every": 3}
    chosen = experiment("fedrac", last=5, contribution=length)
    result = served(chosen, arriving(chosen, 3, before=3), THREE)
    records, prepared = simulated(experiment("fedrac", last=5, contribution=length))
    assert result.contributions == pytest.approx(prepared.server.contributions.tolist())
    assert result.history[-1].contributions == pytest.approx(records[-1].contributions)
    assert result.history[-1].contributions != pytest.approx(result.contributions)


@pytest.mark.parametrize(
    ("name", "settings"),
    # a trailing model is brought up to date at once for a newcomer, in turns for one that was expected
    [("fedavg", {}), ("fedsac", {}), ("fedrac", {}), ("contract", {"hands": "submodels"}), ("heterofl", {})],
)
def test_a_newcomer_stands_as_one_that_was_expected(name, settings):
    """In simulation it is a client that joins late, whom the server knows from the start."""
    chosen = experiment(name, last=6, method=settings)
    late = experiment(name, last=6, method=settings, participation={"join": [1, 1, 1, 3]})
    records, prepared = simulated(late)
    brought = prepared.server.contributions
    assert brought[3] < brought.max()  # the best of all decides what the others deserve
    result = served(chosen, arriving(chosen, 3, before=3), THREE)
    for one, other in zip(result.history[2:], records[2:], strict=True):
        assert one.accuracies == pytest.approx(other.accuracies)
        if one.reputation is not None:
            assert one.reputation == pytest.approx(other.reputation)


@pytest.mark.parametrize("name", ["fedsac", "fedrac", "contract", "heterofl"])
def test_a_newcomer_is_not_given_neurons_that_it_has_not_earned(name):
    chosen = experiment(name, last=5, method={"hands": "submodels"} if name == "contract" else {})
    grid = arriving(chosen, 3, before=3)
    grid.watch = True
    result = served(chosen, grid, THREE)
    best = max(range(4), key=result.contributions.__getitem__)
    assert best != 3

    def neurons(client, t):
        sent = [
            message for message in grid.seen
            if message.metadata.dst_node_id == 100 + client and message.metadata.message_type == "train"
            and messages.config_of(message)["memory"] != "none" and messages.config_of(message)["round"] == t
        ]  # fmt: skip
        held = [message.content.array_records["arrays"]["neurons"] for message in sent]
        return [sum(byte.bit_count() for byte in array.data) for array in held]

    assert neurons(3, 3)[0] < neurons(best, 3)[0]


def test_a_newcomer_is_given_a_model_as_accurate_as_it_has_earned(monkeypatch):
    chosen, handed, ask = experiment("contract", last=9), {}, GridEngine.ask

    def wide():  # with few units there are few models between the first and the last
        return build("mlp", (6,), CLASSES, hidden=(64, 32))

    def asking(engine, rewards, asked, t, *given):
        handed[t] = rewards.parameters
        return ask(engine, rewards, asked, t, *given)

    monkeypatch.setattr(GridEngine, "ask", asking)
    served(chosen, arriving(chosen, 3, before=8, model=wide), THREE, model=wide)
    _, prepared = simulated(chosen, model=wide)
    best, own = prepared.server.validation.score(handed[8]).metric[[1, 3]].tolist()
    promised = chosen.method.mechanism.promised(prepared.server, best)[3]
    assert promised - 0.05 < own <= promised < best - 0.1


def test_the_folder_tells_of_a_newcomer(tmp_path):
    chosen = experiment("fedrac", last=5)
    served(chosen, arriving(chosen, 3, before=3), THREE, folder=RunFolder(tmp_path / "run"))
    run = read_run(tmp_path / "run")
    assert run.outcome.names == ("0", "1", "2", "3")
    assert run.facts["joined"] == {"3": 3}
    entries = ledger.verified_entries(tmp_path / "run" / "ledger.jsonl")
    (joined,) = [entry for entry in entries if "joined" in entry]
    assert joined["joined"]["clients"] == ["3"]
    assert joined["joined"]["contributions"] == [run.outcome.contributions[3]]
    assert len(entries[-1]["rewards"]) == 4
    traffic = json.loads((tmp_path / "run" / "traffic.json").read_text())
    assert [row["client"] for row in traffic] == ["0", "1", "2", "3"]
    assert all(row["bytes_down"] and row["bytes_up"] for row in traffic)
    page = write(read_methods([tmp_path / "run"]), tmp_path / "report.html").read_text()
    assert "It joined before round 3." in page
    assert "were sent to it, and" in page
    for client in ("0", "3"):
        write_statement(read_methods([tmp_path / "run"])[0], client, tmp_path / f"{client}.html")


@pytest.mark.parametrize("name", ["fedrac", "cgsv", "rffl"])
@pytest.mark.parametrize("killed", [3, 4])  # after the checkpoint before it came, and after the one with it
def test_a_restarted_server_knows_newcomers(name, killed, tmp_path):
    chosen = experiment(name, last=5, run={"checkpoint_every": 1})
    grid = arriving(chosen, 3, before=3)

    class KilledError(Exception):
        pass

    def listener(_method, _seed, record):
        if record is not None and record.round == killed:
            raise KilledError

    with pytest.raises(KilledError):
        served(chosen, grid, THREE, folder=RunFolder(tmp_path / "run"), listener=listener)
    for node in grid.nodes.values():
        node.context.state = RecordDict()
    closed = replace(THREE, newcomers=killed == 3)  # who has come before stays, whether or not others may come
    result = served(chosen, grid, closed, folder=RunFolder(tmp_path / "run", resume=True))
    whole = served(chosen, arriving(chosen, 3, before=3), THREE)
    assert result.names == whole.names
    assert result.contributions == whole.contributions
    np.testing.assert_allclose([r.accuracies for r in result.history], [r.accuracies for r in whole.history])
    run = read_run(tmp_path / "run")
    assert run.facts["joined"] == {"3": 3}
    ledger.verified_entries(tmp_path / "run" / "ledger.jsonl")


def test_a_newcomer_that_cannot_be_measured_does_not_end_the_run(log):
    chosen = experiment("fedrac", last=5)
    grid = arriving(chosen, 3, before=2)
    honest = node_of(grid, 3).app

    trained = []

    def broken(message, context):
        if message.metadata.message_type == "train":
            trained.append(message)
            return Message(messages.content({"status": "failed"}), reply_to=message)
        return honest(message, context)

    node_of(grid, 3).app = broken
    result = served(chosen, grid, THREE)
    assert result.names == ("0", "1", "2")
    assert [r.round for r in result.history] == [1, 2, 3, 4, 5]
    assert len(trained) == THREE.tries


def test_a_finished_run_with_newcomers_is_read_again(tmp_path):
    chosen = experiment("fedrac", last=4)
    grid = arriving(chosen, 3, before=3)
    first = served(chosen, grid, THREE, folder=RunFolder(tmp_path / "run"))
    again = served(chosen, grid, THREE, folder=RunFolder(tmp_path / "run", resume=True))
    assert again.names == first.names == ("0", "1", "2", "3")
    assert again.contributions == first.contributions
    assert again.accuracies == first.accuracies
    assert len(list(again.rewards)) == 4


@pytest.mark.parametrize(
    "answer",
    [
        {"name": "3", "size": 20, "class_counts": ["a", "b", "c"]}, {"name": "3", "size": 20, "class_counts": [20.0]},
        {"name": "3", "size": True}, {"name": "", "size": 20}, {"name": "x" * 300, "size": 20}, {"size": -1},
    ],
)  # fmt: skip
def test_whatever_a_newcomer_says_the_run_goes_on(answer, log):
    chosen = experiment("cffl", last=3, method={"share": "classes"})
    grid = arriving(chosen, 3, before=2)
    honest = node_of(grid, 3).app

    def odd(message, context):
        if message.metadata.message_type == "query":
            return Message(messages.content({"status": "ok", "model": "", **answer}), reply_to=message)
        return honest(message, context)

    node_of(grid, 3).app = odd
    assert served(chosen, grid, THREE).names == ("0", "1", "2")
    assert sum("does not take part" in line for line in log.messages) == 1  # it is not asked again


def test_a_newcomer_that_does_not_answer_is_asked_again():
    chosen = experiment("fedrac", last=5)
    grid = arriving(chosen, 3, before=2)
    honest, asked = node_of(grid, 3).app, []

    def slow(message, context):
        if message.metadata.message_type == "query":
            asked.append(message)
            if len(asked) == 1:
                return None
        return honest(message, context)

    node_of(grid, 3).app = slow
    assert served(chosen, grid, THREE).names == ("0", "1", "2", "3")
    assert len(asked) == 2


def test_who_joined_after_the_last_test_is_not_in_the_report_yet(tmp_path):
    chosen = experiment("contract", last=40, run={"evaluate_every": 5, "checkpoint_every": 1})
    grid = arriving(chosen, 3, before=7)

    class KilledError(Exception):
        pass

    def killed(t, _):
        if t == 8:
            raise KilledError

    while_round(grid, 1, killed)
    with pytest.raises(KilledError):
        served(chosen, grid, THREE, folder=RunFolder(tmp_path / "run"))
    (entry,) = read_methods([tmp_path / "run"])
    assert entry.runs[0].outcome.names == ("0", "1", "2")
    assert entry.runs[0].facts["clients"] == ["0", "1", "2", "3"]
    assert "nan" not in write([entry], tmp_path / "report.html").read_text().split("<script")[0]


def test_messages_tell_the_head_of_the_ledger(tmp_path):
    chosen = experiment("fedrac", last=3).with_run(checkpoint_every=1)
    grid = grid_of(chosen)
    grid.watch = True
    served(chosen, grid, folder=RunFolder(tmp_path / "run"))
    heads = {
        messages.config_of(message)["round"]: messages.config_of(message)["ledger"]
        for message in grid.seen[::2]
        if message.metadata.message_type == "train" and messages.config_of(message)["memory"] != "none"
    }
    entries = ledger.verified_entries(tmp_path / "run" / "ledger.jsonl")
    assert heads == {t: entries[t - 1]["hash"] for t in (1, 2, 3)}
    assert ledger.verified_entries(tmp_path / "run" / "ledger.jsonl", head=heads[2])


def test_who_is_away_loses_reputation_where_it_fades():
    chosen = experiment("cgsv", last=4, participation={"fade": 0.5})
    kept = experiment("cgsv", last=4, participation={"fade": 0.0})

    def away(settings):
        grid = grid_of(settings)

        def leave(t, _):
            node_of(grid, 3).online = t < 2

        return served(settings, while_round(grid, 0, leave))

    assert away(chosen).history[-1].reputation[3] < 0.5 * away(kept).history[-1].reputation[3]


def test_a_newcomer_that_says_who_it_is_and_never_trains_holds_up_no_round():
    chosen = experiment("cgsv", last=3)
    grid = arriving(chosen, 3, before=2)
    honest = node_of(grid, 3).app
    node_of(grid, 3).app = lambda m, context: honest(m, context) if m.metadata.message_type == "query" else None
    began = time.monotonic()
    result = served(chosen, grid, replace(SOON, clients=3, minimum=3, join_seconds=0.5, round_seconds=4.0, tries=2))
    assert time.monotonic() - began < 4.0  # two rounds in which it has a quarter of the time; once it had all of it
    assert len(result.names) == 3
