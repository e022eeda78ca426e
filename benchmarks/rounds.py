"""A whole round, and what the server's part of it costs.

    python -m benchmarks.rounds                  # made-up images of CIFAR-10's shape
    python -m benchmarks.rounds --device cuda

FedRAC and contract: 10 clients of scene pow, 5 local steps, prefixes scored on 5,000 samples (FedRAC: 50), all rewards
tested on 10,000 images. The server's work is what it does between the uploads and the test: it learns in every round,
and makes the models that it delivers in each that is tested, by default every fifth.
CGSV and FedAVE: 3 local epochs; the server's step against the clients' training.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.measure import alternate
from cofair.config.experiment import Experiment
from cofair.data.federation import Federation, Samples
from cofair.data.scenes import power_law_sizes
from cofair.engine.choose import arithmetic
from cofair.engine.phases import TRAIN
from cofair.engine.protocol import ClientStates
from cofair.runs.run import Run, prepare
from cofair.runs.setup import Parts

SIGNAL = (
    0.1  # how far classes lie apart: a model learns within a few rounds, so that clients are owed different submodels
)


def prepared(method: str, training: dict[str, Any], device: str) -> Run:
    sizes = power_law_sizes(10, 2000)
    total = sum(sizes)
    typical = SIGNAL * torch.randn(10, 3, 32, 32)

    def images(y: torch.Tensor) -> torch.Tensor:
        return torch.randn(len(y), 3, 32, 32).add_(typical[y])

    y, held, kept = (torch.randint(0, 10, (count,)) for count in (total, 5_000, 10_000))
    x = images(y)
    ends = torch.tensor(sizes).cumsum(0).tolist()
    shares = [(torch.arange(end - size, end), y[end - size : end]) for size, end in zip(sizes, ends, strict=True)]
    validation, test = Samples(images(held), held), Samples(images(kept), kept)
    federation = Federation.from_pool(x, shares, test=test, validation=validation, classes=10)
    tables = {"training": training, "method": {"name": method}, "run": {"device": device}}
    contributions = torch.linspace(0.28, 0.41, 10, dtype=torch.float64)
    return prepare(Experiment.from_dict(tables), Parts(federation, contributions=contributions))


def whole_round(ready: Run, served: dict[str, list[float]]) -> Callable[[], object]:
    """Return a function that goes on by one round, with its test, and notes the seconds of the server's own work."""
    method, server = ready.experiment.method, ready.server
    memory: dict[str, Any] = {"state": method.start(server), "t": 1}

    def go_on() -> None:
        t, state = memory["t"], memory["state"]
        rewards = method.rewards(server, state, t, TRAIN)
        uploads, _ = ready.engine.train(rewards, ClientStates(), t)
        _wait(ready)
        began = time.perf_counter()
        state = method.learn(server, state, rewards, uploads, t, TRAIN)
        _wait(ready)
        learned = time.perf_counter()
        delivered = method.delivered(server, state)
        _wait(ready)
        served["learning"].append(learned - began)
        served["delivering"].append(time.perf_counter() - learned)
        ready.setup.tester.score(delivered.parameters, delivered.neuron_masks)
        memory.update(state=state, t=t + 1)

    return go_on


def _wait(ready: Run) -> None:
    if ready.problem.device.type == "cuda":
        torch.cuda.synchronize()


def server_share(ready: Run, rounds: int) -> float:
    """Return the time of `learn` as a share of the time of training."""
    method, server = ready.experiment.method, ready.server
    state = method.start(server)
    training, learning = [], []
    for t in range(1, rounds + 1):
        began = time.perf_counter()
        rewards = method.rewards(server, state, t, TRAIN)
        uploads, _ = ready.engine.train(rewards, ClientStates(), t)
        trained = time.perf_counter()
        state = method.learn(server, state, rewards, uploads, t, TRAIN)
        _wait(ready)
        training.append(trained - began)
        learning.append(time.perf_counter() - trained)
    return sorted(learning)[rounds // 2] / sorted(training)[rounds // 2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--repeats", type=int, default=7)
    given = parser.parse_args()
    device = torch.device(given.device)
    with arithmetic("float32"):
        both = {name: prepared(name, {"steps": 5, "rounds": 1000}, given.device) for name in ("fedrac", "contract")}
        served: dict[str, dict[str, list[float]]] = {name: {"learning": [], "delivering": []} for name in both}
        rounds = {name: whole_round(ready, served[name]) for name, ready in both.items()}
        seconds = alternate(rounds, given.repeats, device)
        own: dict[str, float] = {}
        for name, value in seconds.items():
            learning, delivering = (1000 * statistics.fmean(values[1:]) for values in served[name].values())
            own[name] = learning + delivering / both[name].experiment.run.evaluate_every
            print(f"{name}: {1000 * value:.0f} ms a round with its test; the server learns for {learning:.0f} ms")
            print(f"{' ' * len(name)}  and makes what it delivers in {delivering:.0f} ms")
        print(f"contract: {own['contract'] / own['fedrac']:.2f} times the server's work of FedRAC")
        for name in ("cgsv", "fedave"):
            share = server_share(prepared(name, {"epochs": 3, "rounds": 1000}, given.device), 3)
            print(f"{name}: the server's step takes {100 * share:.0f} % of the clients' training")


if __name__ == "__main__":
    main()
