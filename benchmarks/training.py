"""A local step of all clients: the vectorised engine against the loop, in one run.

python -m benchmarks.training                                    # this machine's CPU
python -m benchmarks.training --device cuda --clients 750 --model mlp
python -m benchmarks.training --device cuda --clients 60 --model textcnn --batch 128
"""

import argparse
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.measure import alternate, matrix_rate
from cofair.data.federation import Federation
from cofair.engine.choose import arithmetic
from cofair.engine.loop_engine import LoopEngine
from cofair.engine.problem import Engine, Problem
from cofair.engine.protocol import ClientStates, Rewards
from cofair.engine.vectorised import VectorisedEngine
from cofair.engine.work import Work
from cofair.models import build
from cofair.models.parameters import Layout
from cofair.neurons.map import NeuronMap

# the model's name, and the shape of a sample; texts have so many words, as MR's
MODELS: dict[str, tuple[str, tuple[int, ...]]] = {
    "mlp": ("mlp", (3, 32, 32)),
    "cnn": ("cnn-cifar", (3, 32, 32)),
    "cnn-mnist": ("cnn-mnist", (1, 28, 28)),
    "resnet": ("resnet18", (3, 32, 32)),
    "textcnn": ("textcnn", (59,)),
}
WORDS = 18_765
SAMPLES = 512
BATCH = 32


def problem(model: str, clients: int, device: torch.device, batch: int = BATCH) -> Problem:
    name, shape = MODELS[model]
    is_text = name == "textcnn"
    x = torch.randint(0, WORDS, (SAMPLES, *shape)) if is_text else torch.randn(SAMPLES, *shape)
    y, each = torch.randint(0, 10, (SAMPLES,)), 2 * batch
    shares = [(torch.randint(0, SAMPLES, (each,)), torch.randint(0, 10, (each,))) for _ in range(clients)]
    test = Federation([(x, y)], test=(x, y)).test
    federation = Federation.from_pool(x, shares, test=test, validation=None, classes=10).to(device)
    module = build(name, x.shape[1:], 10, **({"vocabulary": WORDS} if is_text else {})).to(device)
    layout = Layout(module)
    return Problem(layout, NeuronMap.of(module, layout), federation, seed=0)


def operations(given: Problem, batch: int) -> int:
    """Return the floating-point operations of one client's step: forward, and both gradients where needed."""
    module = given.layout.prototype
    x, y = given.federation.test.x[:batch], given.federation.test.y[:batch]
    with FlopCounterMode(display=False) as counter:
        torch.autograd.grad(F.cross_entropy(module(x), y), list(module.parameters()))
    return int(counter.get_total_flops())


def trainer(engine: Engine, given: Problem, steps: int, batch: int = BATCH) -> Callable[[], object]:
    start = given.layout.row(given.layout.prototype)
    work = Work(steps=steps, batch_size=batch, clip=1.0)
    if not given.federation.test.x.is_floating_point():  # texts are trained by Adam, as CGSV's
        work = Work(steps=steps, batch_size=batch, optimiser="adam", lr=1e-4)
    rewards = Rewards(start, work)
    return lambda: engine.train(rewards, ClientStates(), 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--clients", type=int, nargs="*", default=[10, 100])
    parser.add_argument("--model", choices=MODELS, nargs="*", default=["mlp", "cnn"])
    parser.add_argument("--precision", choices=["float32", "tf32"], default="float32")
    parser.add_argument("--batch", type=int, default=BATCH, help=f"samples of a step, up to {SAMPLES}")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--loop", action=argparse.BooleanOptionalAction, default=True, help="time the loop too")
    parser.add_argument(
        "--graphs", action=argparse.BooleanOptionalAction, default=True, help="record steps as CUDA graphs on a GPU"
    )
    given = parser.parse_args()
    if not 1 <= given.batch <= SAMPLES:
        parser.error(f"--batch must be 1 to {SAMPLES}")
    device = torch.device(given.device)
    with arithmetic(given.precision):
        rate = matrix_rate(device)
        print(f"matrix products here: {rate / 1e9:.0f} GFLOP/s ({given.precision}, {device})")
        for model in given.model:
            for clients in given.clients if model == "mlp" or device.type == "cuda" else given.clients[:1]:
                own = problem(model, clients, device, given.batch)
                together = VectorisedEngine(own)
                together.graphs.usable &= given.graphs
                engines: dict[str, Engine] = {"vectorised": together}
                if given.loop:
                    engines["loop"] = LoopEngine(own)
                # a step is what a longer round takes more than a short one: starting a round is not part of it
                trainers = {
                    (name, steps): trainer(engine, own, steps, given.batch)
                    for name, engine in engines.items()
                    for steps in (given.steps, 3 * given.steps)
                }
                seconds = alternate(trainers, given.repeats, device)
                steps = {
                    name: (seconds[name, 3 * given.steps] - seconds[name, given.steps]) / (2 * given.steps)
                    for name in engines
                }
                step = steps["vectorised"]
                share = clients * operations(own, given.batch) / step / rate
                ratio = f"{steps['loop'] / step:.2f} × the loop's rate, " if given.loop else ""
                print(
                    f"{model}, {clients} clients: {ratio}{1000 * step:.2f} ms a step, "
                    f"{100 * share:.0f} % of the matrix-product rate"
                )


if __name__ == "__main__":
    main()
