"""How submodels should be chosen that keep a promise: ways of choosing, read from the same models.

    python -m benchmarks.calibration                                    # digits, pow, cla and dir, five seeds
    python -m benchmarks.calibration --data cifar10 --seeds 10 --rounds 500 --steps 5 --lr 0.03 --hidden 200 200

Contract is trained once for each scene and seed, without a margin. In each of its last ten rounds all prefixes of its
order of neurons are scored on the validation set, on each half of it and on the test set; then every way chooses among
them. Misses leave out who gets everything.
"""

import argparse
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sklearn.isotonic import IsotonicRegression

from cofair import metrics
from cofair.config.experiment import Experiment
from cofair.engine.choose import arithmetic
from cofair.methods.contract import Contract
from cofair.methods.contract_submodels import RollingSubmodels
from cofair.methods.rules.promises import EqualGain, Inside, expected_fairness
from cofair.runs.run import Run, prepare
from cofair.scoring.scorer import Scorer

Floats = npt.NDArray[np.float64]
Sizes = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Curves:
    """Accuracies (K,) of all prefixes of one round on validation, its halves and test; what clients bring (N,)."""

    validation: Floats
    even: Floats
    odd: Floats
    test: Floats
    brought: Floats
    samples: int

    @property
    def promised(self) -> Floats:
        """Return what equal gain promises each client (N,)."""
        return np.asarray(self.validation[-1] - (self.brought.max() - self.brought))

    @property
    def best(self) -> npt.NDArray[np.bool_]:
        """Tell who brings most (N,)."""
        return np.asarray(self.brought == self.brought.max())

    def closest(self, accuracy: Floats, among: Sizes | None = None) -> Sizes:
        """Return which prefix each client gets; who brings most gets the last one."""
        places = np.arange(len(accuracy)) if among is None else among
        chosen = places[np.abs(accuracy[places][:, None] - self.promised).argmin(0)]
        return np.where(self.best, len(accuracy) - 1, chosen)


Way = Callable[[Curves], tuple[Sizes, Floats, Floats]]  # the prefixes chosen, what is validated, what is promised


def on(accuracies: Callable[[Curves], Floats], apart: int = 1) -> Way:
    def choose(curves: Curves) -> tuple[Sizes, Floats, Floats]:
        last = len(curves.validation) - 1
        chosen = curves.closest(accuracies(curves), np.unique([*range(apart - 1, last, apart), last]))
        return chosen, curves.validation[chosen], curves.promised

    return choose


