"""Small problems that many tests share."""

from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import settings
from torch import nn

from cofair.config.experiment import Experiment
from cofair.data.federation import Federation
from cofair.engine import losses
from cofair.engine.problem import Problem
from cofair.engine.protocol import Uploads
from cofair.methods import Server
from cofair.models.parameters import Layout
from cofair.neurons.map import NeuronMap
from tests.driving import prepare

settings.register_profile("cofair", deadline=None)  # a busy machine is no failure
settings.load_profile("cofair")

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


@pytest.fixture
def make_server() -> Callable[..., Server]:
    """Make the server of a small run: float64, contributions and sizes as given."""

    def make(
        contributions: Sequence[float], sizes: Sequence[int] | None = None, module: nn.Module | None = None,
        names: Sequence[str] | None = None, engine: str = "auto", **tables: dict[str, object],
    ) -> Server:  # fmt: skip
        federation = small_federation(sizes or [12] * len(contributions))
        federation.names = tuple(names or federation.names)
        experiment = Experiment.from_dict({"run": {"precision": "float64", "engine": engine}, **tables})
        given = torch.tensor(contributions, dtype=torch.float64)
        model = small_stack() if module is None else module
        return prepare(experiment, federation=federation, model=model, contributions=given).server

    return make


def uploads_of(updates: Sequence[Sequence[float]], sizes: Sequence[int], absent: Sequence[int] = ()) -> Uploads:
    """Hand-made uploads."""
    values = torch.tensor(updates, dtype=torch.float64)
    present = torch.ones(len(values), dtype=torch.bool)
    present[list(absent)] = False
    return Uploads(values, present, torch.tensor(sizes))
