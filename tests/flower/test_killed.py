"""Processes of a real federation are killed, and it loses at most the round in flight."""

import json
import time
from dataclasses import replace

import pytest
import torch

from cofair.flower.deploy import keys
from cofair.flower.deploy.app import write_app
from cofair.flower.deploy.demo import experiment as demonstration
from cofair.flower.deploy.demo import is_over, node_config, run_config, write_data
from cofair.flower.deploy.local import LocalFederation, listens
from cofair.runs.history import read_history
from cofair.runs.loop import rounds
from cofair.runs.prepare import prepare
from tests.flower.killing import kill, named, until

pytestmark = pytest.mark.long
ROUNDS = 12
BACK_OFF = 70  # seconds: as long as the units of systemd wait, since Flower refuses a node that it takes for connected


class Run:
    """A run of two participants, and what its folder says."""

    def __init__(self, folder, federation):
        self.folder, self.out, self.federation = folder, folder / "run", federation
        self.chosen = demonstration(ROUNDS, 2, "fedrac", 0).with_run(checkpoint_every=1)
        self.stood = []
        write_app(folder / "app", self.chosen, 2)
        write_data(folder, self.chosen)

    def start_node(self, name):
        self.federation.start_node(name, node_config(self.folder, name, "size"))

    def begin(self, *more):
        config = [*run_config(self.folder, self.out), "round-seconds=150", *more]
        self.federation.run(self.folder / "app", config)

    def history(self):
        file = self.out / "history.jsonl"
        return read_history(file) if file.exists() else []

    def took_part(self):
        """Return who answered in each round, as the ledger has it."""
        entries = [json.loads(line) for line in (self.out / "ledger.jsonl").read_text().splitlines()]
        return {entry["round"]: entry["took_part"] for entry in entries if "took_part" in entry}

    def kill_in_the_next_round(self, *parts):
        """Kill once a participant trains in a round that was not begun before."""
        before = len(self.history())
        until(lambda: len(self.history()) > before, 300, "a round")
        until(lambda: named(self.federation.processes, "flwr-clientapp"), 120, "a training")
        self.stood.append(self.history())
        assert kill(self.federation.processes, *parts)

    def goes_on(self, seconds=300):
        before = len(self.stood[-1])
        until(lambda: len(self.history()) > before, seconds, "going on")


def test_killing_any_process_loses_at_most_the_round_in_flight(tmp_path):
    with LocalFederation(tmp_path) as federation:
        federation.start_superlink()
        run = Run(tmp_path, federation)
        for name in "01":
            federation.register(name)
            run.start_node(name)
        refuses_a_key_that_nobody_registered(run)

        run.begin()
        until(lambda: named(federation.processes, "flwr-clientapp"), 200, "joining")
        assert kill(federation.processes, "flwr-serverapp")
        run.begin("resume=true")  # nothing was written yet: it begins

        run.kill_in_the_next_round("flwr-clientapp")
        run.goes_on()

        run.kill_in_the_next_round("flower-supernode", "keys/1")
        killed = time.monotonic()
        run.goes_on()
        absent = len(run.stood[-1]) + 1
        time.sleep(max(0.0, killed + BACK_OFF - time.monotonic()))
        run.start_node("1")
        until(lambda: any(all(who) for t, who in run.took_part().items() if t > absent), 300, "coming back")

        run.kill_in_the_next_round("flwr-serverapp")
        run.begin("resume=true")
        run.goes_on()

        run.kill_in_the_next_round("flower-superlink")
        kill(federation.processes, "flwr-serverapp")
        until(lambda: not listens(federation.port), 30, "letting go of the port")
        federation.start_superlink()
        run.begin("resume=true")
        until(lambda: is_over(run.out), 600, "the end")

    measured = run.history()
    assert [record.round for record in measured] == list(range(1, ROUNDS + 1))
    for stood in run.stood:  # what was there before a kill is there now; its last round may have been in flight
        assert measured[: len(stood) - 1] == stood[:-1]
    assert run.took_part()[absent] == [True, False]
    simulated = [record for record, _ in rounds(run.chosen.method, with_those(prepare(run.chosen), run.took_part()))]
    assert [r.accuracies for r in measured] == [pytest.approx(r.accuracies) for r in simulated]
    assert [r.reputation for r in measured] == [pytest.approx(r.reputation) for r in simulated]


def refuses_a_key_that_nobody_registered(run):
    keys.node_key(run.folder / "keys", "stranger")
    run.start_node("stranger")
    stranger = run.federation.processes.forget("node-stranger")
    assert stranger.wait(timeout=120) != 0
    logs = run.federation.processes.logs
    assert "Failed to activate SuperNode" in (logs / "node-stranger.log").read_text()
    assert "No SuperNode found with the given public key" in (logs / "superlink.log").read_text()


def with_those(prepared, took_part):
    """Return a simulation in which those answer who answered: a killed process may cost its round a client."""

    class Some:
        def train(self, rewards, states, t):
            there = torch.tensor(took_part[t], dtype=torch.bool)
            return prepared.engine.train(replace(rewards, participants=there), states, t)

    return replace(prepared, engine=Some())
