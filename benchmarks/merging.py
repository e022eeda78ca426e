"""Two clients that merge what they hold under contract: against this nothing protects, and here is by how much.

    python -m benchmarks.merging

Digits, three scenes and seeds. The two clients that bring least, and the least with the middle one, put their models
together: the mean of both, and of every entry the value of whoever was sent it later (each knows when its entries
changed). Points of test accuracy above the better of the two.
"""

import argparse
import statistics

import torch
from torch import Tensor

from cofair.config.experiment import Experiment
from cofair.engine.choose import arithmetic
from cofair.runs.run import Run, prepare


def models_and_ages(run: Run) -> tuple[Tensor, Tensor]:
    """Run to the end; return the clients' models (N, D), and the round in which each entry changed last."""
    training, changed = run.start(), torch.zeros(0)
    before: Tensor | None = None
    while training is not None:
        training = run.advance(run.engine.train(training.rewards, training.clients, training.t))
        models = run.state.method.models
        if before is None:
            changed = torch.zeros(models.shape)
        else:
            changed = torch.where(models != before, float(run.round), changed)
        before = models
    assert before is not None
    return before, changed


def gains(run: Run, other: str) -> dict[str, float]:
    """Return by how many points two clients' merged models are better than the better of the two."""
    models, changed = models_and_ages(run)
    order = run.server.contributions.argsort()
    a, b = int(order[0]), int(order[1] if other == "next" else order[len(order) // 2])
    merged = {
        "mean": (models[a] + models[b]) / 2,
        "newest": torch.where(changed[a] >= changed[b], models[a], models[b]),
    }
    scores = run.setup.tester.score(torch.stack([models[a], models[b], *merged.values()])).metric
    best = float(scores[:2].max())
    return {name: 100 * (float(own) - best) for name, own in zip(merged, scores[2:], strict=True)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=100)
    given = parser.parse_args()
    print("| scene | who | mean of both | newest entries |\n| --- | --- | --- | --- |")
    for scene in ("pow", "cla", "dir"):
        for other in ("next", "middle"):
            found = []
            for seed in range(given.seeds):
                tables = {
                    "federation": {"scene": scene}, "training": {"rounds": given.rounds},
                    "run": {"seed": seed, "device": "cpu", "evaluate_every": given.rounds},
                    "method": {"name": "contract"},
                }  # fmt: skip
                with arithmetic("float32"):
                    found.append(gains(prepare(Experiment.from_dict(tables)), other))
            cells = [f"{statistics.fmean(one[name] for one in found):+.1f}" for name in found[0]]
            print(f"| {scene} | the least and the {other} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
