"""Which parameters belong to which neuron, and the masks that leave neurons out.

A neuron is the smallest thing a submodel can leave out: a hidden unit, a channel, an attention head.
Leaving it out means multiplying by zero everything that computes it and everything that reads it, so that
no gradient reaches those parameters either.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor, nn

from cofair.errors import UsageError
from cofair.models.neuron_layers import DeclaresNeurons, NeuronLayer
from cofair.models.parameters import Layout
from cofair.neurons.find import find_layers


@dataclass(frozen=True)
class _Axis:
    """Dimension `dim` of a parameter: its slice j belongs to neuron `owner[j]` of a layer, or to none (K)."""

    parameter: str
    dim: int
    owner: Tensor
    layer: int
    _copies: dict[torch.device, Tensor] = field(default_factory=dict, compare=False)

    def owner_on(self, device: torch.device) -> Tensor:
        """Return the owners on a device; copied there once, since a GPU waits for every copy."""
        if device not in self._copies:
            self._copies[device] = self.owner.to(device)
        return self._copies[device]


class NeuronMap:
    """The K neurons of a model, all layers together, and what each of them owns."""

    def __init__(self, layers: Sequence[NeuronLayer], layout: Layout) -> None:
        """Bind declared layers to the parameters of a layout."""
        self.layers = tuple(layers)
        self.layout = layout
        starts = [0]
        for layer in self.layers:
            starts.append(starts[-1] + layer.count)
        self.slices = tuple(slice(a, b) for a, b in pairwise(starts))
        self.count = starts[-1]
        self._axes = tuple(self._bind())

    @classmethod
    def of(cls, module: nn.Module, layout: Layout, example: Tensor | None = None) -> "NeuronMap | None":
        """Return the neurons that a module declares or that are found in it, or None when it has none.

        With an example of its inputs (n, ...) layers that are coupled, as by residual sums, are found too, where
        Torch-Pruning is installed.
        """
        declares = isinstance(module, DeclaresNeurons) and callable(module.neurons)
        layers = module.neurons() if declares else find_layers(module, example)  # type: ignore[operator]
        return cls(layers, layout) if layers else None

    def _bind(self) -> Iterator[_Axis]:
        for number, (layer, where) in enumerate(zip(self.layers, self.slices, strict=True)):
            for dim, declared in enumerate((layer.made_by, layer.read_by)):
                for item in declared:
                    name = item if isinstance(item, str) else item.parameter
                    size = self.layout.shape(name)[dim]
                    start, stop = (0, size) if isinstance(item, str) else (item.start, item.stop)
                    run, rest = divmod(stop - start, layer.count)
                    if rest or not run or not 0 <= start < stop <= size:
                        raise UsageError(
                            f"layer {layer.name!r} declares {layer.count} neurons, but entries {start} to {stop} of "
                            f"dimension {dim} of {name!r} (size {size}) cannot be divided among them."
                        )
                    owner = torch.full((size,), self.count)
                    owner[start:stop] = torch.arange(where.start, where.stop).repeat_interleave(run)
                    yield _Axis(name, dim, owner, number)

    def parameter_mask(self, neuron_masks: Tensor) -> Tensor:
        """Turn neuron masks (N, K) into parameter masks (N, D): kept is what all neurons of it keep."""
        mask = torch.ones(len(neuron_masks), self.layout.size, dtype=torch.bool, device=neuron_masks.device)
        views = self.layout.views(mask)
        for name, own in self.parameter_masks(neuron_masks).items():
            views[name] &= own
        return mask

    def kept_count(self, neuron_masks: Tensor) -> Tensor:
        """Return how many parameters in D neuron masks (N, K) keep (N,).

        Of a tensor that is what lies in kept slices along each of its dimensions: no mask of the model's size is made.
        """
        slices: dict[str, dict[int, Tensor]] = {}
        for axis, kept in self._kept_along(neuron_masks.bool(), self._axes):
            if axis.parameter not in self.layout.frozen:
                dims = slices.setdefault(axis.parameter, {})
                dims[axis.dim] = kept & dims[axis.dim] if axis.dim in dims else kept
        count = torch.full((len(neuron_masks),), self.layout.size, device=neuron_masks.device)
        for name, dims in slices.items():
            shape = self.layout.shape(name)
            others = math.prod(size for dim, size in enumerate(shape) if dim not in dims)
            inside = [kept.sum(1) for kept in dims.values()]
            count += others * math.prod(inside[1:], start=inside[0]) - math.prod(shape)
        return count

    def parameter_masks(self, neuron_masks: Tensor) -> dict[str, Tensor]:
        """Return the same by name, as masks that fit (N, *shape), of those parameters in D that belong to neurons."""
        masks = self._masks(neuron_masks, self._axes)
        return {name: own for name, own in masks.items() if name not in self.layout.frozen}

    def reader_masks(self, neuron_masks: Tensor) -> dict[str, Tensor]:
        """Return masks (N, ...) of the parameters in D that read neurons (where none do, that make them): few of all.

        They are enough to silence neurons wherever nothing but a reader sees what a neuron sends.
        """
        masks = self._masks(neuron_masks, self._scaling())
        return {name: own for name, own in masks.items() if name not in self.layout.frozen}

    def frozen_masks(self, neuron_masks: Tensor) -> dict[str, Tensor]:
        """Return masks (N, *shape) of the frozen parameters that belong to neurons."""
        masks = self._masks(neuron_masks, self._axes)
        shape = self.layout.shape
        return {name: masks[name].expand(-1, *shape(name)) for name in masks if name in self.layout.frozen}

    def _masks(self, neuron_masks: Tensor, axes: Iterable[_Axis]) -> dict[str, Tensor]:
        """Return by parameter what neuron masks (N, K) keep along some axes, as masks that fit (N, *shape)."""
        masks: dict[str, Tensor] = {}
        for axis, kept in self._kept_along(neuron_masks.bool(), axes):
            shape = [len(kept)] + [1] * len(self.layout.shape(axis.parameter))
            shape[1 + axis.dim] = -1
            along = kept.view(shape)
            masks[axis.parameter] = masks[axis.parameter] & along if axis.parameter in masks else along
        return masks

    def activation_masks(self, neuron_masks: Tensor) -> dict[str, Tensor]:
        """Return the mask buffers (N, count) of layers that mask activations."""
        named = zip(self.layers, self.slices, strict=True)
        return {layer.mask: neuron_masks[:, where] for layer, where in named if layer.mask is not None}

    @property
    def first_order_names(self) -> list[str]:
        """Name what scales each neuron's activation: its readers, its mask, or for want of these its makers."""
        masks = [layer.mask for layer in self.layers if layer.mask is not None]
        return list(dict.fromkeys([axis.parameter for axis in self._scaling()] + masks))

    def summed(self, values: Mapping[str, Tensor]) -> Tensor:
        """Sum values of the tensors in `first_order_names` over the entries that scale each neuron: (K,), float64."""
        some = next(iter(values.values()))
        totals = torch.zeros(self.count + 1, dtype=torch.float64, device=some.device)
        for axis in self._scaling():
            value = values[axis.parameter].double().movedim(axis.dim, 0)
            totals.index_add_(0, axis.owner_on(some.device), value.flatten(1).sum(1))
        for layer, where in zip(self.layers, self.slices, strict=True):
            if layer.mask is not None:
                totals[where] += values[layer.mask]
        return totals[: self.count]

    def _scaling(self) -> Iterator[_Axis]:
        for axis in self._axes:
            layer = self.layers[axis.layer]
            if layer.mask is None and (axis.dim == 1 or not layer.read_by):
                yield axis

    def _kept_along(self, keep: Tensor, axes: Iterable[_Axis]) -> Iterator[tuple[_Axis, Tensor]]:
        """Give, for each axis, which slices along it masks (N, K) keep (N, size)."""
        padded = torch.cat([keep, keep.new_ones(len(keep), 1)], 1)  # what belongs to no neuron is always kept
        for axis in axes:
            yield axis, padded[:, axis.owner_on(keep.device)]
