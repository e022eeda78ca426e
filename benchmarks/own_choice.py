"""How should a client choose among the models that it can make? Rules, by what it holds in the end.

    python -m benchmarks.own_choice                        # digits, 60 rounds
    python -m benchmarks.own_choice --data fashion-mnist --rounds 300 --scenes dir --seeds 10

Five methods. Every client judges what it can make on samples that it holds back, counting classes alike as far as it
has samples of them. The rules differ in how many samples of a class count as much as what is expected without any
(doubt), and in what a client takes training on its own data to cost: a share of what the model knew of what the client
cannot see (forgotten). For each rule: the mean accuracy on the test set of what clients choose, less that of what is
delivered, in points; then that of the best of all they made, which no client can know.
"""

import argparse
import statistics

from cofair.config.experiment import Experiment
from cofair.runs.holding import all_made, forgetful
from cofair.runs.own_choice import choice
from cofair.runs.run import drive, prepare

RULES = ((0.0, 0.0), (0.0, 0.5), (0.0, 1.0), (1.0, 0.5), (2.0, 0.5), (4.0, 0.5))  # doubt, forgotten
METHODS: tuple[dict[str, object], ...] = (
    {"name": "fedsac"}, {"name": "fedrac"}, {"name": "fedave"}, {"name": "contract"},
    {"name": "contract", "hands": "submodels"},
)  # fmt: skip
TRAINING: dict[str, object] = {"steps": 5, "lr": 0.03, "batch_size": 32}  # of images; digits have the defaults


def gains(data: str, rounds: int, scene: str, method: dict[str, object], seed: int) -> list[float]:
    """Return what clients gain by each rule, in points on average, and at most."""
    tables = {
        "federation": {"data": data, "scene": scene}, "method": method,
        "training": {"rounds": rounds} | ({} if data == "digits" else TRAINING),
        "run": {"seed": seed, "held": True, "evaluate_every": rounds, "device": "cpu"},
    }  # fmt: skip
    run = drive(prepare(Experiment.from_dict(tables)))
    assert run.delivered is not None
    assert run.state.kept is not None
    found = []
    for doubt in dict.fromkeys(doubt for doubt, _ in RULES):
        made = all_made(run.setup, run.state.kept, run.delivered, doubt)
        own = made.tested["delivered"]
        assert made.judged is not None
        assert made.forgetting is not None
        for share in (share for other, share in RULES if other == doubt):
            names = choice(forgetful(made.judged, share * made.forgetting))
            found.append(statistics.fmean(float(made.tested[name][i] - own[i]) for i, name in enumerate(names)))
    found.append(float((made.tested["most"] - own).mean()))
    return [100 * gain for gain in found]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="digits")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--scenes", nargs="+", default=["pow", "cla", "dir"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[10, 11])
    given = parser.parse_args()
    heads = [f"doubt {doubt:g}, forgotten {share:g}" for doubt, share in RULES]
    print(f"| scene | method | {' | '.join(heads)} | best |")
    print("| --- | --- |" + " --- |" * (len(RULES) + 1))
    every = []
    for scene in given.scenes:
        for method in METHODS:
            found = [gains(given.data, given.rounds, scene, method, seed) for seed in given.seeds]
            means = [statistics.fmean(own) for own in zip(*found, strict=True)]
            every.append(means)
            cells = " | ".join(f"{mean:+.1f}" for mean in means)
            print(f"| {scene} | {' '.join(map(str, method.values()))} | {cells} |", flush=True)
    print("| mean | | " + " | ".join(f"{statistics.fmean(own):+.1f}" for own in zip(*every, strict=True)) + " |")


if __name__ == "__main__":
    main()
