"""Importance of all neurons by removal: exact and together, against one forward a neuron; and its first order.

python -m benchmarks.importance
"""

import argparse

import torch

from benchmarks.measure import alternate
from benchmarks.scoring import paper_scorer
from cofair.scoring.importance import by_removal, taylor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--samples", type=int, default=5000)
    parser.add_argument("--timed", type=int, default=40, help="neurons removed one by one; their time is scaled to all")
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    device = torch.device(given.device)
    scorer, base = paper_scorer(given.samples, device)
    K = scorer.neurons().count
    without_one = ~torch.eye(K, dtype=torch.bool, device=device)
    some = torch.linspace(0, K - 1, given.timed).long()

    def losses(mask: torch.Tensor | None) -> torch.Tensor:
        each = scorer.score(base, mask, per_sample=True).losses
        assert each is not None
        return each.double().mean(1)

    def one_by_one() -> torch.Tensor:
        return torch.cat([losses(without_one[[k]]) for k in some.tolist()])

    exact = by_removal(scorer, base)
    error = (exact[some.to(device)] - (one_by_one() - losses(None))).abs().max() / exact.abs().max()
    seconds = alternate(
        {
            "removal": lambda: by_removal(scorer, base),
            "taylor": lambda: taylor(scorer, base),
            "one by one": one_by_one,
        },
        given.repeats,
        device,
    )
    each = seconds["one by one"] * K / given.timed
    print(
        f"{K} neurons on {given.samples} samples, one forward each: {each:.2f} s (from {given.timed} of them)\n"
        f"  by removal: {each / seconds['removal']:.0f} × as fast, {1000 * seconds['removal']:.0f} ms, "
        f"equal within {float(error):.1e} of the largest\n"
        f"  first order: {each / seconds['taylor']:.0f} × as fast, {1000 * seconds['taylor']:.0f} ms, "
        f"correlation with removal {float(torch.corrcoef(torch.stack([exact, taylor(scorer, base)]))[0, 1]):.3f}"
    )


if __name__ == "__main__":
    main()
