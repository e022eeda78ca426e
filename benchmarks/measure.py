"""How benchmarks measure: alternate the candidates, take medians, know the machine's own ceiling."""

import statistics
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import torch

from cofair.config.experiment import Experiment
from cofair.config.job import Job
from cofair.methods import Method
from cofair.runs.measurement import measured
from cofair.runs.run import Run
from cofair.runs.setup import Parts, set_up

Name = TypeVar("Name", bound=Hashable)


def alternate(candidates: dict[Name, Callable[[], object]], repeats: int, device: torch.device) -> dict[Name, float]:
    """Return the median seconds of each candidate, run in turn so that noise meets all of them alike."""
    times: dict[Name, list[float]] = {name: [] for name in candidates}
    for candidate in candidates.values():  # warm up
        candidate()
    for _ in range(repeats):
        for name, candidate in candidates.items():
            times[name].append(_seconds(candidate, device))
    return {name: statistics.median(values) for name, values in times.items()}


def matrix_rate(device: torch.device, size: int | None = None) -> float:
    """Return the floating-point operations a second of a large matrix product, float32 as it is set now."""
    size = size or (8192 if device.type == "cuda" else 2048)
    a, b = torch.randn(size, size, device=device), torch.randn(size, size, device=device)
    return 2 * size**3 / alternate({"product": lambda: a @ b}, 7, device)["product"]


def _seconds(candidate: Callable[[], object], device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    began = time.perf_counter()
    candidate()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - began


def prepare_all(experiment: Experiment, methods: Sequence[Method[Any]], parts: Parts | None = None) -> list[Run]:
    """Set up an experiment and measure what everybody brings once, and return a run for each of several methods."""
    setup = set_up(experiment, parts, methods=methods)
    brought = measured(setup, methods, None if parts is None else parts.contributions)
    return [Run(Job(replace(experiment, method=method)), setup, brought) for method in methods]
