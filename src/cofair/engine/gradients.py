"""Gradients of all clients' objectives for any module: over the whole stack at once where that is right."""

import warnings
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor
from torch.func import grad, vmap

from cofair.engine.forward import Forward
from cofair.engine.optimisers import Named
from cofair.engine.problem import Problem

_ALIKE = 0.1  # relative difference of two ways to compute a gradient, at most: in TF32 maxima and signs may change
_NEGLIGIBLE = 0.01  # the same, in parts of the whole gradient: of a parameter whose gradient is but rounding


class Gradients:
    """Computes each client's gradient, the fast way where a trial shows that it is right."""

    def __init__(self, problem: Problem, forward: Forward) -> None:
        """Prepare to differentiate a problem's module."""
        self.problem = problem
        self.forward = forward
        self.are_fast: bool | None = None  # not known yet

    def __call__(self, *given: Any) -> Named:
        """Return the gradients (n, ...) by name at parameters, extras, x, y and weights, which all have n clients."""
        if self.are_fast is None and len(self.problem.federation) > 1:
            # the way must not depend on who stepped before: a resumed run may begin with another number of clients
            self.are_fast = self._is_fast_right(*(given if len(given[-1]) > 1 else map(_twice, given)))
            if not self.are_fast and self.problem.device.type == "cuda":
                warnings.warn("Gradients are computed the safe way, so training is slower.", stacklevel=2)
        return self._fast(*given) if self.are_fast else self._safe(*given)

    @cached_property
    def _stacked(self) -> Forward:
        return Forward(self.problem.layout, self.problem.neurons, stacked=True)

    def _safe(self, *given: Any) -> Named:
        found: Named = vmap(grad(partial(self._objective, self.forward)), randomness="different")(*given)
        return found

    def _fast(self, parameters: Named, *given: Any) -> Named:
        """Go back over the stack itself, in far fewer steps: the sum's gradient is each client's own."""
        leaves = {name: value.detach().requires_grad_() for name, value in parameters.items()}
        with torch.enable_grad():
            objectives = vmap(partial(self._objective, self._stacked), randomness="different")(leaves, *given)
            found = torch.autograd.grad(
                objectives.sum(), list(leaves.values()), allow_unused=True, materialize_grads=True
            )
        return dict(zip(leaves, found, strict=True))

    def _is_fast_right(self, *given: Any) -> bool:
        """Try both ways on a step of several clients.

        A module may have hooks that look at gradients, which would then be those of all clients, or need its
        convolutions' outputs to lie in memory as usual.
        """
        devices = [self.problem.device] if self.problem.device.type == "cuda" else []
        try:
            with torch.random.fork_rng(devices):
                fast = self._fast(*given)
        except torch.OutOfMemoryError:
            raise
        except Exception:  # a user's module may raise anything; the safe way will say what is wrong
            return False
        with torch.random.fork_rng(devices):
            safe = self._safe(*given)
        right = {name: lengths(own) for name, own in safe.items()}
        whole = torch.stack(list(right.values())).square().sum(0).sqrt()
        return all(
            bool((lengths(fast[name] - own) <= _ALIKE * right[name] + _NEGLIGIBLE * whole).all())
            for name, own in safe.items()
        )

    def _objective(
        self, forward: Forward, parameters: Named, extras: Named, x: Tensor, y: Tensor, weights: Tensor
    ) -> Tensor:
        return (self.problem.loss(forward(parameters, extras, x), y) * weights).sum()


def _twice(stacked: Named | Tensor) -> Named | Tensor:
    """Return a stack of one client, or several by name, as a stack of two that are alike."""
    if isinstance(stacked, Tensor):
        return torch.cat([stacked, stacked])
    return {name: torch.cat([value, value]) for name, value in stacked.items()}


def lengths(stacked: Tensor) -> Tensor:
    """Return the length of each client's part of a stack (n, ...): (n,).

    Nothing is laid flat before: that would be a copy, where kernels have written gradients in an order of their own.
    """
    each = stacked[:, None]  # a parameter may be a single number
    found: Tensor = torch.linalg.vector_norm(each, dim=tuple(range(1, each.dim())))
    return found
