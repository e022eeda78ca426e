"""Submodels of one model scored on a validation set: all candidates together against one forward each.

python -m benchmarks.scoring
"""

import argparse

import torch

from benchmarks.measure import alternate, matrix_rate
from cofair.engine.choose import arithmetic
from cofair.engine.layout import Layout
from cofair.engine.problem import Problem
from cofair.engine.scoring import Scorer
from cofair.federation.federation import Federation
from cofair.models import build
from cofair.neurons.map import NeuronMap


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--candidates", type=int, default=50)
    parser.add_argument("--samples", type=int, default=5000)
    parser.add_argument("--precision", choices=["float32", "tf32"], default="float32")
    given = parser.parse_args()
    device = torch.device(given.device)
    with arithmetic(given.precision):
        x, y = torch.randn(given.samples, 3, 32, 32), torch.randint(0, 10, (given.samples,))
        federation = Federation([(x[:10], y[:10])], validation=(x, y), test=(x[:10], y[:10]), classes=10).to(device)
        module = build("mlp", (3, 32, 32), 10).to(device)
        layout = Layout(module)
        problem = Problem(layout, NeuronMap.of(module, layout), federation, seed=0)
        assert problem.neurons is not None
        assert federation.validation is not None
        scorer = Scorer(problem, federation.validation)
        base = layout.row(module)
        kept = torch.linspace(1, problem.neurons.count, given.candidates).long()
        masks = (torch.arange(problem.neurons.count) < kept[:, None]).to(device)

        def together() -> object:
            return scorer.score(base, masks)

        def one_by_one() -> object:
            return [scorer.score(base, mask[None]) for mask in masks]

        seconds = alternate({"together": together, "one by one": one_by_one}, 5, device)
        operations = 2 * given.samples * (3072 * 200 + given.candidates * (200 * 200 + 200 * 10))
        share = operations / seconds["together"] / matrix_rate(device)
        ratio = seconds["one by one"] / seconds["together"]
        print(
            f"{given.candidates} submodels on {given.samples} samples: {ratio:.1f} × one forward each, "
            f"{1000 * seconds['together']:.0f} ms, {100 * share:.0f} % of the matrix-product rate"
        )


if __name__ == "__main__":
    main()
