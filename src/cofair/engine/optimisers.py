"""Optimisers over stacks of clients: each client steps as torch.optim would step it alone."""

from collections.abc import Callable

import torch
from torch import Tensor

from cofair.engine.exchange import ClientStates

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

    def step(self, rows: Tensor, gradients: Tensor, lr: Tensor) -> None:
        """Move the first n clients' rows (n, D) in place, at rates of their own (n,)."""
        rows.addcmul_(gradients, lr[:, None], value=-1)


class Adam:
    """Adam with torch's defaults; its moments stay with the clients from round to round."""

    betas = (0.9, 0.999)
    epsilon = 1e-8

    def __init__(self, memory: Named, clients: Tensor, hold: Callable[[str, Tensor], Tensor]) -> None:
        """Take the memory rows of some clients, in the order in which they will step; `hold` copies what changes."""
        self._memory, self._clients = memory, clients
        self._own = {name: hold(name, value[clients]) for name, value in memory.items()}

    def step(self, rows: Tensor, gradients: Tensor, lr: Tensor) -> None:
        """Move the first n clients' rows (n, D) in place, at rates of their own (n,)."""
        first, second, steps = (self._own[name][: len(rows)] for name in ("first", "second", "steps"))
        steps += 1
        one, two = (1 - beta ** steps.double() for beta in self.betas)
        first.lerp_(gradients, 1 - self.betas[0])
        second.mul_(self.betas[1]).addcmul_(gradients, gradients, value=1 - self.betas[1])
        spread = (second.sqrt() / two.sqrt().to(rows.dtype)[:, None]).add_(self.epsilon)
        rows.addcdiv_(first * (lr / one).to(rows.dtype)[:, None], spread, value=-1)

    def states(self) -> ClientStates:
        """Return the memory of all clients after these steps."""
        memory = {name: value.clone() for name, value in self._memory.items()}
        for name, value in self._own.items():
            memory[name][self._clients] = value
        return ClientStates(memory)
