"""Small problems that many tests share."""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import nn

from cofair.engine import losses
from cofair.engine.layout import Layout
from cofair.engine.problem import Problem
from cofair.federation.federation import Federation
from cofair.neurons.map import NeuronMap

MakeProblem = Callable[..., Problem]


def small_federation(
    sizes: Sequence[int] = (7, 40, 19, 33), shape: Sequence[int] = (6,), classes: int = 3, tokens: int | None = None
) -> Federation:
    """Clients with random data of the given sizes."""
    random = torch.Generator().manual_seed(0)

    def samples(n: int) -> tuple[torch.Tensor, torch.Tensor]:
        if tokens is None:
            x = torch.randn(n, *shape, generator=random, dtype=torch.float64)
        else:
            x = torch.randint(0, tokens, (n, *shape), generator=random)
        return x, torch.randint(0, classes, (n,), generator=random)

    return Federation([samples(n) for n in sizes], validation=samples(25), test=samples(30), classes=classes)


def small_stack(activation: type[nn.Module] = nn.ReLU) -> nn.Module:
    """A stack of three linear layers for inputs of six numbers and three classes."""
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(6, 9), activation(), nn.Linear(9, 5, bias=False), activation(), nn.Linear(5, 3)
    )


@pytest.fixture
def make_problem() -> MakeProblem:
    """Make a problem of a module and a federation, float64 on the CPU unless told otherwise."""

    def make(
        module: nn.Module | None = None, federation: Federation | None = None, *, dtype: torch.dtype = torch.float64,
        device: str = "cpu", seed: int = 0, loss: losses.Loss = losses.cross_entropy,
    ) -> Problem:  # fmt: skip
        module = (small_stack() if module is None else module).to(device=device, dtype=dtype)
        federation = (small_federation() if federation is None else federation).to(device, dtype)
        layout = Layout(module)
        return Problem(layout, NeuronMap.of(module, layout), federation, seed, loss)

    return make


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a GPU where there is none."""
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="no CUDA GPU here"))
