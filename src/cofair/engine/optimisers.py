"""Optimisers over stacks of clients: each client steps as torch.optim would step it alone."""

import torch
from torch import Tensor

from cofair.engine.exchange import ClientStates
from cofair.engine.layout import Layout

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

    def step(self, parameters: Named, gradients: Named, lr: float | Tensor) -> None:
        """Move the first n clients' parameters (n, ...) in place."""
        for name, value in parameters.items():
            if isinstance(lr, Tensor):
                value.sub_(gradients[name] * per_client(lr, value))
            else:
                value.sub_(gradients[name], alpha=lr)


class Adam:
    """Adam with torch's defaults; its moments stay with the clients from round to round."""

    betas = (0.9, 0.999)
    epsilon = 1e-8

    def __init__(self, memory: Named, clients: Tensor, layout: Layout) -> None:
        """Take the memory rows of some clients, in the order in which they will step."""
        self._memory, self._clients = memory, clients
        self._own = {name: value[clients].clone() for name, value in memory.items()}
        self._first, self._second = layout.views(self._own["first"]), layout.views(self._own["second"])

    def step(self, parameters: Named, gradients: Named, lr: float | Tensor) -> None:
        """Move the first n clients' parameters (n, ...) in place."""
        n = len(next(iter(gradients.values())))
        self._own["steps"][:n] += 1
        count = self._own["steps"][:n].double()
        correction = [1 - beta**count for beta in self.betas]
        for name, value in parameters.items():
            gradient, first, second = gradients[name], self._first[name][:n], self._second[name][:n]
            first.lerp_(gradient, 1 - self.betas[0])
            second.mul_(self.betas[1]).addcmul_(gradient, gradient, value=1 - self.betas[1])
            size = per_client((lr / correction[0]).to(value.dtype), value)
            spread = second.sqrt() / per_client(correction[1].sqrt().to(value.dtype), value)
            value.sub_(size * first / spread.add_(self.epsilon))

    def states(self) -> ClientStates:
        """Return the memory of all clients after these steps."""
        memory = {name: value.clone() for name, value in self._memory.items()}
        for name, value in self._own.items():
            memory[name][self._clients] = value
        return ClientStates(memory)


def per_client(values: Tensor, like: Tensor) -> Tensor:
    """Shape one value a client (n,) so that it multiplies a stack (n, ...)."""
    return values.view(-1, *[1] * (like.dim() - 1))
