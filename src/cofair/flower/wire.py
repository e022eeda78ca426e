"""Rows of parameters as they are sent: some of their entries, and where these belong.

A row is sent within a scope, the entries that its client may hold. Often only some of these are sent, because the other
side already has the rest: they are sent as values with a bitmap over the scope or with indices into it, whichever is
smaller, and with neither if all of them are sent.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

Arrays = dict[str, np.ndarray[Any, Any]]
VALUES, BITMAP, INDICES = "values", "bitmap", "indices"


class RefusedError(Exception):
    """What came over the wire cannot be used; the text says why."""


@dataclass(frozen=True)
class Expected:
    """What a sender may put into an array: its type, and its largest size in bytes."""

    dtype: np.dtype[Any]
    most: int


def pack(row: Tensor, chosen: Tensor, scope: Tensor | None = None) -> Arrays:
    """Return the chosen entries (D,) of a row as arrays; all of them are in the scope (D,), by default everything."""
    own, wanted = row.cpu().numpy(), chosen.cpu().numpy()  # numpy selects entries several times as fast as torch
    sent = int(np.count_nonzero(wanted))
    values = {VALUES: own if sent == own.size else own[wanted]}
    room = own.size if scope is None else count(scope)
    if sent == room:
        return values
    within = wanted if scope is None else wanted[scope.cpu().numpy()]
    if 4 * sent < (room + 7) // 8:
        return {**values, INDICES: np.flatnonzero(within).astype(np.int32)}
    return {**values, BITMAP: np.packbits(within)}


def unpack(arrays: Mapping[str, np.ndarray[Any, Any]], base: Tensor, scope: Tensor | None = None) -> Tensor:
    """Return a base row (D,) with the entries that were sent in their places; refuse arrays that do not fit."""
    row = base.cpu().numpy().copy()
    within = None if scope is None else scope.cpu().numpy()
    room = row.size if within is None else int(np.count_nonzero(within))
    if VALUES not in arrays:
        raise RefusedError("it holds no values")
    values = arrays[VALUES]
    if values.ndim != 1 or values.dtype != row.dtype:
        raise RefusedError(f"its values have type {values.dtype} and shape {values.shape}, not {row.dtype} in a list")
    if BITMAP in arrays and INDICES in arrays:
        raise RefusedError("it holds a bitmap and indices, of which one is too many")
    where = None
    if BITMAP in arrays:
        where = _places(arrays[BITMAP], room)
    elif INDICES in arrays:
        where = _from_indices(arrays[INDICES], room)
    places = room if where is None else int(np.count_nonzero(where))
    if len(values) != places:
        raise RefusedError(f"it holds {len(values)} values for {places} places")
    if within is None:
        row[slice(None) if where is None else where] = values
    elif where is None:
        row[within] = values
    else:
        row[np.flatnonzero(within)[where]] = values
    return torch.from_numpy(row).to(base.device)


def within(row: Tensor, scope: Tensor | None) -> Tensor:
    """Return a row (D,) with zeros outside a scope (D,), by default nowhere: both sides forget what left the scope."""
    return row if scope is None else row.masked_fill(~scope, 0)


def expected(entries: int, like: Tensor) -> dict[str, Expected]:
    """Return what the arrays of a row within a scope of so many entries may be."""
    return {
        VALUES: Expected(np.dtype(str(like.dtype).removeprefix("torch.")), entries * like.element_size()),
        BITMAP: Expected(np.dtype(np.uint8), (entries + 7) // 8),
        INDICES: Expected(np.dtype(np.int32), (entries + 7) // 8),
    }


def count(mask: Tensor) -> int:
    """Return how many entries a mask selects; numpy counts them many times as fast as torch adds them up."""
    return int(np.count_nonzero(mask.cpu().numpy()))


def bits(mask: Tensor) -> np.ndarray[Any, Any]:
    """Return a mask of any shape with one bit per entry."""
    return np.packbits(mask.flatten().cpu().numpy())


def from_bits(packed: np.ndarray[Any, Any], entries: int) -> Tensor:
    """Return the mask (entries,) that was packed."""
    return torch.from_numpy(_places(packed, entries))


def _places(packed: np.ndarray[Any, Any], entries: int) -> np.ndarray[Any, Any]:
    if packed.dtype != np.uint8 or packed.shape != ((entries + 7) // 8,):
        raise RefusedError(f"its bitmap is not one bit for each of {entries} entries")
    return np.unpackbits(packed, count=entries).view(np.bool_)


def _from_indices(indices: np.ndarray[Any, Any], entries: int) -> np.ndarray[Any, Any]:
    if indices.dtype != np.int32 or indices.ndim != 1:
        raise RefusedError("its indices are not a list of integers")
    rising = len(indices) == 0 or (indices[0] >= 0 and indices[-1] < entries and bool((np.diff(indices) > 0).all()))
    if not rising:
        raise RefusedError(f"its indices do not rise from 0 to {entries - 1}")
    where = np.zeros(entries, dtype=np.bool_)
    where[indices] = True
    return where
