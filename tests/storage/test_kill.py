"""Runs that are killed, for real, at any moment: nothing is lost."""

import os
import signal
import subprocess
import sys
import time

import pytest

from cofair import methods
from tests.storage.killing import EXPERIMENT, Killer

KILLS = 8  # in the short test
MANY_KILLS = int(os.environ.get("COFAIR_KILLS", "500"))  # in the long one
METHODS = [name for name in methods.names() if name != "standalone"]


def test_runs_killed_at_random_moments_lose_nothing(tmp_path):
    killer = Killer(tmp_path, seed=int(time.time()))
    for method in ("fedavg", "cgsv", "fedrac", "contract"):
        killer.survives(method, KILLS // 4)
    assert killer.kills >= KILLS


@pytest.mark.long
def test_every_method_survives_hundreds_of_kills(tmp_path):
    killer = Killer(tmp_path, seed=int(time.time()))
    each = -(-MANY_KILLS // len(METHODS))
    for method in METHODS:
        done = killer.survives(method, each)
        print(f"{method}: killed {done} times, nothing lost", flush=True)
    print(f"{killer.kills} kills over {len(METHODS)} methods, {killer.in_rounds} after a checkpoint: nothing lost")


def test_the_command_itself_goes_on_after_a_kill(tmp_path):
    experiment, out = tmp_path / "experiment.toml", tmp_path / "run"
    experiment.write_text(EXPERIMENT.format(method="fedavg", every=1).replace("24", "4000"))
    words = [sys.executable, "-m", "cofair", "run", str(experiment), "--out", str(out)]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not (out / "checkpoint-previous.safetensors").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    second = subprocess.run([*words, "--resume"], capture_output=True, text=True, timeout=120, check=False)
    assert second.returncode == 1  # the first one still writes there
    assert second.stderr.startswith(f"error: Another run is writing to {out}")
    assert len(second.stderr.splitlines()) == 1
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = (out / "history.jsonl").read_bytes().count(b"\n")
    process = subprocess.Popen([*words, "--resume"], stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while (out / "history.jsonl").read_bytes().count(b"\n") < before + 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    process.kill()
    process.wait()
    assert (out / "history.jsonl").read_bytes().count(b"\n") >= before + 3
