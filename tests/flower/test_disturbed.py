"""Processes of a federation are killed and paused, and its door is closed: whoever is online takes part again soon.

COFAIR_DISTURBANCES says how many (8 of 15), COFAIR_SEED in which order (0).
"""

import json
import os
import random
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from cofair.flower.deploy.app import demonstration
from cofair.flower.deploy.demo import write_data
from cofair.flower.deploy.local_federation import LocalFederation
from cofair.flower.deploy.ports import listens
from tests.flower.deployed import needs_nginx
from tests.flower.killing import CLIENT_APP, SERVER_APP, named, until

pytestmark = [pytest.mark.long, needs_nginx]
COUNT, SEED = int(os.environ.get("COFAIR_DISTURBANCES", "8")), int(os.environ.get("COFAIR_SEED", "0"))
DEADLINE = 30  # seconds of a round
BACK_OFF = 70  # seconds: as long as the units of systemd wait before a SuperNode is started again
VICTIMS = {
    "client app": CLIENT_APP,
    "SuperExec of a node": ("deploy.superexec", "flwr-clientapp"),
    "SuperNode": ("deploy", "node", "participant-1"),
    "proxy": ("nginx", "master"),
    "SuperLink": ("deploy", "superlink", "organiser"),
    "SuperExec of the server": ("deploy.superexec", "flwr-serverapp"),
    "server app": SERVER_APP,
}
ENDS_THE_RUN = (
    "SuperLink",
    "SuperExec of the server",
    "server app",
)  # if killed: its command is given again


class Disturbed:
    """A run of two participants that is disturbed and set right again."""

    def __init__(self, federation):
        self.federation, self.out = federation, federation.folder / "run"

    def took_part(self):
        """Return who took part in each round, as the ledger has it."""
        file = self.out / "ledger.jsonl"
        lines = file.read_text().splitlines() if file.exists() else []
        entries = [json.loads(line) for line in lines if line.endswith("}")]
        return {entry["round"]: entry["took_part"] for entry in entries if "took_part" in entry}

    def numbers(self, victim):
        """Return the processes of a victim; nginx writes over the environment by which others are found."""
        if victim == "proxy":
            file = self.federation.organiser.folder / "proxy" / "nginx.pid"
            return [int(file.read_text())]
        return named(self.federation.processes, *VICTIMS[victim])

    def disturb(self, victim, action):
        if action == "cut off":  # for a while the door answers nobody: what is underway breaks off
            self.closed(100)
            return
        until(lambda: self.numbers(victim), 120, f"finding the {victim}")
        for number in self.numbers(victim):
            os.kill(number, signal.SIGKILL if action == "kill" else signal.SIGSTOP)
        if action == "pause":
            time.sleep(40)
            for number in self.numbers(victim):
                os.kill(number, signal.SIGCONT)
        elif victim == "SuperNode":
            self.federation.processes.forget("node-1")
            time.sleep(BACK_OFF)
            self.federation.start_node("1")
        elif victim == "SuperLink":
            self.federation.processes.forget("superlink")
            until(lambda: not listens(self.federation.port), 30, "letting go of the port")
            time.sleep(5)
            self.federation.start_superlink()
        if action == "kill" and victim in ENDS_THE_RUN:
            time.sleep(3)
            self.federation.run()

    def closed(self, seconds):
        """Let nothing through between participants and the server for longer than Flower waits for anything."""
        file = self.federation.organiser.folder / "proxy" / "nginx.pid"
        number = int(file.read_text())
        os.kill(number, signal.SIGSTOP)
        workers = [int(part) for part in Path(f"/proc/{number}/task/{number}/children").read_text().split()]
        for worker in workers:  # their connections hang, and new ones are not accepted
            os.kill(worker, signal.SIGSTOP)
        time.sleep(seconds)
        for process in (*workers, number):
            os.kill(process, signal.SIGCONT)

    def online(self):
        answer = self.federation._flower("supernode", "list", "here", "--format", "json")
        return [node["status"] for node in answer["nodes"]] == ["online"] * 2

    def comes_back(self):
        """Wait until both are online, then for the round in flight and two more: in one of them both took part."""
        until(self.online, 120, "coming online")
        last = max(self.took_part(), default=0)
        until(
            lambda: any(all(who) for t, who in self.took_part().items() if t > last), 3 * (DEADLINE + 20), "taking part"
        )
        back = min(t for t, who in self.took_part().items() if t > last and all(who))
        assert back <= last + 3
        return back


def test_who_is_online_takes_part_again_within_two_rounds(tmp_path):
    chosen = demonstration(10_000, 2, "fedavg", 0).with_run(checkpoint_every=1)
    chosen = replace(chosen, contribution=replace(chosen.contribution, measure="size", on="test"))
    every = [(victim, action) for victim in VICTIMS for action in ("kill", "pause")] + [("network", "cut off")]
    random.Random(SEED).shuffle(every)
    every.sort(key=lambda one: one[1] != "cut off")  # which is always among them
    with LocalFederation(tmp_path, chosen, ["0", "1"]) as federation:
        federation.start_superlink()
        write_data(federation, chosen)
        run = Disturbed(federation)
        federation.write_server_settings(
            clients=2, data="server.npz", out=str(run.out), round_seconds=DEADLINE, tries=10, newcomers=False
        )
        for name in "01":
            federation.admit(name)
            federation.start_node(name)
        federation.run()
        until(run.took_part, 120, "the first round")
        for victim, action in (every * (1 + COUNT // len(every)))[:COUNT]:
            began = time.monotonic()
            run.disturb(victim, action)
            back = run.comes_back()
            print(f"{action} the {victim}: both in round {back}, {time.monotonic() - began:.0f} s", flush=True)
