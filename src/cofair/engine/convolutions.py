"""Convolutions and poolings of many models at once, by kernels of our own where torch.func has one of N groups.

cuDNN is slow at the gradients of convolutions of many groups and takes no tensor cores for those of the inputs.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn, unflatten
from torch.autograd.function import once_differentiable
from torch.nn.grad import conv2d_input, conv2d_weight

try:
    from cofair.engine import convolution_kernels as kernels
except ImportError:  # Triton comes with PyTorch for CUDA on Linux only
    kernels = None  # type: ignore[assignment]

DEVICES = {"cuda"}  # on a CPU torch.func's own rule is faster; tests add "cpu"
LARGEST = 2**31 - 1  # numbers in the images of one model, at most: kernels count them in 32 bits
Pair = tuple[int, int]


@dataclass(frozen=True)
class Layer:
    """What a convolution's kernels have to know beside its tensors."""

    image: Pair
    kernel: Pair
    stride: Pair
    padding: Pair

    @cached_property
    def out(self) -> Pair:
        """Return the height and width of the outputs."""
        h, w = ((self.image[d] + 2 * self.padding[d] - self.kernel[d]) // self.stride[d] + 1 for d in (0, 1))
        return h, w


class StackableConv2d(nn.Conv2d):
    """A convolution that torch.func hands to our kernels."""

    def forward(self, input: Tensor) -> Tensor:
        """Return what nn.Conv2d returns."""
        if input.device.type not in DEVICES or input.dim() != 4:
            return super().forward(input)
        height, width = input.shape[2:]
        layer = Layer((height, width), self.kernel_size, self.stride, self.padding)  # type: ignore[arg-type]
        return cast(Tensor, _Convolution.apply(input, self.weight, self.bias, layer))  # type: ignore[no-untyped-call]


class StackableMaxPool2d(nn.MaxPool2d):
    """A pooling of windows side by side that torch.func hands to our kernels."""

    def forward(self, input: Tensor) -> Tensor:
        """Return what nn.MaxPool2d returns."""
        if input.device.type not in DEVICES or input.dim() != 4 or kernels is None:
            return cast(Tensor, super().forward(input))
        out, _ = _Pool.apply(input, _pair(self.kernel_size))  # type: ignore[no-untyped-call]
        return cast(Tensor, out)


def make_stackable(module: nn.Module) -> None:
    """Make a module's plain convolutions and poolings stackable ones; their parameters, names and hooks stay."""
    for part in module.modules():
        if type(part) is nn.Conv2d and (part.groups, part.dilation, part.padding_mode) == (1, (1, 1), "zeros"):
            part.__class__ = nn.Conv2d if isinstance(part.padding, str) else StackableConv2d
        elif type(part) is nn.MaxPool2d and _side_by_side(part):
            part.__class__ = StackableMaxPool2d
        elif type(part) is nn.GroupNorm:
            part.register_forward_pre_hook(_channels_first)


def _side_by_side(pool: nn.MaxPool2d) -> bool:
    kernel = _pair(pool.kernel_size)
    plain = (_pair(pool.padding), _pair(pool.dilation), pool.ceil_mode, pool.return_indices)
    few = math.prod(kernel) <= 127  # places in a window have 8 bits
    return few and _pair(pool.stride) == kernel and plain == ((0, 0), (1, 1), False, False)


def _pair(value: Any) -> Pair:
    return (value, value) if isinstance(value, int) else tuple(value)


def _channels_first(_: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
    """Make the copy that group_norm would make: its look at the channels' place has no rule in torch.func."""
    if not inputs or inputs[0].device.type not in DEVICES:
        return None
    return (inputs[0].clone(memory_format=torch.contiguous_format),)


class _Convolution(torch.autograd.Function):
    """One model's convolution, and the door through which torch.func hands over those of all models."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None, layer: Layer) -> Tensor:
        return F.conv2d(x, weight, bias, layer.stride, layer.padding)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs[:2])
        ctx.layer = inputs[3]

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (x, weight), needs, steps = ctx.saved_tensors, ctx.needs_input_grad, (ctx.layer.stride, ctx.layer.padding)
        dx = conv2d_input(x.shape, weight, g, *steps) if needs[0] else None  # type: ignore[no-untyped-call]
        dw = conv2d_weight(x, weight.shape, g, *steps) if needs[1] else None  # type: ignore[no-untyped-call]
        return dx, dw, g.sum((0, 2, 3)) if needs[2] else None, None

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, weight: Tensor, bias: Tensor | None, layer: Layer) -> Any:
        N, steps = info.batch_size, (layer.stride, layer.padding)
        x = _stack(x, in_dims[0], N)
        if in_dims[1] is None and in_dims[2] is None:  # one convolution of all models' samples
            return unflatten(F.conv2d(x.flatten(0, 1), weight, bias, *steps), 0, x.shape[:2]), 0
        weight = _stack(weight, in_dims[1], N)
        bias = None if bias is None else _stack(bias, in_dims[2], N)
        if kernels is None or x.dtype is not torch.float32 or _largest(x, weight, layer) > LARGEST:
            flat = None if bias is None else bias.flatten()
            out = F.conv2d(x.transpose(0, 1).flatten(1, 2), weight.flatten(0, 1), flat, *steps, groups=N)
            return unflatten(out, 1, (N, -1)), 1
        return _Stacked.apply(x, weight, bias, layer), 0  # type: ignore[no-untyped-call]


class _Stacked(torch.autograd.Function):
    """Outputs (N, B, O, h, w) of images (N, B, C, H, W), kernels (N, O, C, k, k) and biases (N, O)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, layer: Layer) -> Tensor:
        ctx.layer = layer
        ctx.save_for_backward(x, weight)
        rows = weight.movedim(2, -1).flatten(2).contiguous()
        return kernels.product(x, rows, None if bias is None else bias.contiguous(), layer)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> Any:
        (x, weight), needs, dx, dw, db = ctx.saved_tensors, ctx.needs_input_grad, None, None, None
        if needs[0]:
            dx = kernels.product(g, weight.movedim(1, -1).flatten(2).contiguous(), None, ctx.layer, back=True)
        if needs[1] or needs[2]:
            dw, db = kernels.weight_gradient(x, g, ctx.layer, needs[2])
        return dx, dw, db if needs[2] else None, None


class _Pool(torch.autograd.Function):
    """The largest number of each window, and where in the window it is."""

    @staticmethod
    def forward(x: Tensor, kernel: Pair) -> tuple[Tensor, Tensor]:
        stacked = x if x.dim() == 5 else x[None]
        out, where = kernels.pool(stacked, kernel)
        return (out, where) if x.dim() == 5 else (out[0], where[0])

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1])
        ctx.image, ctx.kernel = tuple(inputs[0].shape[-2:]), inputs[1]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor, _: Any) -> Any:
        where = ctx.saved_tensors[0]
        if g.dim() == 5:
            return kernels.pool_gradient(g, where, ctx.image, ctx.kernel), None
        return kernels.pool_gradient(g[None], where[None], ctx.image, ctx.kernel)[0], None

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, kernel: Pair) -> Any:
        return _Pool.apply(_stack(x, in_dims[0], info.batch_size), kernel), (0, 0)  # type: ignore[no-untyped-call]


def _stack(tensor: Tensor, at: int | None, count: int) -> Tensor:
    """Return a tensor with the models first, expanded if they share it."""
    return tensor.expand(count, *tensor.shape) if at is None else tensor.movedim(at, 0)


def _largest(x: Tensor, weight: Tensor, layer: Layer) -> int:
    """Return how many numbers the larger of a model's images and outputs has."""
    return max(x[0].numel(), x.shape[1] * weight.shape[1] * math.prod(layer.out))
