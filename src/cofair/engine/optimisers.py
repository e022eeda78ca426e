"""Optimisers over stacks of clients: each client steps as torch.optim would step it alone."""

from collections.abc import Callable

import torch
from torch import Tensor

from cofair.engine.protocol import ClientStates
from cofair.engine.stackable import has_kernels
from cofair.models.parameters import Layout

Named = dict[str, Tensor]


def adam_memory(states: ClientStates, like: Tensor) -> Named:
    """Return Adam's moments (N, D) and step counts (N,): those of `states`, or zeros at the start."""
    if states.optimiser:
        return states.optimiser
    return {
        "first": torch.zeros_like(like),
        "second": torch.zeros_like(like),
        "steps": torch.zeros(len(like), dtype=torch.int64, device=like.device),
    }


class Sgd:
    """Plain gradient descent, no momentum, no memory."""

    def step(self, parameters: Named, gradients: Named, lr: Tensor, scale: Tensor | None) -> None:
        """Move the first n clients' parameters (n, ...) in place, by scaled gradients, at rates of their own (n,)."""
        rates = lr if scale is None else lr * scale
        for name, value in parameters.items():
            value.addcmul_(gradients[name], per_client(rates, value), value=-1)


class Adam:
    """Adam with torch's defaults; its moments stay with the clients from round to round."""

    betas = (0.9, 0.999)
    epsilon = 1e-8

    def __init__(
        self, memory: Named, clients: Tensor, layout: Layout, hold: Callable[[str, Tensor], Tensor]
    ) -> None:  # fmt: skip
        """Take the memory rows of some clients, in the order in which they will step; `hold` copies what changes."""
        self._memory, self._clients = memory, clients
        self._own = {name: hold(name, value[clients]) for name, value in memory.items()}
        self._first, self._second = layout.views(self._own["first"]), layout.views(self._own["second"])

    def step(self, parameters: Named, gradients: Named, lr: Tensor, scale: Tensor | None) -> None:
        """Move the first n clients' parameters (n, ...) in place, by scaled gradients, at rates of their own (n,)."""
        n = len(lr)
        self._own["steps"][:n] += 1
        one, two = (1 - beta ** self._own["steps"][:n].double() for beta in self.betas)
        sizes, roots = (lr / one).to(lr.dtype), two.sqrt().to(lr.dtype)
        for name, value in parameters.items():
            gradient, first, second = gradients[name], self._first[name][:n], self._second[name][:n]
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

    def remembered(self) -> Named:
        """Return the memory of all clients after these steps."""
        memory = {name: value.clone() for name, value in self._memory.items()}
        for name, value in self._own.items():
            memory[name][self._clients] = value
        return memory


def per_client(values: Tensor, like: Tensor) -> Tensor:
    """Shape one value a client (n,) so that it multiplies a stack (n, ...)."""
    return values.view(-1, *[1] * (like.dim() - 1))
