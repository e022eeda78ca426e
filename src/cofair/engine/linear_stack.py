"""All clients' plain stacks of linear layers in one batch, with a backward pass written by hand.

The gradient of a weight matrix is never stored: the update is added in place by a batched matrix product, and
its norm (for clipping) comes from two small Gram matrices, ‖Σ_b δ_b x_bᵀ‖² = Σ_bb' (δ_b·δ_b')(x_b·x_b').
A step then reads every weight twice and writes it once, which is what memory traffic allows at best.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cofair.engine.losses import Loss, cross_entropy
from cofair.models.blocks import Blocks
from cofair.models.parameters import Layout
from cofair.neurons.map import NeuronMap


@dataclass(frozen=True)
class Activation:
    """An activation and its derivative, written in terms of its output so that inputs need not be kept."""

    function: Callable[[Tensor], Tensor]
    derivative: Callable[[Tensor], Tensor]


_ACTIVATIONS: dict[type[nn.Module], Activation] = {
    nn.ReLU: Activation(torch.relu_, lambda h: (h > 0).to(h.dtype)),
    nn.Tanh: Activation(torch.tanh_, lambda h: 1 - h * h),
    nn.Sigmoid: Activation(torch.sigmoid_, lambda h: h * (1 - h)),
}
_ALIGNED = 4  # float32 numbers, 16 bytes: rows that are no multiple of them are kept from a GPU's tensor cores


@dataclass(frozen=True)
class _Linear:
    weight: str
    bias: str | None
    activation: Activation | None


class LinearStack:
    """Linear layers with element-wise activations between them, for rows of parameters."""

    def __init__(self, layers: Sequence[_Linear], layout: Layout, neurons: NeuronMap | None) -> None:
        """Use `LinearStack.of`, which looks whether a module is such a stack."""
        self.layers = tuple(layers)
        self.layout = layout
        self.neurons = neurons

    @classmethod
    def of(cls, layout: Layout, neurons: NeuronMap | None) -> "LinearStack | None":
        """Return the stack that a layout's module is, or None if it is something else."""
        layers: list[_Linear] = []
        if any(has_hooks(part) for part in layout.prototype.modules()):
            return None
        for name, part in sequential_leaves(layout.prototype):
            if type(part) is nn.Flatten and not layers and (part.start_dim, part.end_dim) == (1, -1):
                continue
            if type(part) is nn.Linear:  # a subclass may compute anything
                prefix = f"{name}." if name else ""
                layers.append(_Linear(f"{prefix}weight", f"{prefix}bias" if part.bias is not None else None, None))
            elif type(part) in _ACTIVATIONS and layers and layers[-1].activation is None:
                last = layers[-1]
                layers[-1] = _Linear(last.weight, last.bias, _ACTIVATIONS[type(part)])
            elif type(part) is not nn.Identity:
                return None
        names = [name for layer in layers for name in (layer.weight, layer.bias) if name]
        trainable = {own.name for own in layout.slices}
        # a layer used twice, a frozen one, an activation at the end: leave these to the general engine
        if not layers or layers[-1].activation or len(set(names)) < len(names) or set(names) != trainable:
            return None
        if neurons is not None and not _covers_hidden_layers(layers, neurons):
            return None
        return cls(layers, layout, neurons)

    def neuron_slices(self) -> list[slice | None]:
        """Return, for each layer, which of the K neurons its outputs are, or None."""
        slices: list[slice | None] = [None] * len(self.layers)
        if self.neurons is not None:
            place = {layer.weight: i for i, layer in enumerate(self.layers)}
            for layer, where in zip(self.neurons.layers, self.neurons.slices, strict=True):
                slices[place[str(layer.made_by[0])]] = where
        return slices

    def unit_masks(self, neuron_masks: Tensor | None) -> list[Tensor | None]:
        """Return, for each layer, a mask (C, 1, units) of its outputs."""
        if neuron_masks is None:
            return [None] * len(self.layers)
        assert self.neurons is not None
        return [
            None if where is None else neuron_masks[:, None, where].to(self.layout.dtype)
            for where in self.neuron_slices()
        ]

    def activations(self, rows: Tensor, x: Tensor, masks: Sequence[Tensor | None]) -> list[Tensor]:
        """Run rows (A, D) on inputs (A, B, d); return the inputs of each layer and the outputs (A, B, C)."""
        views = self.layout.views(rows)
        values = [x]
        for layer, mask in zip(self.layers, masks, strict=True):
            # weights on the left: in float32 a tenth of a GPU's step is saved, on a CPU it is the same
            weight, inputs = views[layer.weight], values[-1].transpose(1, 2)
            if layer.bias is None:
                z = torch.bmm(weight, inputs)
            else:
                z = torch.baddbmm(views[layer.bias][:, :, None], weight, inputs)
            z = z.transpose(1, 2)
            if layer.activation is not None:
                z = layer.activation.function(z)
            if mask is not None:
                z = z.mul_(mask)
            values.append(z)
        return values

    def outputs(self, parameters: Tensor, x: Tensor, neuron_masks: Tensor | None) -> Tensor:
        """Run candidates on the same inputs (n, ...): outputs (C, n, classes).

        Candidates are rows (C, D), or one base (D,) under neuron masks (C, K): then all layers below the first
        mask are computed once.
        """
        views = self.layout.views(parameters)
        value = x.flatten(1)
        mask: Tensor | None = None  # of the values, not yet applied
        for layer, own in zip(self.layers, self.unit_masks(neuron_masks), strict=True):
            weight, bias = views[layer.weight], None if layer.bias is None else views[layer.bias]
            if mask is not None and weight.shape[-2] < len(x):  # fewer weights than values: leave units out there
                weight, mask = weight * mask, None
            if mask is not None:
                value = value * mask  # broadcasts one base to its candidates
            value = _applied(weight, bias, value)
            if layer.activation is not None:
                value = layer.activation.function(value)
            mask = own
        return value if value.dim() == 3 else value[None]

    def rows_of_first(self, blocks: Blocks) -> slice | None:
        """Return which blocks the outputs of the first layer are, where each is one with its bias, or None."""
        layer = self.layers[0]
        where = blocks.of(layer.weight)
        return where if layer.bias is None or blocks.of(layer.bias) == where else None

    def is_first(self, name: str) -> bool:
        """Say whether a parameter is the first layer's."""
        return name in (self.layers[0].weight, self.layers[0].bias)

    def first(self, rows: Tensor, x: Tensor) -> Tensor:
        """Return what the first layer of rows (C, D) puts out on inputs (n, ...): (C, n, units), not activated."""
        views, layer = self.layout.views(rows), self.layers[0]
        return _applied(views[layer.weight], None if layer.bias is None else views[layer.bias], x.flatten(1))

    def after_first(self, views: Mapping[str, Tensor], value: Tensor) -> Tensor:
        """Return the outputs (C, n, classes) of models by their parameters' names, but for the first layer.

        `value` is what that layer puts out, and is written over.
        """
        for layer, below in zip(self.layers[1:], self.layers, strict=False):
            if below.activation is not None:
                value = below.activation.function(value)
            value = _applied(views[layer.weight], None if layer.bias is None else views[layer.bias], value)
        return value

    def step(
        self, rows: Tensor, x: Tensor, y: Tensor, weights: Tensor, masks: Sequence[Tensor | None],
        lr: Tensor, clip: float | None, loss: Loss,
    ) -> None:  # fmt: skip
        """Take one SGD step of every row, in place, at rates (A,), on batches x (A, B, ...), y and weights (A, B)."""
        values = self.activations(rows, x.flatten(2), masks)
        views = self.layout.views(rows)
        deltas: list[Tensor] = [_output_gradient(values[-1], y, weights, loss)]
        for i in range(len(self.layers) - 1, 0, -1):
            delta = torch.bmm(deltas[0], views[self.layers[i].weight])
            below, mask = self.layers[i - 1].activation, masks[i - 1]
            if below is not None:
                delta = delta.mul_(below.derivative(values[i]))
            if mask is not None:
                delta = delta.mul_(mask)
            deltas.insert(0, delta)

        gradients: list[Tensor | None] = [
            None if _gram_is_cheaper(delta, value) else torch.bmm(delta.transpose(1, 2), value)
            for delta, value in zip(deltas, values, strict=False)
        ]
        scale = -lr
        if clip is not None:
            squares = sum(
                (_squared_norm(d, v, g) for d, v, g in zip(deltas, values, gradients, strict=False)),
                start=torch.zeros(len(rows), dtype=rows.dtype, device=rows.device),
            )
            for layer, delta in zip(self.layers, deltas, strict=True):
                if layer.bias is not None:
                    squares = squares + delta.sum(1).square_().sum(1)
            scale = scale * (clip / (squares.sqrt_() + 1e-6)).clamp_(max=1.0)
        scale = scale[:, None, None]
        for layer, delta, value, gradient in zip(self.layers, deltas, values, gradients, strict=False):
            if gradient is None:
                delta = delta.mul_(scale)
                views[layer.weight].baddbmm_(delta.transpose(1, 2), value)
                change = delta.sum(1)
            else:
                views[layer.weight].add_(gradient.mul_(scale))
                change = (delta.sum(1, keepdim=True) * scale).squeeze(1)
            if layer.bias is not None:
                views[layer.bias].add_(change)


