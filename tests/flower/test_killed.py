"""Processes of a real federation are killed, and it loses at most the round in flight."""

import json
import time
from dataclasses import replace

import pytest
import torch

from cofair.flower.deploy import keys
from cofair.flower.deploy.app import demonstration
from cofair.flower.deploy.demo import is_over, write_data
from cofair.flower.deploy.local_federation import LocalFederation
from cofair.flower.deploy.ports import listens
from cofair.flower.federation_server import with_deployment_defaults
from cofair.storage.history import read_history
from tests.driving import prepare, rounds, with_engine
from tests.flower.deployed import needs_nginx
from tests.flower.killing import CLIENT_APP, SERVER_APP, kill, named, until

pytestmark = [pytest.mark.long, needs_nginx]
ROUNDS = 24  # more than pass while a killed SuperNode is away
BACK_OFF = 70  # seconds: as long as the units of systemd wait, since Flower refuses a node that it takes for connected


class Run:
    """A run of two participants, and what its folder says."""

    def __init__(self, federation, chosen):
        self.out, self.federation, self.chosen, self.stood = federation.folder / "run", federation, chosen, []
        write_data(federation, chosen)
        federation.write_server_settings(clients=2, data="server.npz", out=str(self.out), round_seconds=150)

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
        until(lambda: named(self.federation.processes, *CLIENT_APP), 120, "a training")
        self.stood.append(self.history())
        assert kill(self.federation.processes, *parts)

    def goes_on(self, seconds=300):
        before = len(self.stood[-1])
        until(lambda: len(self.history()) > before, seconds, "going on")


def test_killing_any_process_loses_at_most_the_round_in_flight(tmp_path):
    chosen = demonstration(ROUNDS, 2, "fedrac", 0).with_run(checkpoint_every=1)
    with LocalFederation(tmp_path, chosen, ["0", "1", "stranger"]) as federation:
        federation.start_superlink()
        run = Run(federation, chosen)
        for name in "01":
            federation.admit(name)
            federation.start_node(name)
        refuses_a_key_that_nobody_admitted(federation)

        federation.run()
        until(lambda: named(federation.processes, *CLIENT_APP), 200, "joining")
        assert kill(federation.processes, *SERVER_APP)
        federation.run()  # nothing was written yet: it begins

        run.kill_in_the_next_round(*CLIENT_APP)
        run.goes_on()

        run.kill_in_the_next_round("deploy", "node", "participant-1")
        killed = time.monotonic()
        run.goes_on()
        absent = len(run.stood[-1]) + 1
        time.sleep(max(0.0, killed + BACK_OFF - time.monotonic()))
        federation.start_node("1")
        until(lambda: any(all(who) for t, who in run.took_part().items() if t > absent), 300, "coming back")

        run.kill_in_the_next_round(*SERVER_APP)
        federation.run()
        run.goes_on()

        run.kill_in_the_next_round("deploy", "superlink")
        until(lambda: not listens(federation.port), 30, "letting go of the port")
        federation.start_superlink()
        federation.run()
        until(lambda: is_over(run.out), 600, "the end")

    measured = run.history()
    assert [record.round for record in measured] == list(range(1, ROUNDS + 1))
    for stood in run.stood:  # what was there before a kill is there now; its last round may have been in flight
        assert measured[: len(stood) - 1] == stood[:-1]
    assert run.took_part()[absent] == [True, False]
    prepared = with_those(prepare(with_deployment_defaults(run.chosen)), run.took_part())
    simulated = [record for record, _ in rounds(prepared)]
    assert [r.accuracies for r in measured] == [pytest.approx(r.accuracies) for r in simulated]
    assert [r.reputation for r in measured] == [pytest.approx(r.reputation) for r in simulated]


def refuses_a_key_that_nobody_admitted(federation):
    """A stranger that has even the authority's signature, but whom the organiser does not let in."""
    own = federation.participant("stranger")
    keys.node_key(own)
    certificate = keys.issue_certificate(
        federation.organiser.folder / "keys", keys.read_request(own / "node.csr"), "stranger"
    )
    keys.write_certificate(own / "node.crt", certificate)
    (own / "data.npz").write_bytes(b"")
    federation.start_node("stranger")
    stranger = federation.processes.forget("node-stranger")
    stranger.wait(timeout=120)
    log = (federation.processes.logs / "node-stranger.log").read_text()
    assert "the organiser has not admitted this key, or has removed it" in log


def with_those(prepared, took_part):
    """Return a simulation in which those answer who answered: a killed process may cost its round a client."""
    engine = prepared.engine

    class Some:
        def train(self, rewards, states, t):
            there = torch.tensor(took_part[t], dtype=torch.bool)
            return engine.train(replace(rewards, participants=there), states, t)

    return with_engine(prepared, Some())
