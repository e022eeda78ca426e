"""Many submodels of one stack of linear layers, with the work that they share done once, exactly.

Leaving out a unit is a rank-one change of what the next layer adds up. Nested submodels, each holding all units of
the one before, are therefore running sums in the layer above their first units, and only the layers above that are
computed for each of them, on the units it keeps.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from cofair.engine.linear_stack import Activation, LinearStack
from cofair.engine.losses import Loss
from cofair.errors import UsageError

_NARROW = 16  # outputs of a product that are a multiple of this take half the time
_PAIRS = 1 << 27  # sums of units and samples that a GPU holds at once: half a gibibyte
_UNITS = 16  # units whose losses are computed in one go


@dataclass(frozen=True)
class Nesting:
    """Submodels that are nested: candidate i keeps the first `counts[i]` neurons of `order`."""

    order: Tensor
    counts: Tensor


def prefix_masks(order: Tensor, counts: Tensor) -> Tensor:
    """Return masks (C, K) of which candidate i keeps the first counts[i] neurons of an order (K,).

    On a GPU, which would wait for it, the order is not checked: methods make theirs by sorting.
    """
    if not order.is_cuda and not torch.equal(order.sort().values, torch.arange(len(order))):
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


def first_neurons(stack: LinearStack, base: Tensor, x: Tensor) -> Tensor:
    """Return what the first layer with neurons gives (n, units) on inputs (n, ...): the same for all submodels."""
    first = _first_with_neurons(stack)
    h = x.flatten(1)
    for layer in list(_in_order(stack, base, None))[: first + 1]:
        h = layer.act(torch.addmm(layer.bias, h, layer.weight))
    return h


class Nested:
    """Submodels of a base (D,): prefixes of an order (K,) of its neurons, given what the first layer of them fired."""

    def __init__(self, stack: LinearStack, base: Tensor, fired: Tensor, order: Tensor) -> None:
        """Put the units of each layer in the order in which prefixes take them up: what one keeps is then a stretch."""
        self._rank = torch.empty_like(order)
        self._rank[order] = torch.arange(len(order), device=order.device)
        self._parts, self._first = stack.neuron_slices(), _first_with_neurons(stack)
        self._layers = list(_in_order(stack, base, self._rank))
        part = self._parts[self._first]
        assert part is not None
        self._fired = fired[:, self._rank[part].argsort()]

    def outputs(self, counts: Tensor) -> Tensor:
        """Return the outputs (C, n, classes) of the submodels that keep the first counts (C,) neurons."""
        ascending, candidates = counts.to(self._rank.device).sort()
        layers, h = self._layers, self._fired
        pairs = zip(self._parts, layers, strict=True)
        kept = [_kept(self._rank, part, ascending, len(layer.bias)) for part, layer in pairs][self._first :]
        reader, above = layers[self._first + 1], layers[self._first + 2 :]
        total = reader.bias.expand(len(h), -1).clone()
        scratch = torch.empty_like(total)
        outputs = h.new_empty(len(ascending), len(h), len(layers[-1].bias))
        reads = 0
        for place, now, *widths in zip(candidates.tolist(), *kept, strict=True):
            total.addmm_(h[:, reads:now], reader.weight[reads:now])
            reads, value = now, total[:, : widths[0]]
            below = reader
            for layer, width in zip(above, widths[1:], strict=True):
                value = below.act(scratch[:, : widths[0]].copy_(value) if below is reader else value)
                value, below = layer.of_first(value, width), layer
            outputs[place] = value
        return outputs


def removal_changes(stack: LinearStack, base: Tensor, x: Tensor, y: Tensor, loss: Loss) -> Tensor:
    """Return how much the summed loss over samples (n, ...) grows when each neuron is left out, (K,) in float64."""
    assert stack.neurons is not None
    layers = list(_in_order(stack, base, None))
    sums, values = [], [x.flatten(1)]
    for layer in layers:
        sums.append(torch.addmm(layer.bias, values[-1], layer.weight))
        values.append(layer.act(sums[-1].clone()))
    whole = loss(values[-1], y)
    changes = torch.zeros(stack.neurons.count, dtype=torch.float64, device=base.device)
    for place, part in enumerate(stack.neuron_slices()):
        if part is None:
            continue
        if x.is_cuda:
            changes[part] = _without_each_at_once(
                layers[place + 1 :], sums[place + 1], values[place + 1], y, whole, loss
            )
            continue
        fired = values[place + 1].t().contiguous()
        for first in range(0, len(fired), _UNITS):
            block = fired[first : first + _UNITS]
            unit, sample = block.nonzero(as_tuple=True)  # where a unit is silent, nothing changes without it
            if not len(unit):
                continue
            outputs = _without_each(layers[place + 1 :], sums[place + 1], block[unit, sample], first + unit, sample)
            growth = loss(outputs, y.index_select(0, sample)) - whole.index_select(0, sample)
            changes.index_add_(0, part.start + first + unit, growth.double())
    return changes


def _without_each(layers: list["_Layer"], sums: Tensor, fired: Tensor, unit: Tensor, sample: Tensor) -> Tensor:
    """Return the outputs (m, classes) for m pairs of a unit, which is left out, and a sample, on which it fired.

    `sums` (n, outputs) is what the first of the layers above the unit adds up, and pairs stand in order of units.
    """
    reader, *above = layers
    outgoing = reader.weight.neg().contiguous()
    if not above:
        return sums.index_select(0, sample).addcmul_(fired[:, None], outgoing.index_select(0, unit))
    last = above[-1]
    outputs = sums.new_empty(len(sample), last.padded.shape[1])
    start = 0
    for k, count in enumerate(unit.bincount().tolist()):  # unit by unit: one's sums fit a processor's cache
        if not count:
            continue
        these = slice(start, start + count)
        value = sums.index_select(0, sample[these]).addcmul_(fired[these, None], outgoing[k])
        below = reader
        for layer in above[:-1]:
            value, below = layer.of_first(below.act(value), len(layer.bias)), layer
        torch.mm(below.act(value), last.padded, out=outputs[these])
        start += count
    return outputs[:, : len(last.bias)] + last.bias


def _without_each_at_once(
    layers: list["_Layer"], sums: Tensor, fired: Tensor, y: Tensor, whole: Tensor, loss: Loss
) -> Tensor:
    """Return the growth of the summed loss (units,) without each unit, many units in each of a few large steps.

    It also computes the samples on which a unit is silent: a GPU loses less time with them than with finding them.
    """
    reader, *above = layers
    growth = []
    at_once = max(1, _PAIRS // (len(fired) * max(sums.shape[1], 1)))
    for units in torch.split(torch.arange(fired.shape[1], device=fired.device), at_once):
        value = sums - fired[:, units].t()[:, :, None] * reader.weight[units][:, None, :]
        below = reader
        for layer in above:
            value = F.linear(below.act(value), layer.weight.t(), layer.bias)
            below = layer
        targets = y.repeat(len(units), *[1] * (y.dim() - 1))
        grown = loss(value.flatten(0, 1), targets).view(len(units), -1) - whole
        growth.append(grown.sum(1, dtype=torch.float64))
    return torch.cat(growth)


@dataclass(frozen=True)
class _Layer:
    """A linear layer as its transposed weights (inputs, outputs), its bias, and the activation that follows."""

    weight: Tensor
    bias: Tensor
    activation: Activation | None

    @cached_property
    def padded(self) -> Tensor:
        """Return the weights with outputs of zero up to a multiple of 16."""
        return F.pad(self.weight, (0, -len(self.bias) % _NARROW)).contiguous()

    def act(self, value: Tensor) -> Tensor:
        """Apply the activation, in place."""
        return value if self.activation is None else self.activation.function(value)

    def of_first(self, value: Tensor, outputs: int) -> Tensor:
        """Return the first outputs, computed from values (n, k) of the first k inputs."""
        columns = self.padded[: value.shape[1], : outputs + -outputs % _NARROW]
        return torch.mm(value, columns)[:, :outputs].add_(self.bias[:outputs])


def _in_order(stack: LinearStack, base: Tensor, rank: Tensor | None) -> Iterator[_Layer]:
    """Give the layers with the neurons of each in the order of their ranks, or as they are."""
    views = stack.layout.views(base)
    before: Tensor | None = None
    for layer, part in zip(stack.layers, stack.neuron_slices(), strict=True):
        weight = views[layer.weight]
        bias = weight.new_zeros(len(weight)) if layer.bias is None else views[layer.bias]
        after = None if part is None or rank is None else rank[part].argsort()
        if before is not None:
            weight = weight[:, before]
        if after is not None:
            weight, bias = weight[after], bias[after]
        yield _Layer(weight.t(), bias, layer.activation)
        before = after


def _first_with_neurons(stack: LinearStack) -> int:
    return next(i for i, part in enumerate(stack.neuron_slices()) if part is not None)


def _kept(rank: Tensor, part: slice | None, counts: Tensor, width: int) -> list[int]:
    """Return how many units of a layer each candidate keeps."""
    if part is None:
        return [width] * len(counts)
    kept: list[int] = (rank[part] < counts[:, None]).sum(1).tolist()
    return kept