def mean_of_neighbours(width: int) -> Way:
    def smoothed(curves: Curves) -> Floats:
        padded = np.pad(curves.validation, width // 2, mode="edge")
        return np.convolve(padded, np.ones(width) / width, "valid")

    return on(smoothed)


def rising(curves: Curves) -> Floats:
    sizes = np.arange(len(curves.validation))
    return np.asarray(IsotonicRegression().fit_transform(sizes, curves.validation))


def half_that_checks(curves: Curves) -> tuple[Sizes, Floats, Floats]:
    chosen = curves.closest(curves.even)
    return chosen, curves.odd[chosen], curves.promised


def mean_of_halves(curves: Curves) -> tuple[Sizes, Floats, Floats]:
    chosen = (curves.closest(curves.even) + curves.closest(curves.odd)) // 2
    return chosen, curves.validation[chosen], curves.promised


def inside(margin: float) -> Way:
    def choose(curves: Curves) -> tuple[Sizes, Floats, Floats]:
        brought, whole = torch.from_numpy(curves.brought), float(curves.validation[-1])
        stated = Inside(EqualGain(), margin, curves.samples)(brought, whole).numpy()
        lower, upper = metrics.alpha_bounds(curves.brought, stated)
        accuracy = curves.validation[:, None]
        owed_inside = (stated > lower) & (stated <= upper)
        outside = owed_inside & ~((accuracy > lower) & (accuracy <= upper))
        chosen = (np.abs(accuracy - stated) + outside).argmin(0)
        return np.where(curves.best, len(accuracy) - 1, chosen), accuracy[chosen, 0], stated

    return choose


WAYS: dict[str, Way] = {
    **{f"{apart} apart": on(lambda curves: curves.validation, apart) for apart in (1, 2, 4, 8, 16)},
    **{f"mean of {width} neighbours": mean_of_neighbours(width) for width in (3, 5)},
    "a rising curve fitted first": on(rising),
    "one half chooses, the other checks": half_that_checks,
    "sizes chosen on each half, their mean": mean_of_halves,
    **{f"inside the band, margin {margin:g}": inside(margin) for margin in (0, 0.5, 1, 1.5)},
}


def curves_of(run: Run) -> list[Curves]:
    """Train, and return the accuracies of all prefixes in the last ten rounds."""
    server, method, states = run.server, run.experiment.method, deque[Any](maxlen=10)
    assert isinstance(method, Contract)
    submodels = method.mechanism
    assert isinstance(submodels, RollingSubmodels)
    training = run.start()
    while training is not None:  # the method has one training per round, after which its state is the round's
        training = run.advance(run.engine.train(training.rewards, training.clients, training.t))
        states.append(run.state.method)
    scorers = [server.validation, *server.validation.halves(), run.setup.tester]
    brought, samples = server.contributions.numpy(), len(server.validation.samples)
    found = []
    for state in states:
        order = submodels.order(server, state.parameters, state.frequency, 0)
        whole, even, odd, test = (_scored(scorer, state.parameters, order) for scorer in scorers)
        found.append(Curves(whole, even, odd, test, brought, samples))
    return found


def _scored(scorer: Scorer, parameters: torch.Tensor, order: torch.Tensor) -> Floats:
    sizes = torch.arange(1, len(order) + 1)
    return np.asarray(scorer.prefixes(parameters, order, sizes).metric.double().numpy())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="digits")
    parser.add_argument("--scenes", nargs="+", default=["pow", "cla", "dir"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--lr", type=float, default=0.03)
    parser.add_argument("--hidden", type=int, nargs="+", default=[100, 100])
    given = parser.parse_args()
    for scene in given.scenes:
        runs, expected = [], []
        for seed in given.seeds:
            tables = {
                "federation": {"data": given.data, "scene": scene}, "model": {"hidden": given.hidden},
                "training": {"rounds": given.rounds, "steps": given.steps, "lr": given.lr},
                "run": {"seed": seed, "device": "cpu", "evaluate_every": given.rounds},
                "method": {"name": "contract", "hands": "submodels", "margin": 0.0},
            }  # fmt: skip
            with arithmetic("float32"):
                ready = prepare(Experiment.from_dict(tables))
                runs.append(curves_of(ready))
            brought, server = ready.server.contributions, ready.server
            samples = len(server.validation.samples), server.tested_on
            expected.append(expected_fairness(EqualGain(), brought, float(brought.max()), *samples) or np.nan)
        print(f"{given.data}, {scene}: γ {np.mean(expected):.1f} was to be expected")
        for name, way in WAYS.items():
            print(f"  {name:40} {_judged([curves for run in runs for curves in run], way)}", flush=True)


def _judged(rounds: Sequence[Curves], way: Way) -> str:
    """Return what came of a way of choosing, the means over rounds."""
    rows = []
    for curves in rounds:
        chosen, validated, promised = way(curves)
        tested, others = curves.test[chosen], ~curves.best
        misses = 100 * np.abs(tested - promised)[others]
        fit, off = 100 * np.abs(validated - promised)[others].mean(), 100 * (validated - tested)[others].mean()
        fairness, rate = metrics.fairness(curves.brought, tested) or np.nan, metrics.rate(curves.brought, tested)
        rows.append([fairness, misses.mean(), misses.max(), rate, fit, off])
    gamma, miss, worst, rate, fit, off = np.mean(rows, 0)
    told = f"γ {gamma:.2f}  miss {miss:.2f}  largest {worst:.2f}  rate {rate:.3f}"
    return f"{told}  validated less promised {fit:.2f}  validated less tested {off:+.2f}"


if __name__ == "__main__":
    main()
