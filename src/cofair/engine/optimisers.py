"""Local optimisers: each steps a stack of clients as torch.optim would step every one of them alone.

An optimiser is one class here, and `OPTIMISERS` holds them all: settings take their names from it, engines and Flower
ask it what an optimiser does. Nothing else has to know a new one.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from cofair.engine.stackable import has_kernels
from cofair.errors import UsageError, nearest
from cofair.models.parameters import Layout

Named = dict[str, Tensor]
STEPS = "steps"  # the name of the steps that clients have taken, where an optimiser counts them


@dataclass(frozen=True)
class Memory:
    """What an optimiser remembers of the first n clients of a stack, changed in place by its steps."""

    moments: dict[str, Named]  # by the moment's name, then the parameter's: (n, ...)
    steps: Tensor | None = None  # (n,) steps taken so far, this one included


class Optimiser(ABC):
    """A local optimiser, with torch's defaults.

    A client that trains a submodel does not hold the parameters outside it. It has no gradient there, and no value that
    could decay; but moments of earlier trainings, in which it held more, still move what it leaves out now.
    """

    name: ClassVar[str]
    text: ClassVar[str]  # what it is, in a few words
    moments: ClassVar[Mapping[str, str]] = {}  # what it remembers of each parameter, by our name: torch's name
    counts_steps: ClassVar[bool] = False
    moves_masked: ClassVar[bool] = False  # it moves what a submodel leaves out, so that uploads reach beyond it
    weight_decay: ClassVar[float] = 0.0  # decoupled from the gradient; acts on what a client holds
    is_stack_step: ClassVar[bool] = False  # it is the step that `LinearStack` takes together with the gradient

    @abstractmethod
    def step(
        self, parameters: Named, gradients: Named, memory: Memory, lr: Tensor, scale: Tensor | None, masks: Named
    ) -> None:
        """Move n clients' parameters (n, ...) in place, by scaled gradients, at rates of their own (n,).

        `masks` say what clients hold, of the parameters that submodels may leave out.
        """

    @abstractmethod
    def reference(self, parameters: Iterable[nn.Parameter], lr: float) -> torch.optim.Optimizer:
        """Return torch's own optimiser of one client, which the loop engine steps."""

    def memory(self, remembered: Named, like: Tensor) -> Named:
        """Return what it remembers of all clients, by name: what is remembered so far, or zeros at the start.

        Moments are like rows (N, D), steps are (N,).
        """
        fresh: dict[str, Callable[[], Tensor]] = {name: lambda: torch.zeros_like(like) for name in self.moments}
        if self.counts_steps:
            fresh[STEPS] = lambda: torch.zeros(len(like), dtype=torch.int64, device=like.device)
        return {name: remembered[name] if name in remembered else make() for name, make in fresh.items()}


class Sgd(Optimiser):
    """Plain gradient descent."""

    name = "sgd"
    text = "gradient descent, no momentum"
    is_stack_step = True

    def step(
        self, parameters: Named, gradients: Named, memory: Memory, lr: Tensor, scale: Tensor | None, masks: Named
    ) -> None:
        """Step against the gradient."""
        rates = lr if scale is None else lr * scale
        for name, value in parameters.items():
            value.addcmul_(gradients[name], per_client(rates, value), value=-1)

    def reference(self, parameters: Iterable[nn.Parameter], lr: float) -> torch.optim.Optimizer:
        """Return torch's SGD."""
        return torch.optim.SGD(parameters, lr=lr)


class Adam(Optimiser):
    """Adam; its moments stay with the clients from round to round."""

    name = "adam"
    text = "Adam, its moments kept from round to round"
    moments: ClassVar[Mapping[str, str]] = {"first": "exp_avg", "second": "exp_avg_sq"}
    counts_steps = True
    moves_masked = True
    betas = (0.9, 0.999)
    epsilon = 1e-8

    def step(
        self, parameters: Named, gradients: Named, memory: Memory, lr: Tensor, scale: Tensor | None, masks: Named
    ) -> None:
        """Step by the mean of gradients over the root of their mean squares."""
        assert memory.steps is not None
        one, two = (1 - beta ** memory.steps.double() for beta in self.betas)
        sizes, roots = (lr / one).to(lr.dtype), two.sqrt().to(lr.dtype)
        for name, value in parameters.items():
            gradient, first, second = gradients[name], memory.moments["first"][name], memory.moments["second"][name]
            if has_kernels(value):  # PyTorch's own way reads and writes each number three times as often
                from cofair.engine import kernels  # needs Triton

                kernels.adam(value, gradient, first, second, sizes, roots, scale, self.betas, self.epsilon)
                continue
            if scale is not None:
                gradient = gradient * per_client(scale, value)
            first.lerp_(gradient, 1 - self.betas[0])
            second.mul_(self.betas[1]).addcmul_(gradient, gradient, value=1 - self.betas[1])
            spread = (second.sqrt() / per_client(roots, value)).add_(self.epsilon)
            value.addcdiv_(first * per_client(sizes, value), spread, value=-1)

    def reference(self, parameters: Iterable[nn.Parameter], lr: float) -> torch.optim.Optimizer:
        """Return torch's Adam."""
        return torch.optim.Adam(parameters, lr=lr)


