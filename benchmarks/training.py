"""A local step of all clients: the vectorised engine against the loop, in one run.

python -m benchmarks.training                                    # this machine's CPU
python -m benchmarks.training --device cuda --clients 750 --model mlp
"""

import argparse
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.measure import alternate, matrix_rate
from cofair.engine.choose import arithmetic
from cofair.engine.exchange import ClientStates, Rewards
from cofair.engine.layout import Layout
from cofair.engine.loop import LoopEngine
from cofair.engine.problem import Engine, Problem
from cofair.engine.vectorised import VectorisedEngine
from cofair.engine.work import Work
from cofair.federation.federation import Federation
from cofair.models import build
from cofair.neurons.map import NeuronMap

MODELS = {"mlp": ("mlp", 3), "cnn": ("cnn-cifar", 3), "cnn-mnist": ("cnn-mnist", 1), "resnet": ("resnet18", 3)}
BATCH = 32


def problem(model: str, clients: int, device: torch.device) -> Problem:
    samples = 200
    name, channels = MODELS[model]
    side = 28 if channels == 1 else 32
    x, y = torch.randn(samples, channels, side, side), torch.randint(0, 10, (samples,))
    shares = [(torch.randint(0, samples, (64,)), torch.randint(0, 10, (64,))) for _ in range(clients)]
    test = Federation([(x, y)], test=(x, y)).test
    federation = Federation.from_pool(x, shares, test=test, validation=None, classes=10).to(device)
    module = build(name, x.shape[1:], 10).to(device)
    layout = Layout(module)
    return Problem(layout, NeuronMap.of(module, layout), federation, seed=0)


def operations(given: Problem) -> int:
    """Return the floating-point operations of one client's step: forward, and both gradients where needed."""
    module = given.layout.prototype
    x, y = given.federation.test.x[:BATCH], given.federation.test.y[:BATCH]
    with FlopCounterMode(display=False) as counter:
        torch.autograd.grad(F.cross_entropy(module(x), y), list(module.parameters()))
    return int(counter.get_total_flops())


def trainer(engine: Engine, given: Problem, steps: int) -> Callable[[], object]:
    start = given.layout.row(given.layout.prototype)
    rewards = Rewards(start, Work(steps=steps, batch_size=BATCH, clip=1.0))
    return lambda: engine.train(rewards, ClientStates(), 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--clients", type=int, nargs="*", default=[10, 100])
    parser.add_argument("--model", choices=MODELS, nargs="*", default=["mlp", "cnn"])
    parser.add_argument("--precision", choices=["float32", "tf32"], default="float32")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--loop", action=argparse.BooleanOptionalAction, default=True, help="time the loop too")
    parser.add_argument(
        "--graphs", action=argparse.BooleanOptionalAction, default=True, help="record steps as CUDA graphs on a GPU"
    )
    given = parser.parse_args()
    device = torch.device(given.device)
    with arithmetic(given.precision):
        rate = matrix_rate(device)
        print(f"matrix products here: {rate / 1e9:.0f} GFLOP/s ({given.precision}, {device})")
        for model in given.model:
            for clients in given.clients if model == "mlp" or device.type == "cuda" else given.clients[:1]:
                own = problem(model, clients, device)
                together = VectorisedEngine(own)
                together.graphs.usable &= given.graphs
                engines: dict[str, Engine] = {"vectorised": together}
                if given.loop:
                    engines["loop"] = LoopEngine(own)
                # a step is what a longer round takes more than a short one: starting a round is not part of it
                trainers = {
                    (name, steps): trainer(engine, own, steps)
                    for name, engine in engines.items()
                    for steps in (given.steps, 3 * given.steps)
                }
                seconds = alternate(trainers, given.repeats, device)
                steps = {
                    name: (seconds[name, 3 * given.steps] - seconds[name, given.steps]) / (2 * given.steps)
                    for name in engines
                }
                step = steps["vectorised"]
                share = clients * operations(own) / step / rate
                ratio = f"{steps['loop'] / step:.2f} × the loop's rate, " if given.loop else ""
                print(
                    f"{model}, {clients} clients: {ratio}{1000 * step:.2f} ms a step, "
                    f"{100 * share:.0f} % of the matrix-product rate"
                )


if __name__ == "__main__":
    main()
