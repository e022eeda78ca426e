"""Promises, where a method makes them: what was promised, validated and tested, and the largest miss."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from cofair.methods.rules.promises import half_width
from cofair.report.over_rounds import over_rounds, seed_of
from cofair.report.plots import Plot
from cofair.report.reported_runs import ReportedRun

FALLEN = 0.5  # points that a model has to be better than promised for that to be said
MISS = 1.5  # points of accuracy: more than that counts as a miss
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Promises:
    """Accuracies in percent (T, N) at T tested rounds: promised, found on validation, found on test."""

    rounds: tuple[int, ...]
    promised: Floats
    validated: Floats
    tested: Floats

    @property
    def misses(self) -> Floats:
        """Return tested less promised (T, N)."""
        return self.tested - self.promised


def promises(run: ReportedRun) -> Promises | None:
    """Return the promises of a run, or None where its method makes none."""
    records = [record for record in run.outcome.history if record.promised is not None]
    if not records:
        return None
    validated = [record.validated or record.promised or [] for record in records]
    return Promises(
        tuple(record.round for record in records),
        100 * np.array([record.promised for record in records]),
        100 * np.array(validated),
        100 * np.array([record.accuracies for record in records]),
    )


def misses_over_rounds(run: ReportedRun, made: Promises) -> Plot:
    """How far each client's tested accuracy is from what it was promised, over the rounds."""
    largest = np.nanmax(np.abs(made.misses), 1)
    kept = int((largest < MISS).sum())
    average = np.nanmean(np.abs(made.misses))
    caption = (
        f"In {kept} of {len(largest)} tested rounds nobody's reward was {MISS} points or more away from its promise; "
        f"over all rounds and clients it was {average:.1f} points away on average{seed_of(run)}."
    )
    return Plot(
        "promise", "Tested less promised", caption, "round", "points of accuracy",
        over_rounds(run, made.misses, made.rounds),
    )  # fmt: skip


def promise_sentences(run: ReportedRun, made: Promises, i: int, last: int = 10) -> str:
    """Return the sentences on the promise made to client i."""
    known = np.flatnonzero(~np.isnan(made.misses[:, i]))
    if not len(known):
        return "Nothing was promised to it."
    if known[-1] < len(made.rounds) - 1:
        return (
            f"It was removed after round {made.rounds[known[-1]]}: it keeps the model it had then, and nothing is "
            f"promised to it any more{seed_of(run)}."
        )
    promised, validated, tested = (
        np.nanmean(values[-last:, i]) for values in (made.promised, made.validated, made.tested)
    )
    worst = int(np.nanargmax(np.abs(made.misses[:, i])))
    miss = made.misses[worst, i]
    where = "above" if miss > 0 else "below"
    kept = samples_that_choose(run)
    interval = ""
    if kept:
        width = 100 * float(half_width(torch.tensor(validated / 100), kept))
        interval = f" What {kept:,} samples find holds to ± {width:.1f} points on new data, 95 times of 100."
    return (
        f"It was promised {promised:.1f} %: its reward has {validated:.1f} % on the validation set and {tested:.1f} % "
        f"on the test set, in the mean of the final {min(last, len(made.rounds))} tested rounds{seed_of(run)}. "
        f"The largest miss was {abs(miss):.1f} points {where} the promise, in round {made.rounds[worst]}.{interval}"
        f"{_fallen(run, made, i)}"
    )


def _fallen(run: ReportedRun, made: Promises, i: int) -> str:
    """Say where a client's model, which nobody can take back, is better than what it is promised in the end."""
    more = made.validated[-1, i] - made.promised[-1, i]
    if run.setting("method", "hands") == "submodels" or not more >= FALLEN:
        return ""
    return (
        f" In the last round its model is {more:.1f} points better on the validation set than promised: the promise "
        "has fallen, and what was handed out cannot be taken back."
    )


def round_by_round(made: Promises, i: int) -> list[list[str]]:
    """Return what client i was promised in each tested round, what was found, and the miss on the test set."""
    columns = (made.promised, made.validated, made.tested)
    return [
        [str(t), *(f"{values[k, i]:.1f} %" for values in columns), f"{made.misses[k, i]:+.1f} points".replace("-", "−")]
        for k, t in enumerate(made.rounds)
        if not np.isnan(made.misses[k, i])
    ]


def samples_that_choose(run: ReportedRun) -> int:
    """Return how many samples rewards are chosen on; 0 if unknown, or if the metric is not accuracy."""
    samples = int(run.facts.get("validation_samples", 0)) if run.metric == "accuracy" else 0
    if run.setting("method", "hands") == "trailing":
        return min(samples, int(run.setting("method", "samples") or samples))
    return (samples + 1) // 2 if run.setting("method", "fit") == "halves" else samples
