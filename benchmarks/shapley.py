"""Exact cosine Shapley values: from the Gram matrix, against coalitions that are summed over all parameters.

python -m benchmarks.shapley                              # 10 and 20 clients with a million parameters
python -m benchmarks.shapley --figure cgsv_figure1.svg    # Figure 1 of CGSV: errors of the approximations
"""

import argparse
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.measure import alternate
from cofair.contributions import cosine, shapley


def brute_force(updates: Tensor, weights: Tensor) -> Tensor:
    """Return Eq. 2 with a vector of all parameters for every coalition, as one would write it down."""
    parts = weights[:, None] * cosine.normalised(updates)
    whole = parts.sum(0)

    def utility(coalitions: Tensor) -> Tensor:
        values = [0.0]
        for members in coalitions[1:]:
            together = parts[members].sum(0)
            values.append(float(together @ whole / (together.norm() * whole.norm())))
        return torch.tensor(values, dtype=torch.float64)

    return shapley.exact(utility, len(updates))


def speed(clients: list[int], parameters: int, brute_clients: int, repeats: int) -> None:
    cpu = torch.device("cpu")
    for count in clients:
        updates, weights = torch.randn(count, parameters), torch.rand(count)
        candidates: dict[str, Callable[[], object]] = {
            "exact": partial(cosine.exact, updates, weights),
            "approximate": partial(cosine.approximate, updates, weights),
            "sampled": partial(cosine.sampled, updates, weights, torch.Generator()),
        }
        seconds = alternate(candidates, repeats, cpu)
        rows = ", ".join(f"{name} {1000 * value:.0f} ms" for name, value in seconds.items())
        print(f"{count} clients, {parameters:,} parameters: {rows}")
    updates, weights = torch.randn(brute_clients, parameters), torch.rand(brute_clients)
    pair: dict[str, Callable[[], object]] = {
        "gram": partial(cosine.exact, updates, weights),
        "brute force": partial(brute_force, updates, weights),
    }
    seconds = alternate(pair, max(1, repeats // 3), cpu)
    apart = float((cosine.exact(updates, weights) - brute_force(updates, weights)).abs().max())
    ratio = seconds["brute force"] / seconds["gram"]
    print(
        f"{brute_clients} clients: {ratio:.0f} × the rate of a sum over all parameters for each of "
        f"{2**brute_clients} coalitions ({seconds['brute force']:.1f} s), equal within {apart:.0e}"
    )


def error(clients: int, parameters: int, runs: int) -> tuple[float, float]:
    """Return the mean l1 errors of ψ and of 150 sampled orders, all divided by their sums (Figure 1 of CGSV)."""
    errors: tuple[list[float], list[float]] = ([], [])
    for run in range(runs):
        random = torch.Generator().manual_seed(run)
        updates = torch.randn(clients, parameters, generator=random)
        norms: Tensor = torch.linalg.vector_norm(updates, dim=1)  # as weights, they undo the normalisation
        phi = cosine.exact(updates, norms)
        others = cosine.approximate(updates, norms), cosine.sampled(updates, norms, random)
        for found, other in zip(errors, others, strict=True):
            found.append(float((phi / phi.sum() - other / other.sum()).abs().sum()))
    return statistics.fmean(errors[0]), statistics.fmean(errors[1])


def figure(path: Path, runs: int) -> None:
    from matplotlib import pyplot as plt

    sides = {
        "clients, D = 1000": {n: error(n, 1000, runs) for n in range(5, 11)},
        "parameters, N = 10": {d: error(10, d, runs) for d in (2**k for k in range(10, 16))},
    }
    drawing, axes = plt.subplots(1, 2, figsize=(8, 3), sharey=True, layout="constrained")
    for axis, (label, points) in zip(axes, sides.items(), strict=True):
        for k, name in enumerate(("ψ, the cosine (Eq. 3)", "150 sampled orders")):
            axis.plot(list(points), [point[k] for point in points.values()], "o-", label=name)
        axis.set_yscale("log")
        axis.set_xlabel(label)
        for at, point in points.items():
            print(f"{label.split(',')[0]} {at}: ψ {point[0]:.4f}, sampled {point[1]:.4f}")
    axes[1].set_xscale("log", base=2)
    axes[0].set_ylim(1e-3, 0.1)  # sampling all 120 orders of five clients is exact, and off the scale
    axes[0].set_ylabel("l1 error")
    axes[0].legend(loc="lower right")
    drawing.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="*", default=[10, 20])
    parser.add_argument("--parameters", type=int, default=1_000_000)
    parser.add_argument("--brute-clients", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--figure", type=Path, help="draw Figure 1 of CGSV to this file instead")
    parser.add_argument("--runs", type=int, default=40, help="runs a point of the figure is the mean of")
    given = parser.parse_args()
    if given.figure is not None:
        figure(given.figure, given.runs)
    else:
        speed(given.clients, given.parameters, given.brute_clients, given.repeats)


if __name__ == "__main__":
    main()
