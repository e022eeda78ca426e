"""Blocks of a row of parameters: entries that belong together, such as the weights and the bias of one unit."""

from dataclasses import dataclass

import torch
from torch import Tensor

from cofair.models.parameters import Layout


@dataclass(frozen=True)
class _Part:
    """Entries `start` to `stop` of a row, which are one after another in blocks from `first` on, `count` of them."""

    name: str
    start: int
    stop: int
    first: int
    count: int

    @property
    def width(self) -> int:
        """Return how many of these entries each block has."""
        return (self.stop - self.start) // self.count


@dataclass(frozen=True)
class Blocks:
    """A division of the D entries of a row into B blocks."""

    parts: tuple[_Part, ...]
    count: int

    @classmethod
    def rows(cls, layout: Layout) -> "Blocks":
        """Return a block for each output of each module: rows of its matrices, and entries of its vectors as long."""
        parts: list[_Part] = []
        known: dict[tuple[str, int], int] = {}
        count = 0
        for own in layout.slices:
            outputs = own.shape[0] if own.shape else 1
            key = own.name.rpartition(".")[0], outputs
            if key not in known:
                known[key] = count
                count += outputs
            parts.append(_Part(own.name, own.start, own.stop, known[key], outputs))
        return cls(tuple(parts), count)

    def sums(self, values: Tensor) -> Tensor:
        """Return the sums (n, B) over blocks of values (n, D)."""
        found = values.new_zeros(len(values), self.count)
        for part in self.parts:
            each = values[:, part.start : part.stop].reshape(len(values), part.count, part.width)
            found[:, part.first : part.first + part.count] += each.sum(2)
        return found

    def spread(self, values: Tensor) -> Tensor:
        """Return the values (n, B) of blocks at each of their entries (n, D)."""
        own = [values[:, part.first : part.first + part.count].repeat_interleave(part.width, 1) for part in self.parts]
        return torch.cat(own, 1)

    def of(self, name: str) -> slice | None:
        """Return which blocks a parameter's rows are, or None where they are not its blocks."""
        part = next((part for part in self.parts if part.name == name), None)
        return None if part is None else slice(part.first, part.first + part.count)