def _applied(weight: Tensor, bias: Tensor | None, value: Tensor) -> Tensor:
    """Return a linear layer of all candidates, or of one for all, on values (n, inputs), or (C, n, inputs)."""
    outputs = weight.shape[-2]
    if weight.is_cuda and (missing := -outputs % _ALIGNED):
        weight = F.pad(weight, (0, 0, 0, missing))
        bias = None if bias is None else F.pad(bias, (0, missing))
    return _linear(weight, bias, value)[..., :outputs]


def _linear(weight: Tensor, bias: Tensor | None, value: Tensor) -> Tensor:
    """Return the same for any number of outputs, fastest where they are aligned."""
    if weight.dim() == 2:
        return F.linear(value, weight, bias)
    candidates, outputs = weight.shape[:2]
    if value.dim() == 2:  # the same values for all candidates: one matrix product
        if bias is not None:
            bias = bias.expand(candidates, outputs).flatten()
        return F.linear(value, weight.flatten(0, 1), bias).view(len(value), candidates, outputs).transpose(0, 1)
    if weight.is_cuda and weight.stride(0) % _ALIGNED:  # rows of parameters that lie one directly behind the other
        weight = weight.contiguous()
    if bias is None:
        return torch.bmm(value, weight.transpose(1, 2))
    return torch.baddbmm(bias if bias.dim() == 1 else bias[:, None, :], value, weight.transpose(1, 2))


