"""A participant that cheats below the app: nothing of it is kept, no round lasts longer, and the others go on."""

import json
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from cofair.flower.deploy.app import demonstration
from cofair.flower.deploy.demo import is_over, write_data
from cofair.flower.deploy.local_federation import LocalFederation
from cofair.storage.history import read_history
from tests.flower.deployed import needs_nginx
from tests.flower.killing import SERVER_APP, named, until

pytestmark = [pytest.mark.long, needs_nginx]
DEADLINE, ROUNDS = 30, 2  # seconds, shared by the two trainings of a round


def chosen():
    made = demonstration(ROUNDS, 2, "fedavg", 0)
    return replace(made, contribution=replace(made.contribution, measure="size", on="test"))


def largest_memory(number):
    """Return the most memory that a process has held, in bytes."""
    try:
        lines = Path(f"/proc/{number}/status").read_text().splitlines()
    except OSError:
        return 0
    return max((1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM")), default=0)


@pytest.mark.parametrize("kind", ["silent", "huge", "unreadable", "endless"])
def test_rounds_close_in_time_and_memory_stays_small(tmp_path, kind):
    held = {"server": 0, "superlink": 0}
    with LocalFederation(tmp_path, chosen(), ["0", "1"]) as federation:
        federation.start_superlink()
        write_data(federation, chosen())
        out = tmp_path / "run"
        federation.write_server_settings(
            clients=2, data="server.npz", out=str(out), round_seconds=DEADLINE, newcomers=False
        )
        for name in "01":
            federation.admit(name)
        federation.start_node("0")
        evil = [sys.executable, str(Path(__file__).with_name("evil_node.py")), str(federation.participant("1")), kind]
        federation.processes.start("node-1", evil)
        federation.run()
        began, ends = time.monotonic(), []

        def watched():
            for key, parts in (("server", SERVER_APP), ("superlink", ("deploy", "superlink"))):
                for number in named(federation.processes, *parts):
                    held[key] = max(held[key], largest_memory(number))
            tested = read_history(out / "history.jsonl") if (out / "history.jsonl").exists() else []
            ends.extend([time.monotonic()] * (len(tested) - len(ends)))
            return is_over(out)

        until(watched, 60 + ROUNDS * (DEADLINE + 30), "the run")
        log = (federation.processes.logs / "node-1.log").read_text()
    assert f"answering {kind}" in log
    if kind == "huge":
        assert "refused as a whole" in log
        assert "refused a piece" in log
    assert ends[-1] - ends[0] < (ROUNDS - 1) * (DEADLINE + 10)
    assert ends[-1] - began < 40 + ROUNDS * (DEADLINE + 10)
    assert held["server"] < 700 * 2**20  # torch itself takes half of it
    assert held["superlink"] < 700 * 2**20
    entries = [json.loads(line) for line in (out / "ledger.jsonl").read_text().splitlines()]
    assert [entry["took_part"] for entry in entries if "took_part" in entry] == [[True, False]] * ROUNDS
