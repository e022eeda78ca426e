"""Runs in lockstep against runs one by one, and what a round of each method costs inside a sweep.

    python -m benchmarks.sweep                                            # random images of CIFAR-10's shape
    python -m benchmarks.sweep --device cuda --runs 50 --rounds 20 --precision tf32

Scene pow, 10 clients, the MLP 3072-200-200-10, 15 local steps (FedRAC: 5), every fifth round and the last tested on
10,000 images. A run-round is a round of one of the runs of a batch. With `--processes` so many such batches share the
device, as `cofair sweep --workers` has it (on a GPU start NVIDIA's multi-process service first). Each measures itself,
and they do not begin and end at the same moment: the time is a little too good.
"""

import argparse
import re
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cofair.config.experiment import Experiment
from cofair.config.job import Job
from cofair.data.build import Pool
from cofair.data.datasets.dataset import Dataset
from cofair.engine import choose
from cofair.engine.lockstep import Lockstep
from cofair.results.listener import Listener
from cofair.results.record import Record
from cofair.runs.lockstep_batch import run_together
from cofair.runs.run import prepare
from cofair.runs.setup import Parts

METHODS = ("fedavg", "q-ffl", "cffl", "cgsv", "fedave", "iafl", "fedsac", "fedrac")


def random_images(samples: int) -> Dataset:
    rng = np.random.default_rng(0)

    def images(n: int) -> tuple[Any, Any]:
        return rng.integers(0, 256, (n, 32, 32, 3), dtype=np.uint8), rng.integers(0, 10, n)

    (x, y), (tx, ty) = images(samples), images(10_000)
    return Dataset("random", "image", x, y, tx, ty, tuple("0123456789"), (0.5,) * 3, (0.25,) * 3)


def experiment(method: str, seed: int, given: argparse.Namespace) -> Experiment:
    return Experiment.from_dict(
        {
            "training": {"rounds": given.rounds + 10, "steps": 5 if method == "fedrac" else 15},
            "contribution": {"measure": "size"},
            "method": {"name": method},
            "run": {"seed": seed, "device": given.device, "precision": given.precision},
        }
    )


class Clocked(Lockstep):
    """Notes how long training takes, apart from what the methods do."""

    seconds = 0.0

    def train(self, requests: Any) -> Any:  # noqa: D102
        began = time.perf_counter()
        answer = super().train(requests)
        if self.problems[0].device.type == "cuda":
            torch.cuda.synchronize()
        Clocked.seconds += time.perf_counter() - began
        return answer


def in_lockstep(method: str, pool: Pool, given: argparse.Namespace) -> tuple[float, float]:
    """Return milliseconds of a run-round: all of it, and the training in it."""
    with tempfile.TemporaryDirectory() as folder:
        jobs = [Job(experiment(method, seed, given), Path(folder) / f"{method}{seed}") for seed in range(given.runs)]
        marks: dict[int, list[float]] = defaultdict(list)

        class Marks(Listener):
            def tested(self, job: Job, record: Record) -> None:
                if record.round in (10, given.rounds):  # past the start; both inclusive of a test
                    marks[record.round] += [time.perf_counter(), Clocked.seconds]

            def failed(self, job: Job, reason: str) -> None:
                raise RuntimeError(reason)

        run_together(jobs, pool, Marks(), Clocked)
    first, last = marks[10], marks[given.rounds]
    count = given.runs * (given.rounds - 10)
    return 1000 * (last[-2] - first[-2]) / count, 1000 * (last[-1] - first[-1]) / count


def one_by_one(method: str, pool: Pool, engine: str, given: argparse.Namespace, rounds: int) -> float:
    """Return milliseconds of a round of one run with an engine of its own."""
    run = prepare(experiment(method, 0, given).with_run(engine=engine), Parts(_federation(pool)))
    training, began, first = run.start(), 0.0, 0
    while training is not None:
        training = run.advance(run.engine.train(training.rewards, training.clients, training.t))
        tested = run.records[-1].round if run.records else 0
        if tested >= 5 and not first:
            began, first = time.perf_counter(), tested
        elif first and tested >= first + rounds:
            return 1000 * (time.perf_counter() - began) / (tested - first)
    raise ValueError("too few rounds")


def side_by_side(method: str, given: argparse.Namespace) -> float:
    """Return milliseconds of a run-round where several processes run such a batch each: all of them together."""
    same = ["device", "precision", "runs", "rounds"]
    own = [part for name in same for part in (f"--{name}", str(getattr(given, name)))]
    command = [sys.executable, "-m", "benchmarks.sweep", "--methods", method, *own]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(given.processes)]
    found = [re.search(r": ([\d.]+) ms", one.communicate()[0]) for one in running]
    rates = [1 / float(match[1]) for match in found if match]
    if len(rates) < given.processes:
        raise SystemExit("One of the processes failed.")
    return 1 / sum(rates)


def _federation(pool: Pool) -> Any:
    from cofair.data.build import federate

    return federate(pool, "pow")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--precision", default="float32", choices=["float32", "tf32"])
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--runs", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=20, help="a multiple of 5 above 10")
    parser.add_argument("--alone", action="store_true", help="also time one run by itself with each engine")
    parser.add_argument("--processes", type=int, default=1, help="so many batches at once, each in its own process")
    given = parser.parse_args()
    if given.processes > 1 and given.alone:
        parser.error("--alone goes with one process")
    if given.processes > 1:
        for method in given.methods.split(","):
            milliseconds = side_by_side(method, given)
            print(f"{method}: {milliseconds:.2f} ms a run-round, {given.processes} processes of {given.runs} runs each")
        return
    with choose.arithmetic(given.precision):
        device = choose.device(given.device)
        pool = Pool.of(random_images(50_000), device, torch.float32, None)
        for method in given.methods.split(","):
            whole, training = in_lockstep(method, pool, given)
            text = f"{method}: {whole:.2f} ms a run-round in lockstep of {given.runs}, {training:.2f} of it training"
            if given.alone:
                own, loop = (
                    one_by_one(method, pool, "vectorised", given, 10),
                    one_by_one(method, pool, "loop", given, 5),
                )
                text += f"; alone {own:.1f} ms ({own / whole:.1f} ×), loop engine {loop:.1f} ms ({loop / whole:.1f} ×)"
            print(text, flush=True)


if __name__ == "__main__":
    main()
