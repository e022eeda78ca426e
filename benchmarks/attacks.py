"""What attacks do to each method, and what defences cost: digits, scene pow, 10 clients.

python -m benchmarks.attacks                                 # every method, every attack
python -m benchmarks.attacks --methods fedsac fedrac --seeds 5 --rounds 200
python -m benchmarks.attacks --defences --methods fedavg fedsac fedrac   # with and without an attack

A cell reads γ among the honest / points of accuracy that they lose against no attack, on average / best reward of an
attacker in percent, with ! where, in any seed, it is not below the worst reward of an honest client. Means over
seeds, by the rule `last`. "diverged": in some seed the attack made training diverge, and the run ended.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch

from benchmarks.measure import prepare_all
from cofair import methods, metrics
from cofair.config.experiment import Experiment
from cofair.errors import RunError
from cofair.runs.run import drive

FREE_RIDERS = ("nothing", "noise", "echo", "follow")
ATTACKS = (*FREE_RIDERS, "label_flip", "sign_flip", "scale", "nan", "copy", "sybil", "defect", "defect, measured again")
SINGLE = ("copy", "sybil")  # one attacker; three of the others
DEFENCES: dict[str, dict[str, Any]] = {
    "none": {},
    "norm_bound = 2": {"norm_bound": 2.0},
    "threshold = 1/3": {"threshold": 1 / 3},
    "aggregate = trimmed, 0.3": {"aggregate": "trimmed", "trim": 0.3},
    "aggregate = median": {"aggregate": "median"},
    "contribution.every": {},
}
DEFENDED_AGAINST = ("nothing", "sign_flip", "scale")


@dataclass(frozen=True)
class Seen:
    """What a run came to: γ among the honest, their rewards by name, and the attackers' best."""

    fairness: float | None
    honest: dict[str, float]
    attacker: float | None
    diverged: bool = False


def tables(attack: str, seed: int, given: argparse.Namespace, defence: str = "none") -> dict[str, Any]:
    found: dict[str, Any] = {
        "training": {"rounds": given.rounds},
        "run": {"seed": seed, "evaluate_every": given.rounds, "device": "cpu"},
        "defence": DEFENCES[defence],
        "contribution": {},
    }
    if attack != "none":
        found["attack"] = {"name": attack.partition(",")[0], "clients": 1 if attack in SINGLE else 3}
    if attack.startswith("defect"):
        found["attack"]["from_round"] = given.rounds // 2 + 1
    if attack.endswith("measured again") or defence == "contribution.every":
        found["contribution"] = {"every": given.rounds // 4}
    return found


def run(job: tuple[str, int, str], chosen: Sequence[str], given: argparse.Namespace) -> dict[str, Seen]:
    """Run every method once under an attack and a defence."""
    torch.set_num_threads(1)
    attack, seed, defence = job
    experiment = Experiment.from_dict(tables(attack, seed, given, defence))
    made = [methods.make(name, {}) for name in chosen]
    if experiment.defence.aggregate != "mean":
        made = [method for method in made if method.averages]
    runs = prepare_all(experiment, made)
    names, acting = runs[0].problem.federation.names, runs[0].setup.attack
    cheats = () if acting is None else acting.attackers
    honest = [i for i in range(len(names)) if i not in cheats]
    c = runs[0].brought.contributions[honest].tolist()
    seen: dict[str, Seen] = {}
    for method, run in zip(made, runs, strict=True):
        try:
            final = [record.accuracies for record in drive(run).records][-10:]
        except RunError:
            seen[method.name] = Seen(None, {}, None, diverged=True)
            continue
        gammas = [metrics.fairness(c, [row[i] for i in honest]) for row in final]
        known = [gamma for gamma in gammas if gamma is not None]
        mean = [statistics.fmean(column) for column in zip(*final, strict=True)]
        seen[method.name] = Seen(
            statistics.fmean(known) if known else None,
            {names[i]: mean[i] for i in honest},
            max((mean[i] for i in cheats), default=None),
        )
    return seen


def cell(seen: Sequence[Seen], without: Sequence[Seen]) -> str:
    """Return γ among the honest / accuracy lost / best attacker."""
    if any(one.diverged for one in seen):
        return "diverged"
    known = [one.fairness for one in seen if one.fairness is not None]
    lost = 100 * statistics.fmean(
        plain.honest[name] - value
        for one, plain in zip(seen, without, strict=True)
        for name, value in one.honest.items()
    )
    parts = [f"{statistics.fmean(known):.1f}" if known else "–", f"{lost:+.1f}"]
    best = [one.attacker for one in seen if one.attacker is not None]
    if best:
        equal = any(one.attacker is not None and one.attacker >= min(one.honest.values()) for one in seen)
        parts.append(f"{100 * statistics.fmean(best):.0f}{' !' if equal else ''}")
    return " / ".join(parts)


def show(found: Mapping[tuple[str, int, str], dict[str, Seen]], rows: Sequence[tuple[str, str]], chosen: Sequence[str],
         seeds: int, head: str) -> None:  # fmt: skip
    print(f"\n| {head} | {' | '.join(chosen)} |\n| --- |{' --- |' * len(chosen)}")
    for attack, defence in rows:
        cells = []
        for name in chosen:
            own = [found[attack, seed, defence].get(name) for seed in range(seeds)]
            plain = [found["none", seed, "none"][name] for seed in range(seeds)]
            cells.append(cell([one for one in own if one is not None], plain) if all(own) else "")
        label = attack if head == "attack" else f"{defence}, {'nobody attacks' if attack == 'none' else attack}"
        print(f"| {label} | {' | '.join(cells)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    every = [name for name in methods.names() if name != "standalone"]
    parser.add_argument("--methods", nargs="*", default=every, choices=every)
    parser.add_argument("--attacks", nargs="*", choices=ATTACKS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--defences", action="store_true", help="what defences change, instead of all attacks")
    parser.add_argument("--workers", type=int, default=1)
    given = parser.parse_args()
    began = time.perf_counter()
    attacks = ["none", *(given.attacks or (DEFENDED_AGAINST if given.defences else ATTACKS))]
    rows = [(attack, defence) for attack in attacks for defence in (DEFENCES if given.defences else ("none",))]
    jobs = [(attack, seed, defence) for attack, defence in rows for seed in range(given.seeds)]
    with ProcessPoolExecutor(given.workers) as pool:
        found = {}
        for job, seen in zip(jobs, pool.map(partial(run, chosen=given.methods, given=given), jobs), strict=True):
            found[job] = seen
            print(*job, json.dumps({name: asdict(one) for name, one in seen.items()}), file=sys.stderr, flush=True)
    print(f"digits, pow, 10 clients, {given.rounds} rounds, {given.seeds} seeds, {time.perf_counter() - began:.0f} s")
    show(found, rows, given.methods, given.seeds, "defence" if given.defences else "attack")


if __name__ == "__main__":
    main()
