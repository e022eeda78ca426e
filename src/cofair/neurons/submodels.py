"""Many submodels of one stack of linear layers, with the work that they share done once, exactly.

Leaving out a unit is a rank-one change of what the next layer adds up. Nested submodels, each holding all units of
the one before, are therefore running sums in the layer above their first units, and only the layers above that are
computed for each of them, on the units it keeps.
"""

from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from cofair.engine.linear_stack import LinearStack
from cofair.engine.losses import Loss
from cofair.errors import UsageError

_MOSTLY = 0.8  # gathering the samples that a unit fires on pays below this share of them


@dataclass(frozen=True)
class Nesting:
    """Submodels that are nested: candidate i keeps the first `counts[i]` neurons of `order`."""

    order: Tensor
    counts: Tensor


def prefix_masks(order: Tensor, counts: Tensor) -> Tensor:
    """Return masks (C, K) of which candidate i keeps the first counts[i] neurons of an order (K,)."""
    if not torch.equal(order.sort().values, torch.arange(len(order), device=order.device)):
        raise UsageError(f"An order of {len(order)} neurons must name each of 0 to {len(order) - 1} once.")
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order), device=order.device)
    return rank < counts.to(order.device)[:, None]


def nesting(masks: Tensor) -> Nesting | None:
    """Return the order of which masks (C, K) are prefixes, or None where two of them are not nested."""
    keep = masks.bool()
    counts = keep.sum(1)
    ascending = keep[counts.argsort(stable=True)]
    if bool((ascending[:-1] & ~ascending[1:]).any()):
        return None
    return Nesting(keep.sum(0).argsort(descending=True, stable=True), counts)


def nested_outputs(stack: LinearStack, base: Tensor, x: Tensor, nested: Nesting) -> Tensor:
    """Return the outputs (C, n, classes) of nested submodels of a base (D,) on inputs (n, ...)."""
    views = stack.layout.views(base)
    parts = stack.neuron_slices()
    first = next(i for i, part in enumerate(parts) if part is not None)
    below = x.flatten(1)
    for layer in stack.layers[: first + 1]:
        below = F.linear(below, views[layer.weight], views[layer.bias] if layer.bias else None)
        below = layer.activation.function(below) if layer.activation else below

    # units of each layer in the order in which prefixes take them up: what a candidate keeps is then a stretch
    counts, candidates = nested.counts.sort()
    rank = torch.empty_like(nested.order)
    rank[nested.order] = torch.arange(len(rank), device=rank.device)
    weights, biases, kept = [], [], []
    before = _taken_up(rank, parts[first])
    h = below[:, before].t().contiguous()
    kept.append(_kept(rank, parts[first], counts, len(before)))
    for layer, part in zip(stack.layers[first + 1 :], parts[first + 1 :], strict=True):
        weight, bias = views[layer.weight], None if layer.bias is None else views[layer.bias]
        after = torch.arange(len(weight), device=base.device) if part is None else _taken_up(rank, part)
        weights.append(weight[after][:, before])
        biases.append(base.new_zeros(len(after), 1) if bias is None else bias[after, None])
        kept.append(_kept(rank, part, counts, len(after)))
        before = after
    activations = [layer.activation for layer in stack.layers[first + 1 :]]

    n = len(x)
    outputs = base.new_empty(len(counts), n, len(weights[-1]))
    total, scratch = (base.new_empty(len(weights[0]), n) for _ in range(2))
    reads, rows = 0, 0
    for place, *widths in zip(candidates.tolist(), *kept, strict=True):
        now, value_rows = widths[0], widths[1]
        if now > reads and rows:
            total[:rows].addmm_(weights[0][:rows, reads:now], h[reads:now])
        if value_rows > rows:
            new = slice(rows, value_rows)
            torch.addmm(biases[0][new], weights[0][new, :now], h[:now], out=total[new])
        reads, rows = now, value_rows
        value = total[:rows]
        for i, (weight, bias, width) in enumerate(zip(weights[1:], biases[1:], widths[2:], strict=True)):
            value = scratch[:rows].copy_(value) if i == 0 else value
            activation = activations[i]
            value = activation.function(value) if activation else value
            value = torch.addmm(bias[:width], weight[:width, : len(value)], value)
        outputs[place] = value.t()
    return outputs


def removal_changes(stack: LinearStack, base: Tensor, x: Tensor, y: Tensor, loss: Loss) -> Tensor:
    """Return how much the summed loss over samples (n, ...) grows when each neuron is left out, (K,) in float64."""
    assert stack.neurons is not None
    views = stack.layout.views(base)
    sums, values = [], [x.flatten(1)]
    for layer in stack.layers:
        sums.append(F.linear(values[-1], views[layer.weight], views[layer.bias] if layer.bias else None))
        values.append(layer.activation.function(sums[-1].clone()) if layer.activation else sums[-1])
    whole = loss(values[-1], y)
    changes = torch.zeros(stack.neurons.count, dtype=torch.float64, device=base.device)
    for place, part in enumerate(stack.neuron_slices()):
        if part is None:
            continue
        above = stack.layers[place + 1 :]
        outgoing = views[above[0].weight].t().neg().contiguous()
        fired = values[place + 1].t().contiguous()
        for unit in range(part.stop - part.start):
            fires = fired[unit].nonzero()[:, 0]  # where a unit is silent, nothing changes without it
            if len(fires) > _MOSTLY * len(x):
                value = torch.addcmul(sums[place + 1], fired[unit, :, None], outgoing[unit])
                targets, with_it = y, whole
            else:
                value = sums[place + 1].index_select(0, fires)
                value.addcmul_(fired[unit].index_select(0, fires)[:, None], outgoing[unit])
                targets, with_it = y.index_select(0, fires), whole.index_select(0, fires)
            for layer, reader in pairwise(above):
                value = layer.activation.function(value) if layer.activation else value
                # weights on the left: a product with few outputs is then three times as fast
                value = torch.mm(views[reader.weight], value.t()).t()
                value = value.add_(views[reader.bias]) if reader.bias else value
            changes[part.start + unit] = (loss(value, targets) - with_it).sum(dtype=torch.float64)
    return changes


def _taken_up(rank: Tensor, part: slice | None) -> Tensor:
    """Return the units of a layer in the order in which prefixes take them up."""
    assert part is not None
    return rank[part].argsort()


def _kept(rank: Tensor, part: slice | None, counts: Tensor, width: int) -> list[int]:
    """Return how many units of a layer each candidate keeps."""
    if part is None:
        return [width] * len(counts)
    kept: list[int] = (rank[part] < counts[:, None]).sum(1).tolist()
    return kept
