"""Choose a device, an arithmetic and an engine."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from cofair.engine.linear_stack import LinearStack
from cofair.engine.loop_engine import LoopEngine
from cofair.engine.problem import Engine, Problem
from cofair.engine.protocol import ClientStates, Rewards
from cofair.engine.vectorised import VectorisedEngine
from cofair.engine.work import Work
from cofair.errors import RunError, UsageError

ENGINES: dict[str, type[LoopEngine] | type[VectorisedEngine]] = {"loop": LoopEngine, "vectorised": VectorisedEngine}


def device(name: str) -> torch.device:
    """Return the device that a name means; auto is the GPU where there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise UsageError("device = 'cuda', but torch finds no CUDA GPU here: use 'cpu' or 'auto'.")
    return torch.device(name)


def engine(name: str, problem: Problem) -> Engine:
    """Return an engine by name; auto takes the faster one for the module and the device."""
    if name != "auto":
        return ENGINES[name](problem)
    if problem.device.type == "cpu":
        # measured (benchmarks/training.py): stacked linear layers beat the loop, stacked convolutions do not
        plain = LinearStack.of(problem.layout, problem.neurons) is not None
        return VectorisedEngine(problem) if plain else LoopEngine(problem)
    start = problem.layout.row(problem.layout.prototype).to(problem.device)
    try:
        VectorisedEngine(problem).train(Rewards(start, Work(steps=1, batch_size=1)), ClientStates(), 1)
    except RunError:  # a module that torch.func cannot batch
        return LoopEngine(problem)
    return VectorisedEngine(problem)  # a fresh one, which makes its trials on real batches


@contextmanager
def arithmetic(precision: str) -> Iterator[None]:
    """Use TF32 for float32 products on a GPU inside the block, or forbid it."""
    matmul, convolution = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(matmul)
        torch.backends.cudnn.allow_tf32 = convolution


def dtype(precision: str) -> torch.dtype:
    """Return the floating-point type of a precision."""
    return torch.float64 if precision == "float64" else torch.float32
