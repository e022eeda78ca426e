"""Which samples are in which batch: the same answer in every engine, on every device."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cofair import randomness
from cofair.data.client_table import ClientTable
from cofair.engine.work import Work

_BLOCK_ENTRIES = 1 << 21  # hashes held at once while batches are made; bounds memory for many clients


@dataclass(frozen=True)
class Step:
    """One step of the first `active` clients of a table (those that still have work)."""

    active: int
    positions: Tensor  # (active, B) positions in the table; padded entries repeat the client's first sample
    weights: Tensor  # (active, B) 1/batch size at real samples, 0 at padding
    lr: float | Tensor  # one learning rate, or one per client (active,)
    number: int
    phase_keys: Tensor  # (active,)

    def keys(self) -> Tensor:
        """Return one key per client for randomness inside this step, such as dropout."""
        return randomness.fold(self.phase_keys, self.number)

    def drawn(self, masks: Tensor, choices: Tensor) -> Tensor:
        """Return one of each client's first `choices[i]` masks (active, W, K), drawn uniformly for this step."""
        hashes = randomness.fold(self.keys(), randomness.address("step mask")) & torch.iinfo(torch.int64).max
        which = hashes % choices[: self.active]
        return masks[: self.active][torch.arange(self.active, device=masks.device), which]


def batches_per_epoch(sizes: Tensor, work: Work) -> Tensor:
    """Return how many batches each client's data gives (0 for a client without data)."""
    batch = sizes.clamp(max=work.batch_size).clamp(min=1)
    full = sizes // batch if work.drop_last else (sizes + batch - 1) // batch
    return full.clamp(min=1) * (sizes > 0)


def steps_per_client(sizes: Tensor, work: Work) -> Tensor:
    """Return how many steps each client takes."""
    per_epoch = batches_per_epoch(sizes, work)
    if work.epochs is not None:
        return per_epoch * work.epochs
    assert work.steps is not None
    return work.steps * (per_epoch > 0)


def schedule(table: ClientTable, work: Work, t: int, dtype: torch.dtype) -> Iterator[Step]:
    """Yield the steps of round t. The table's clients must stand in descending order of their steps."""
    sizes = table.sizes
    steps, per_epoch = steps_per_client(sizes, work), batches_per_epoch(sizes, work)
    if not len(sizes) or not steps[0]:
        return
    epochs_a_step = float((per_epoch.clamp(min=1).double() ** -1).sum())
    block = max(1, int(_BLOCK_ENTRIES / (epochs_a_step * int(sizes.max()) + len(sizes) * work.batch_size)))
    phase_keys = randomness.fold(randomness.fold(table.keys, t), randomness.address("phase", work.phase.address))
    active_at = torch.searchsorted(-steps, -torch.arange(int(steps[0])))  # how many have more than s steps
    for first in range(0, int(steps[0]), block):
        last = min(first + block, int(steps[0]))
        live = int(active_at[first])
        positions, real = _block(table, work, phase_keys[:live], steps[:live], per_epoch[:live], first, last)
        weights = real.to(dtype) / real.sum(-1, keepdim=True)
        for s in range(first, last):
            n = int(active_at[s])
            yield Step(
                n, positions[:n, s - first], weights[:n, s - first],
                _learning_rate(work, t, s, per_epoch[:n], table.keys.device, dtype), s, phase_keys[:n],
            )  # fmt: skip


def _block(
    table: ClientTable, work: Work, keys: Tensor, steps: Tensor, per_epoch: Tensor, first: int, last: int
) -> tuple[Tensor, Tensor]:
    """Return positions (n, last - first, B) of a run of steps, and which of them are not padding."""
    device = table.keys.device
    n, B = len(steps), work.batch_size
    sizes = table.sizes[:n]

    # one shuffled order for each (client, epoch) that occurs in this run of steps; small, planned on the host
    begin, end = (torch.minimum(torch.full_like(steps, step), steps - 1) for step in (first, last - 1))
    base, count = begin // per_epoch, end // per_epoch - begin // per_epoch + 1
    owner = torch.repeat_interleave(torch.arange(n), count)
    row_start = torch.cumsum(count, 0) - count
    epoch_of_row = base[owner] + torch.arange(len(owner)) - row_start[owner]
    into_epoch = torch.minimum(sizes, (end % per_epoch + 1) * B)
    needed = int(torch.where(count > 1, sizes, into_epoch).max())
    order, start_of_row = _orders(keys[owner.to(device)], epoch_of_row.to(device), sizes[owner], needed)

    # the place of every entry of every batch in its order; large, computed where the data lies
    steps, per_epoch, sizes, base, row_start, start_of_row = (
        values.to(device) for values in (steps, per_epoch, sizes, base, row_start, start_of_row)
    )
    step = torch.arange(first, last, device=device).minimum(steps[:, None] - 1)  # unread where a client is done
    epoch = step // per_epoch[:, None]
    place = ((step % per_epoch[:, None]) * B)[..., None] + torch.arange(B, device=device)
    real = place < sizes[:, None, None]
    row = row_start[:, None] + epoch - base[:, None]
    flat = start_of_row[row][..., None] + torch.where(real, place, 0)
    positions = order[flat.reshape(-1)].view(flat.shape) + table.offsets[:n, None, None]
    return positions, real


def _orders(keys: Tensor, epochs: Tensor, sizes: Tensor, needed: int) -> tuple[Tensor, Tensor]:
    """Return the shuffled orders of many (client, epoch) rows as one flat tensor, and where each row starts.

    Rows of similar size are made together: one large client must not make all rows as long as its own.
    """
    kind = (torch.log2(sizes.double()) / 2).ceil()
    starts = torch.empty_like(sizes)
    parts: list[Tensor] = []
    total = 0
    for value in sorted(set(kind.tolist())):
        rows = (kind == value).nonzero().flatten()
        there = rows.to(keys.device)
        own = sizes[rows]
        part = orders(randomness.fold(keys[there], epochs[there]), own.to(keys.device), min(needed, int(own.max())))
        starts[rows] = total + torch.arange(len(rows)) * part.shape[1]
        total += part.numel()
        parts.append(part.reshape(-1))
    return torch.cat(parts), starts


def orders(keys: Tensor, sizes: Tensor, needed: int) -> Tensor:
    """Return shuffled sample numbers (len(keys), needed): a stable argsort of one hash per sample."""
    longest = int(sizes.max())
    hashes = randomness.stream(keys, longest)
    outside = torch.arange(longest, device=keys.device) >= sizes[:, None]
    hashes.masked_fill_(outside, torch.iinfo(torch.int64).max)
    if needed * 4 <= longest:  # few of many: select instead of sorting all
        return hashes.topk(needed, dim=1, largest=False, sorted=True).indices
    return hashes.argsort(dim=1, stable=True)[:, :needed]


def _learning_rate(
    work: Work, t: int, step: int, per_epoch: Tensor, device: torch.device, dtype: torch.dtype
) -> float | Tensor:
    if work.decay == 1.0 or work.decay_every == "round":
        return float(work.lr * work.decay ** (t - 1))
    assert work.epochs is not None
    falls = (t - 1) * (work.epochs_a_round or work.epochs) + step // per_epoch
    return (work.lr * work.decay ** falls.double()).to(device=device, dtype=dtype)


def longest_first(sizes: Sequence[int] | Tensor, work: Work) -> Tensor:
    """Return the clients in the order that `schedule` wants: most steps first, ties as they stand."""
    return torch.argsort(steps_per_client(torch.as_tensor(sizes).cpu(), work), descending=True, stable=True)
