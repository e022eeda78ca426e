"""How submodels should be chosen that keep a promise: ways of choosing, read from the same models.

    python -m benchmarks.calibration                                    # digits, pow, cla and dir, five seeds
    python -m benchmarks.calibration --data fashion-mnist --scenes pow --seeds 1 --rounds 150

Contract is trained once for each scene and seed. In each of its last ten rounds all prefixes, two neurons apart, are
scored on the validation set, on each half of it and on the test set; then every way chooses among them.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from cofair import metrics
from cofair.engine.choose import arithmetic
from cofair.engine.scoring import Scorer
from cofair.methods.promises import EqualGain, expected_fairness
from cofair.runs.experiment import Experiment
from cofair.runs.loop import driven
from cofair.runs.prepare import Prepared, prepare

STEP = 2  # neurons between two prefixes
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Curves:
    """Accuracies (P,) of all prefixes of one round on validation, its halves and test; what clients bring (N,)."""

    validation: Floats
    even: Floats
    odd: Floats
    test: Floats
    brought: Floats

    @property
    def promised(self) -> Floats:
        """Return what equal gain promises each client (N,)."""
        return np.asarray(self.validation[-1] - (self.brought.max() - self.brought))

    def closest(self, accuracy: Floats, among: npt.NDArray[np.int64] | None = None) -> npt.NDArray[np.int64]:
        """Return which prefix each client gets; who brings most gets the last one."""
        places = np.arange(len(accuracy)) if among is None else among
        chosen = places[np.abs(accuracy[places][:, None] - self.promised).argmin(0)]
        return np.where(self.brought == self.brought.max(), len(accuracy) - 1, chosen)


Way = Callable[[Curves], tuple[npt.NDArray[np.int64], Floats]]  # the prefixes chosen, and what is told as validated


def every(apart: int) -> Way:
    def choose(curves: Curves) -> tuple[npt.NDArray[np.int64], Floats]:
        last = len(curves.validation) - 1
        chosen = curves.closest(curves.validation, np.unique([*range(apart - 1, last, apart), last]))
        return chosen, curves.validation[chosen]

    return choose


def mean_of_neighbours(width: int) -> Way:
    def choose(curves: Curves) -> tuple[npt.NDArray[np.int64], Floats]:
        padded = np.pad(curves.validation, width // 2, mode="edge")
        chosen = curves.closest(np.convolve(padded, np.ones(width) / width, "valid"))
        return chosen, curves.validation[chosen]

    return choose


def half_that_checks(curves: Curves) -> tuple[npt.NDArray[np.int64], Floats]:
    chosen = curves.closest(curves.even)
    return chosen, curves.odd[chosen]


WAYS: dict[str, Way] = {
    **{f"{STEP * apart} neurons apart": every(apart) for apart in (1, 2, 4, 8)},
    **{f"2 apart, mean of {width} neighbours": mean_of_neighbours(width) for width in (3, 5)},
    "2 apart, one half chooses, one checks": half_that_checks,
}


def curves_of(ready: Prepared) -> list[Curves]:
    """Train, and return the accuracies of all prefixes in the last ten rounds."""
    server, found = ready.server, []
    scorers = [server.validation, *server.validation.halves(), ready.tester]
    states: list[Any] = []
    for _ in driven(ready.experiment.method, ready, keep=lambda position: states.append(position.state)):
        pass
    for state in states[-10:]:
        order = state.record.argsort(stable=True)
        sizes = torch.tensor(sorted({*range(STEP, len(order), STEP), len(order)}))
        whole, even, odd, test = (_scored(scorer, state, order, sizes) for scorer in scorers)
        found.append(Curves(whole, even, odd, test, server.contributions.numpy()))
    return found


def _scored(scorer: Scorer, state: Any, order: torch.Tensor, sizes: torch.Tensor) -> Floats:
    return np.asarray(scorer.prefixes(state.parameters, order, sizes).metric.double().numpy())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="digits")
    parser.add_argument("--scenes", nargs="+", default=["pow", "cla", "dir"])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--hidden", type=int, nargs="+", default=[100, 100])
    given = parser.parse_args()
    for scene in given.scenes:
        runs, expected = [], []
        for seed in range(given.seeds):
            tables = {
                "federation": {"data": given.data, "scene": scene}, "model": {"hidden": given.hidden},
                "training": {"rounds": given.rounds}, "run": {"seed": seed, "device": "cpu", "evaluate_every": 1000},
                "method": {"name": "contract"},
            }  # fmt: skip
            with arithmetic("float32"):
                ready = prepare(Experiment.from_dict(tables))
                runs.append(curves_of(ready))
            brought, server = ready.server.contributions, ready.server
            samples = len(server.validation.samples), server.tested_on
            expected.append(expected_fairness(EqualGain(), brought, float(brought.max()), *samples) or np.nan)
        print(f"{given.data}, {scene}: γ {np.mean(expected):.1f} was to be expected")
        for name, way in WAYS.items():
            rows = np.array([_judged(curves, *way(curves)) for run in runs for curves in run])
            gamma, miss, worst, fit, off = rows.mean(0)
            print(
                f"  {name:40} γ {gamma:.2f}  miss {miss:.2f}  largest {worst:.2f}  validated less promised {fit:.2f}  "
                f"validated less tested {off:+.2f}"
            )


def _judged(curves: Curves, chosen: npt.NDArray[np.int64], validated: Floats) -> list[float]:
    tested, promised = curves.test[chosen], curves.promised
    misses = 100 * np.abs(tested - promised)
    fit, off = 100 * np.abs(validated - promised).mean(), 100 * (validated - tested).mean()
    return [metrics.fairness(curves.brought, tested) or np.nan, misses.mean(), misses.max(), fit, off]


if __name__ == "__main__":
    main()
