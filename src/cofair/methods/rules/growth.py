"""Room for clients that join during a run."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import TypeVar

from torch import Tensor

Value = TypeVar("Value")


def grown(state: Value, fresh: Value) -> Value:
    """Return a state with the values of `fresh`, a start with more clients, for newcomers.

    Clients come first in every axis that is about them, and newcomers last, so that whatever is larger in the fresh
    state begins with the clients that were there. What is as large as before, or not there at the start, stays.
    """
    if isinstance(state, Tensor) and isinstance(fresh, Tensor) and _fits(state, fresh):
        larger = fresh.clone()
        larger[tuple(slice(size) for size in state.shape)] = state
        return larger  # type: ignore[return-value]
    if is_dataclass(state) and not isinstance(state, type) and is_dataclass(fresh):
        own = {part.name: grown(getattr(state, part.name), getattr(fresh, part.name)) for part in fields(state)}
        return replace(state, **own)
    if isinstance(state, tuple) and isinstance(fresh, tuple) and len(state) == len(fresh):
        return tuple(grown(one, other) for one, other in zip(state, fresh, strict=True))  # type: ignore[return-value]
    if isinstance(state, Mapping) and isinstance(fresh, Mapping):
        return {key: grown(one, fresh.get(key)) for key, one in state.items()}  # type: ignore[return-value]
    return state


def _fits(small: Tensor, large: Tensor) -> bool:
    sizes = list(zip(small.shape, large.shape, strict=False))
    return small.dim() == large.dim() and small.shape != large.shape and all(one <= other for one, other in sizes)
