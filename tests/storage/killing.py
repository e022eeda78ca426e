"""Runs `cofair run` in processes that can be killed at any moment.

Processes are forked from one that has imported everything, so that hundreds of them fit in minutes.
"""

import json
import multiprocessing
import os
import random
import shutil
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import torch

import cofair.cli.comparison_output
import cofair.cli.main
import cofair.cli.report_command
import cofair.runs.run
import cofair.tracking.base  # what the command would import when it is called
from cofair.data import datasets
from cofair.storage.checkpoint import latest
from cofair.storage.folder import CHECKPOINT, PREVIOUS
from cofair.storage.ledger import verified_entries

EXPERIMENT = """
[federation]
clients = 3
[model]
hidden = [12]
[training]
rounds = 24
steps = 2
lr = 0.01
[contribution]
epochs = 1
[run]
evaluate_every = 3
checkpoint_every = {every}
[method]
name = "{method}"
"""
datasets.load("digits")  # the processes that are forked have it


def command(arguments: list[str], log: Path) -> None:
    """Be `cofair` with these arguments, without the report at the end, which is no part of a run."""
    torch.set_num_threads(1)
    cofair.cli.report_command.after_run = lambda folders, path, failures=None: ""
    sys.argv = ["cofair", *arguments]
    with log.open("a") as file, redirect_stdout(file), redirect_stderr(file):
        cofair.cli.main.main()


class Killer:
    """Starts runs and kills them."""

    def __init__(self, folder: Path, seed: int = 0) -> None:
        self.folder, self.random = folder, random.Random(seed)
        self.kills = self.in_rounds = 0  # in_rounds: of these, those that left a run to go on from a checkpoint
        # the process that forks does not know pytest's
        searched = [str(Path(__file__).parents[2]), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, searched))
        self._processes = multiprocessing.get_context("forkserver")
        self._processes.set_forkserver_preload(["tests.storage.killing"])
        first = self._processes.Process(target=int)  # so that no run waits for what is imported only once
        first.start()
        first.join()

    def run(self, experiment: Path, out: Path, kill_after: float | None = None) -> bool:
        """Run or resume an experiment; tell whether it came to its end before it was killed."""
        process = self._processes.Process(
            target=command, args=(["run", str(experiment), "--out", str(out), "--resume"], out.with_suffix(".log"))
        )
        process.start()
        if kill_after is not None:
            time.sleep(kill_after)
            process.kill()
        process.join(120)
        assert not process.is_alive(), out.with_suffix(".log").read_text()
        if process.exitcode == -9:
            self.kills += 1
        else:
            assert process.exitcode == 0, out.with_suffix(".log").read_text()
        return process.exitcode == 0

    def survives(self, method: str, kills: int) -> int:
        """Kill a method's run at random moments and let it go on, until it ends; then nothing may be lost."""
        experiment = self.folder / f"{method}.toml"
        experiment.write_text(EXPERIMENT.format(method=method, every=self.random.choice([1, 2, 5])))
        whole, killed = self.folder / f"{method}-whole", self.folder / f"{method}-killed"
        for path in (whole, killed):
            shutil.rmtree(path, ignore_errors=True)
        began = time.perf_counter()
        self.run(experiment, whole)
        seconds, before, rounds = time.perf_counter() - began, self.kills, 0
        while self.kills - before < kills:
            if self.run(experiment, killed, self.random.uniform(0, seconds)):
                self._compare(whole, killed)
                shutil.rmtree(killed)
                rounds = 0
                continue
            rounds = self._readable(killed, rounds)
            self.in_rounds += rounds > 0
        self.run(experiment, killed)
        self._compare(whole, killed)
        return self.kills - before

    def _readable(self, path: Path, before: int) -> int:
        """Check that the ledger of a killed run is whole and the run does not fall back; return how far it came."""
        if (path / "summary.json").exists():  # killed while it tidied up
            return before
        if not (path / CHECKPOINT).exists() and not (path / PREVIOUS).exists():
            assert not before, "a checkpoint was lost"
            return 0
        verified_entries(path / "ledger.jsonl")
        here = int(latest(path).facts["round"])
        assert here >= before, "a checkpoint was lost"
        return here

    def _compare(self, whole: Path, killed: Path) -> None:
        assert _written(killed) == _written(whole), killed
        assert (killed / "ledger.jsonl").read_bytes() == (whole / "ledger.jsonl").read_bytes()
        assert (killed / "rewards.safetensors").read_bytes() == (whole / "rewards.safetensors").read_bytes()
        assert not list(killed.glob("*checkpoint*"))
        assert not list(killed.glob(".*.tmp"))


def _written(path: Path) -> list[dict[str, object]]:
    lines = [json.loads(line) for line in (path / "history.jsonl").read_text().splitlines()]
    assert all(line.pop("seconds") >= 0 for line in lines)
    return lines
