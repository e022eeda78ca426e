"""How should a client choose among the models that it can make? Rules, by what it holds in the end.

    python -m benchmarks.own_choice

Digits, scenes pow, cla and dir, 60 rounds, seeds 10 to 12 and five methods. Every client judges what it can make on
samples that it holds back, counting classes alike; the rules differ in what they take training on its own data to cost:
a share of what the model knew of classes that the client lacks. For each rule: the mean accuracy on the test set of
what clients choose, less that of what is delivered, in points; then that of the best of all they made, which no client
can know.
"""

import statistics
from collections.abc import Callable

from cofair.config.experiment import Experiment
from cofair.runs.holding import all_made, forgetful
from cofair.runs.own_choice import choice
from cofair.runs.run import drive, prepare

SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
METHODS: tuple[dict[str, object], ...] = (
    {"name": "fedsac"}, {"name": "fedrac"}, {"name": "fedave"}, {"name": "contract"},
    {"name": "contract", "hands": "submodels"},
)  # fmt: skip
SEEDS = (10, 11, 12)


def gains(scene: str, method: dict[str, object], seed: int) -> list[float]:
    """Return what clients gain by each rule, in points on average, and at most."""
    tables = {
        "federation": {"scene": scene}, "training": {"rounds": 60}, "method": method,
        "run": {"seed": seed, "held": True, "evaluate_every": 60},
    }  # fmt: skip
    run = drive(prepare(Experiment.from_dict(tables)))
    assert run.delivered is not None
    assert run.state.kept is not None
    made = all_made(run.setup, run.state.kept, run.delivered)
    assert made.judged is not None
    assert made.forgetting is not None
    chosen = [choice(forgetful(made.judged, share * made.forgetting)) for share in SHARES]

    def gain(of: Callable[[int], float]) -> float:
        own = made.tested["delivered"]
        return 100 * statistics.fmean(of(i) - float(own[i]) for i in range(len(own)))

    by_rule = [gain(lambda i, names=names: float(made.tested[names[i]][i])) for names in chosen]  # type: ignore[misc]
    return [*by_rule, gain(lambda i: float(made.tested["most"][i]))]


def main() -> None:
    print("| scene | method | " + " | ".join(f"{share:g}" for share in SHARES) + " | best |")
    print("| --- | --- |" + " --- |" * (len(SHARES) + 1))
    every = []
    for scene in ("pow", "cla", "dir"):
        for method in METHODS:
            means = [statistics.fmean(own) for own in zip(*(gains(scene, method, s) for s in SEEDS), strict=True)]
            every.append(means)
            print(
                f"| {scene} | {' '.join(map(str, method.values()))} | " + " | ".join(f"{m:+.1f}" for m in means) + " |"
            )
    print("| mean | | " + " | ".join(f"{statistics.fmean(own):+.1f}" for own in zip(*every, strict=True)) + " |")


if __name__ == "__main__":
    main()
