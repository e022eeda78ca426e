"""What a method may ask of clients besides their updates: losses of the model they received, on their own data."""

from collections.abc import Iterable, Iterator
from itertools import islice

import torch
from torch import Tensor

from cofair.data.client_table import ClientTable
from cofair.engine.phases import Phase
from cofair.engine.schedule import Step, batches_per_epoch, schedule
from cofair.engine.work import Work

# FedAVE looks at shuffled batches of 64, whatever the batch size of training
LOOK = Work(steps=None, epochs=1, batch_size=64, phase=Phase("look"))


def from_batch_losses(asked: Iterable[str], losses: Tensor, sizes: Tensor) -> dict[str, Tensor]:
    """Return the statistics asked for, from mean losses of batches (N, S) padded with NaN.

    `batch_losses_before` is these losses unchanged; `loss_before` (N,) is the mean over a client's samples.
    """
    found: dict[str, Tensor] = {}
    for name in asked:
        if name == "batch_losses_before":
            found[name] = losses
        else:
            full = torch.arange(losses.shape[1], device=losses.device) * LOOK.batch_size
            counts = (sizes.to(losses.device)[:, None] - full).clamp(0, LOOK.batch_size)
            found[name] = torch.where(losses.isnan(), 0, losses * counts).sum(1) / counts.sum(1)
            found[name][losses.isnan().all(1)] = torch.nan
    return found


def looked_at(sizes: Tensor, looks: int | None) -> Tensor:
    """Return how many batches (N,) of each client's data are looked at, `looks` at most."""
    whole = batches_per_epoch(sizes, LOOK)
    return whole if looks is None else whole.clamp(max=looks)


def look(table: ClientTable, looks: int | None, t: int, dtype: torch.dtype) -> Iterator[Step]:
    """Yield the batches to look at in round t; clients of the table must stand in descending order of their batches."""
    return islice(schedule(table, LOOK, t, dtype), looks)


def empty_losses(sizes: Tensor, looks: int | None, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return room for one loss per client and batch looked at (N, S), all NaN."""
    longest = int(looked_at(sizes, looks).max())
    return torch.full((len(sizes), longest), torch.nan, dtype=dtype, device=device)