class AdamW(Adam):
    """Adam, and weights that decay apart from it, where clients hold them."""

    name = "adamw"
    text = "Adam with decoupled weight decay of 0.01"
    weight_decay = 0.01

    def step(
        self, parameters: Named, gradients: Named, memory: Memory, lr: Tensor, scale: Tensor | None, masks: Named
    ) -> None:
        """Decay the weights, then step as Adam does."""
        for name, value in parameters.items():
            lost = per_client(lr * self.weight_decay, value)
            value.mul_(1 - (lost * masks[name] if name in masks else lost))
        super().step(parameters, gradients, memory, lr, scale, masks)

    def reference(self, parameters: Iterable[nn.Parameter], lr: float) -> torch.optim.Optimizer:
        """Return torch's AdamW."""
        return torch.optim.AdamW(parameters, lr=lr, weight_decay=self.weight_decay)


class Momentum(Optimiser):
    """Gradient descent with momentum; the first step goes by the first gradient, since zeros are remembered then."""

    name = "momentum"
    text = "gradient descent with momentum 0.9, kept from round to round"
    moments: ClassVar[Mapping[str, str]] = {"momentum": "momentum_buffer"}
    moves_masked = True
    momentum = 0.9

    def step(
        self, parameters: Named, gradients: Named, memory: Memory, lr: Tensor, scale: Tensor | None, masks: Named
    ) -> None:
        """Step against the sum of gradients, of which older ones count less and less."""
        for name, value in parameters.items():
            gradient, buffer = gradients[name], memory.moments["momentum"][name]
            buffer.mul_(self.momentum).add_(gradient if scale is None else gradient * per_client(scale, value))
            value.addcmul_(buffer, per_client(lr, value), value=-1)

    def reference(self, parameters: Iterable[nn.Parameter], lr: float) -> torch.optim.Optimizer:
        """Return torch's SGD with momentum."""
        return torch.optim.SGD(parameters, lr=lr, momentum=self.momentum)


OPTIMISERS: dict[str, Optimiser] = {one.name: one for one in (Sgd(), Momentum(), Adam(), AdamW())}


def find(name: str) -> Optimiser:
    """Return an optimiser by name, or say which there are."""
    if name not in OPTIMISERS:
        raise UsageError(f"There is no optimiser {name!r}: {nearest(str(name), OPTIMISERS)}")
    return OPTIMISERS[name]


class StackedSteps:
    """The steps of some clients together, with what their optimiser remembers of them."""

    def __init__(
        self, optimiser: Optimiser, remembered: Named, clients: Tensor, everybody: int, layout: Layout, rows: Tensor,
        hold: Callable[[str, Tensor], Tensor],
    ) -> None:  # fmt: skip
        """Take what is remembered of everybody, and the clients in the order of their rows (n, D) in the stack.

        `hold` copies what changes.
        """
        self._optimiser, self._remembered, self._clients = optimiser, remembered, clients
        self._memory = optimiser.memory(remembered, rows[:1].expand(everybody, -1))
        self._own = {name: hold(name, value[clients]) for name, value in self._memory.items()}
        self._moments = {name: layout.views(self._own[name]) for name in optimiser.moments}

    def step(self, parameters: Named, gradients: Named, lr: Tensor, scale: Tensor | None, masks: Named) -> None:
        """Move the first n clients' parameters (n, ...) in place, as `Optimiser.step` says."""
        n = len(lr)
        steps = None
        if self._optimiser.counts_steps:
            self._own[STEPS][:n] += 1
            steps = self._own[STEPS][:n]
        moments = {
            name: {parameter: value[:n] for parameter, value in views.items()} for name, views in self._moments.items()
        }
        self._optimiser.step(parameters, gradients, Memory(moments, steps), lr, scale, masks)

    def remembered(self) -> Named:
        """Return what is remembered of all clients after these steps."""
        memory = {name: value.clone() for name, value in self._memory.items()}
        for name, value in self._own.items():
            memory[name][self._clients] = value
        return {**self._remembered, **memory}


def per_client(values: Tensor, like: Tensor) -> Tensor:
    """Shape one value per client (n,) so that it multiplies a stack (n, ...)."""
    return values.view(-1, *[1] * (like.dim() - 1))
