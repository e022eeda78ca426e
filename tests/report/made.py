"""Runs made by hand, so that reports of any size and kind are tested without training."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from cofair.report.reported_runs import ReportedMethod, ReportedRun
from cofair.results.record import Record
from cofair.results.result import Outcome


def made_run(
    names: Sequence[str], method: str = "fedsac", seed: int = 0, rounds: Sequence[int] = (1, 2, 3), *,
    measure: str = "standalone", reputation: bool = True, neurons: int = 0, spread: float = 0.2,
    held: bool = False,
) -> ReportedRun:  # fmt: skip
    """A run in which a client gets a little more than it brought; `spread` is how much rewards differ.

    Where it is measured what is `held`, everybody keeps a point more than it got.
    """
    random = np.random.default_rng(seed)
    n = len(names)
    brought = 0.5 + 0.2 * np.linspace(0, 1, n) + 0.01 * random.random(n)
    history = []
    for t in rounds:
        got = 0.7 + spread * np.linspace(0, 1, n) * t / rounds[-1] + (0.01 * random.random(n) if spread else 0)
        history.append(
            Record(
                t, 90.0 if spread else None, got.tolist(), None,
                (brought / brought.sum()).tolist() if reputation else None, np.linspace(0.2, 1, n).tolist(), 0.1 * t,
                t == rounds[-1], random.random(neurons).tolist() if neurons else None,
            )
        )  # fmt: skip
        if held and t == rounds[-1]:
            kept = (got + 0.01).tolist()
            parts = {"delivered": got.tolist(), "kept": kept, "tuned": got.tolist()}
            history[-1] = replace(history[-1], held=kept, held_parts=parts, held_as=["kept"] * n)
    outcome = Outcome(
        method, seed, tuple(names), (100,) * n, tuple(brought.tolist()), tuple(history),
        contributions_are_accuracies=measure == "standalone",
    )  # fmt: skip
    experiment: dict[str, dict[str, Any]] = {
        "training": {"rounds": rounds[-1]}, "contribution": {"measure": measure}, "method": {"name": method},
        "run": {"metric": "accuracy", "precision": "float32", "evaluate_every": 1},
    }  # fmt: skip
    return ReportedRun(
        Path("run"), outcome, experiment, {"given": [], "parameters": 1000, "seed": seed, "versions": {}}
    )


def made_method(label: str, names: Sequence[str], seeds: int = 2, **kind: Any) -> ReportedMethod:
    """Runs of one method, one a seed."""
    return ReportedMethod(label, tuple(made_run(names, label, seed, **kind) for seed in range(seeds)))
