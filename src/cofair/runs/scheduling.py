"""Which runs train together: jobs divided into batches that fit in memory and keep every worker busy."""

import json
import math
from collections.abc import Sequence

import torch

from cofair.config.experiment import Experiment
from cofair.config.job import Job
from cofair.data.datasets import catalogue
from cofair.data.scene_request import DEFAULT_SAMPLES, WHOLE_POOL
from cofair.data.tables import is_table

COPIES = 8  # of all clients' parameters: handed out, trained, uploaded, a method's own
HELD = 2  # more of them on a GPU, where recorded steps keep what they change and what they need
KEPT = 2  # more of them where what clients hold is measured: the newest values and their mean
_FIXED = 1.5  # of a run: what a batch costs however few runs it has, as training alone and starting every step
_TURNS = 3  # batches for each worker: fewer, and some wait long for the last one


def batches(jobs: Sequence[Job], workers: int = 1) -> list[list[Job]]:
    """Divide jobs into batches that run in lockstep: alike in data and model, costly ones first.

    Several workers get a few batches each, so that none waits long for the last one. Runs of one federation share what
    everybody does alone and stay together, unless workers would be idle for longer than doing that again takes.
    """
    groups: dict[str, dict[str, list[Job]]] = {}
    for job in jobs:
        federations = groups.setdefault(alike(job.experiment), {})
        federations.setdefault(shared_settings(job.experiment), []).append(job)
    whole, parts = _division(sum(map(len, groups.values())), len(jobs), workers)
    enough = sum(map(_cost, jobs)) / (_TURNS * workers)
    found: list[list[Job]] = []
    for federations in groups.values():
        found.append([])
        for _, own in sorted(federations.items()):
            count, whole = (1, whole - 1) if whole else (min(parts, len(own)), 0)
            for part in ([own[i] for i in range(first, len(own), count)] for first in range(count)):
                full = bool(found[-1]) and (count > 1 or sum(map(_cost, found[-1])) >= enough)
                if workers > 1 and full:
                    found.append([])
                found[-1] += part
    return sorted(found, key=lambda batch: -sum(map(_cost, batch)))


def _division(federations: int, jobs: int, workers: int) -> tuple[int, int]:
    """Return how many federations stay whole, and in how many parts to divide each of the others.

    Every worker gets as many whole ones as the others; the rest is divided so that the last worker is done soonest.
    """
    turns, rest = divmod(federations, workers)
    runs = jobs / max(1, federations)

    def longest(parts: int) -> float:
        return math.ceil(parts * rest / workers) * (runs / parts + _FIXED)

    return turns * workers, min(range(1, math.ceil(runs) + 1), key=longest, default=1)


def _cost(job: Job) -> float:
    """Return how many samples of local training a run has, a measure of how long it takes."""
    own, work = job.experiment.federation, job.experiment.training.work()
    rounds = job.experiment.method.rounds(job.experiment.training.rounds)
    if work.epochs is None:
        return float(rounds * own.clients * (work.steps or 0) * work.batch_size)
    if is_table(own.data):  # of unknown length, but all runs of a comparison have the same
        return float(rounds * work.epochs)
    every = catalogue.find(own.data).variants[0].train * (1 - own.validation)
    each = own.samples or (every if own.scene in WHOLE_POOL else DEFAULT_SAMPLES)
    return rounds * work.epochs * min(every, own.clients * each)


def alike(experiment: Experiment) -> str:
    """Return what runs of one batch share."""
    tables = experiment.to_dict()
    run = {key: tables["run"][key] for key in ("device", "precision", "metric", "loss", "class_weights")}
    if run["class_weights"] == "balanced":  # another seed or scene has another validation set
        return shared_settings(experiment)
    federation = {key: tables["federation"].get(key) for key in ("data", "resize")}
    return json.dumps([federation, tables["model"], run], sort_keys=True)


def shared_settings(experiment: Experiment) -> str:
    """Return everything that decides a run except its method."""
    tables = {name: table for name, table in experiment.to_dict().items() if name != "method"}
    return json.dumps(tables, sort_keys=True)


def most_rows(size: int, device: torch.device, workers: int, *, held: bool = False) -> int:
    """Return how many clients of a model of that size fit in memory at once, on a GPU in a worker's share of it."""
    space, copies = 4.0 * 2**30, COPIES + KEPT * held
    if device.type == "cuda":
        free, whole = torch.cuda.mem_get_info(device)
        space, copies = min(free, whole / workers), copies + HELD
    return max(1, int(0.6 * space / (4 * copies * size)))
