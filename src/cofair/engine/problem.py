"""What an engine needs to know of an experiment."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor, nn

from cofair import metrics, randomness
from cofair.data.client_table import ClientTable
from cofair.data.federation import Federation
from cofair.engine import losses
from cofair.engine.protocol import ClientStates, Rewards, Uploads
from cofair.errors import UsageError
from cofair.models.parameters import Layout
from cofair.neurons.map import NeuronMap


@dataclass(frozen=True)
class Problem:
    """A model, a federation on the same device, the loss clients minimise and the metric that counts.

    Every client has a random key, made from the seed and its name unless `keys` (N,) are given.
    """

    layout: Layout
    neurons: NeuronMap | None
    federation: Federation
    seed: int
    loss: losses.Loss = losses.cross_entropy
    metric: Callable[[Tensor, Tensor], Tensor] = metrics.accuracy
    keys: Tensor | None = None
    table: ClientTable = field(init=False)

    def __post_init__(self) -> None:
        keys = randomness.client_keys(self.seed, self.federation.names) if self.keys is None else self.keys
        object.__setattr__(self, "table", self.federation.table(keys.to(self.device)))

    @property
    def device(self) -> torch.device:
        """Return where the federation's data lies."""
        return self.federation.device

    @contextmanager
    def own_randomness(self, *address: int | str) -> Iterator[None]:
        """Seed torch's own generators inside the block, for modules that draw from them, and restore them after."""
        devices = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(randomness.address(self.seed, "module", *address) & 0x7FFF_FFFF)
            yield

    def check_masks(self, rewards: Rewards) -> None:
        """Refuse submodels of a model that has no neurons to leave out."""
        if self.neurons is None and (rewards.neuron_masks is not None or rewards.step_masks is not None):
            raise UsageError("This model has no neurons that a submodel could leave out, so it has no submodels.")

    def try_model(self, initial: nn.Module) -> None:
        """Run the model and the loss on two samples, so that a misfit is reported before anything is trained."""
        x, y = self.federation.test.x[:2], self.federation.test.y[:2]
        try:
            with torch.no_grad():
                outputs = initial(x)
        except Exception as error:  # whatever a user's module raises becomes one sentence
            raise UsageError(f"The model failed on inputs of shape {tuple(x.shape)}: {first_line(error)}") from error
        if not isinstance(outputs, Tensor) or outputs.shape[:1] != x.shape[:1]:
            raise UsageError("The model must return one tensor with one row per sample.")
        losses.check_fit(self.loss, outputs, self.federation)
        _refuse_changing_buffers(initial, x)
        try:
            losses.check_loss(self.loss(outputs, y), len(x))
        except UsageError:
            raise
        except Exception as error:
            raise UsageError(f"The loss failed on the model's outputs: {first_line(error)}") from error


def _refuse_changing_buffers(initial: nn.Module, x: Tensor) -> None:
    module = copy.deepcopy(initial).train()
    before = {name: buffer.clone() for name, buffer in module.named_buffers()}
    with torch.no_grad(), torch.random.fork_rng(devices=[x.device] if x.is_cuda else []):
        module(x)
    for name, buffer in module.named_buffers():
        if name not in before or not torch.equal(before[name], buffer):
            raise UsageError(
                f"The model changes its buffer {name!r} while it trains; what belongs to no parameter cannot be "
                "shared fairly between clients: use a layer without running statistics, such as nn.GroupNorm."
            )


class Engine(Protocol):
    """Trains all clients of a round."""

    def train(self, rewards: Rewards, states: ClientStates, t: int) -> tuple[Uploads, ClientStates]:
        """Give every participant its reward, let it work, and return what it uploads."""


def first_line(error: BaseException) -> str:
    """Return the first line of an error, for a sentence that quotes it."""
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