def has_hooks(module: nn.Module) -> bool:
    """Say whether something is called with what a module computes."""
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return any(len(kind) > 0 for kind in hooks)


def sequential_leaves(module: nn.Module, prefix: str = "") -> list[tuple[str, nn.Module]]:
    """Return the parts of nested nn.Sequentials in order; anything else is a part of its own."""
    overridden = type(module).forward is not nn.Sequential.forward
    if not isinstance(module, nn.Sequential) or overridden:
        return [(prefix, module)]
    leaves: list[tuple[str, nn.Module]] = []
    for name, child in module._modules.items():  # named_children() would pass over a layer used twice
        assert child is not None
        leaves += sequential_leaves(child, f"{prefix}.{name}" if prefix else name)
    return leaves


def _covers_hidden_layers(layers: Sequence[_Linear], neurons: NeuronMap) -> bool:
    """Say whether every declared layer of neurons is one hidden layer, whole and unit by unit."""
    reader = {a.weight: (a, b.weight) for a, b in pairwise(layers)}
    for declared in neurons.layers:
        made_by = declared.made_by[0] if declared.made_by else None
        if declared.mask is not None or not isinstance(made_by, str) or made_by not in reader:
            return False
        layer, read_by = reader[made_by]
        if set(declared.made_by) != {layer.weight, layer.bias} - {None} or declared.read_by != (read_by,):
            return False
        if neurons.layout.shape(layer.weight)[0] != declared.count:
            return False
    return True


def _output_gradient(outputs: Tensor, y: Tensor, weights: Tensor, loss: Loss) -> Tensor:
    """Return the gradient of each client's mean loss at its outputs."""
    if loss is cross_entropy:
        gradient = torch.softmax(outputs, -1)
        gradient.scatter_add_(-1, y[..., None], torch.full_like(weights, -1.0)[..., None])
        return gradient.mul_(weights[..., None])
    with torch.enable_grad():
        leaf = outputs.detach().requires_grad_()
        total = (loss(leaf.flatten(0, 1), y.flatten(0, 1)) * weights.flatten()).sum()
        return torch.autograd.grad(total, leaf)[0]


def _gram_is_cheaper(delta: Tensor, value: Tensor) -> bool:
    B, outputs = delta.shape[1:]
    inputs = value.shape[2]
    return B * (inputs + outputs) < inputs * outputs


def _squared_norm(delta: Tensor, value: Tensor, gradient: Tensor | None) -> Tensor:
    if gradient is not None:
        return gradient.flatten(1).square().sum(1)
    gram = torch.bmm(delta, delta.transpose(1, 2)).mul_(torch.bmm(value, value.transpose(1, 2)))
    return gram.flatten(1).sum(1).clamp_(min=0)
