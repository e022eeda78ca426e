"""Submodels of one model scored on a validation set: all candidates together against one forward each.

python -m benchmarks.scoring
"""

import argparse

import torch

from benchmarks.measure import alternate, matrix_rate
from cofair.data.federation import Federation
from cofair.engine.choose import arithmetic
from cofair.engine.problem import Problem
from cofair.models import build
from cofair.models.parameters import Layout
from cofair.neurons.map import NeuronMap
from cofair.scoring.nested import prefix_masks
from cofair.scoring.scorer import Scorer


def paper_scorer(samples: int, device: torch.device) -> tuple[Scorer, torch.Tensor]:
    """Return a scorer of FedSAC's and FedRAC's perceptron on random images of CIFAR-10's size, and a model."""
    torch.manual_seed(0)
    x, y = torch.randn(samples, 3, 32, 32), torch.randint(0, 10, (samples,))
    federation = Federation([(x[:10], y[:10])], validation=(x, y), test=(x[:10], y[:10]), classes=10).to(device)
    module = build("mlp", (3, 32, 32), 10).to(device)
    layout = Layout(module)
    problem = Problem(layout, NeuronMap.of(module, layout), federation, seed=0)
    assert federation.validation is not None
    return Scorer(problem, federation.validation), layout.row(module)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--candidates", type=int, default=50)
    parser.add_argument("--samples", type=int, default=5000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--precision", choices=["float32", "tf32"], default="float32")
    given = parser.parse_args()
    device = torch.device(given.device)
    with arithmetic(given.precision):
        scorer, base = paper_scorer(given.samples, device)
        K = scorer.neurons().count
        counts = torch.linspace(K / given.candidates, K, given.candidates).round().long()
        prefixes = prefix_masks(torch.randperm(K), counts).to(device)
        any_masks = (torch.rand(given.candidates, K) < counts[:, None] / K).to(device)
        each = torch.cat([scorer.score(base, mask[None]).loss for mask in prefixes])
        error = float((scorer.score(base, prefixes).loss - each).abs().max())
        seconds = alternate(
            {
                # a scorer keeps what the first neurons of its last base fire: a copy is a base that it has not seen
                "prefixes": lambda: scorer.score(base.clone(), prefixes),
                "any masks": lambda: scorer.score(base.clone(), any_masks),
                "one by one": lambda: [scorer.score(base.clone(), mask[None]) for mask in prefixes],
            },
            given.repeats,
            device,
        )
        operations = 2 * given.samples * (3072 * 200 + given.candidates * (200 * 200 + 200 * 10))
        share = operations / seconds["any masks"] / matrix_rate(device)
        print(
            f"{given.candidates} submodels on {given.samples} samples, one forward each: "
            f"{1000 * seconds['one by one']:.0f} ms\n"
            f"  prefixes of one order: {seconds['one by one'] / seconds['prefixes']:.1f} × as fast, "
            f"{1000 * seconds['prefixes']:.0f} ms, losses equal within {error:.1e}\n"
            f"  any masks: {seconds['one by one'] / seconds['any masks']:.1f} × as fast, "
            f"{1000 * seconds['any masks']:.0f} ms, {100 * share:.0f} % of the matrix-product rate"
        )


if __name__ == "__main__":
    main()
