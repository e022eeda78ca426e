"""Layers that torch.func stacks by kernels of our own: convolutions, poolings and norms of many models at once.

cuDNN is slow at the gradients of convolutions of many groups and takes no tensor cores for those of the inputs.
"""

import math
import warnings
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn, unflatten
from torch.autograd.function import once_differentiable
from torch.nn.grad import conv2d_input, conv2d_weight

from cofair.engine.over_time import OverTime

try:
    import triton
except Exception:  # it comes with PyTorch for CUDA on Linux only, and elsewhere may fail in any way
    triton = None

if triton is not None:  # outside of the above: an error of our own is no reason to go without kernels
    from cofair.engine import kernels
    from cofair.engine.kernels import memory
else:
    kernels = None  # type: ignore[assignment]

DEVICES = {"cuda"}  # on a CPU torch.func's own rule is faster; tests add "cpu"
WASTE = 8  # pixels of inputs for one of outputs, at most, where our kernel goes back: it looks at every patch for each
Pair = tuple[int, int]


@dataclass(frozen=True)
class Layer:
    """What a convolution's kernels have to know besides its tensors."""

    image: Pair
    kernel: Pair
    stride: Pair
    padding: Pair

    @cached_property
    def out(self) -> Pair:
        """Return the height and width of the outputs."""
        h, w = ((self.image[d] + 2 * self.padding[d] - self.kernel[d]) // self.stride[d] + 1 for d in (0, 1))
        return h, w

    @property
    def is_over_time(self) -> bool:
        """Say whether images are a pixel high and the kernel takes one step after another."""
        return self.image[0] == self.kernel[0] == 1 and self.stride == (1, 1) and self.padding[0] == 0


class StackableConv2d(nn.Conv2d):
    """A convolution that torch.func hands to our kernels."""

    def forward(self, input: Tensor) -> Tensor:
        """Return what nn.Conv2d returns."""
        if input.device.type not in DEVICES or input.dim() != 4:
            return super().forward(input)
        height, width = input.shape[2:]
        layer = Layer((height, width), self.kernel_size, self.stride, self.padding)  # type: ignore[arg-type]
        return cast(Tensor, _Convolution.apply(input, self.weight, self.bias, layer))  # type: ignore[no-untyped-call]


class StackableConv1d(nn.Conv1d):
    """A convolution over time that torch.func hands to us, as one of images a pixel high."""

    def forward(self, input: Tensor) -> Tensor:
        """Return what nn.Conv1d returns."""
        if input.device.type not in DEVICES or input.dim() != 3:
            return super().forward(input)
        kernel, stride, padding = self.kernel_size[0], self.stride[0], cast(int, self.padding[0])
        layer = Layer((1, input.shape[2]), (1, kernel), (1, stride), (0, padding))
        out = _Convolution.apply(input[:, :, None], self.weight[:, :, None], self.bias, layer)  # type: ignore[no-untyped-call]
        return cast(Tensor, out[:, :, 0])


class StackableMaxPool2d(nn.MaxPool2d):
    """A pooling of windows side by side that torch.func hands to our kernels."""

    def forward(self, input: Tensor) -> Tensor:
        """Return what nn.MaxPool2d returns."""
        kernel = _pair(self.kernel_size)
        fits = input.dim() == 4 and input.numel() and input.shape[2] >= kernel[0] and input.shape[3] >= kernel[1]
        if input.device.type not in DEVICES or not fits or not kernels_work(input.device):
            return cast(Tensor, super().forward(input))
        out, _ = _Pool.apply(input, kernel)  # type: ignore[no-untyped-call]
        return cast(Tensor, out)


class StackableGroupNorm(nn.GroupNorm):
    """A normalisation that torch.func hands to our kernels."""

    def forward(self, input: Tensor) -> Tensor:
        """Return what nn.GroupNorm returns."""
        if input.device.type not in DEVICES:
            return super().forward(input)
        fits = input.dim() == 4 and input.dtype is torch.float32 and self.affine
        if not fits or not kernels_work(input.device) or not 0 < input.numel() <= memory.LARGEST:
            # the copy that group_norm would make: its look at the channels' place has no rule in torch.func
            return super().forward(input.clone(memory_format=torch.contiguous_format))
        out, *_ = _Norm.apply(input, self.weight, self.bias, self.num_groups, self.eps)  # type: ignore[no-untyped-call]
        return cast(Tensor, out)


def make_stackable(module: nn.Module) -> None:
    """Make a module's plain convolutions, poolings and norms stackable ones; parameters, names and hooks stay."""
    for part in module.modules():
        if type(part) is nn.Conv2d and _is_plain(part):
            part.__class__ = StackableConv2d
        elif type(part) is nn.Conv1d and _is_plain(part):
            part.__class__ = StackableConv1d
        elif type(part) is nn.MaxPool2d and _side_by_side(part):
            part.__class__ = StackableMaxPool2d
        elif type(part) is nn.GroupNorm:
            part.__class__ = StackableGroupNorm


def _is_plain(part: nn.Conv1d | nn.Conv2d) -> bool:
    plain = part.groups == 1 and set(part.dilation) == {1} and part.padding_mode == "zeros"
    return plain and not isinstance(part.padding, str)


def _side_by_side(pool: nn.MaxPool2d) -> bool:
    kernel = _pair(pool.kernel_size)
    plain = (_pair(pool.padding), _pair(pool.dilation), pool.ceil_mode, pool.return_indices)
    few = math.prod(kernel) <= 127  # places in a window have 8 bits
    return few and _pair(pool.stride) == kernel and plain == ((0, 0), (1, 1), False, False)


def _pair(value: Any) -> Pair:
    return (value, value) if isinstance(value, int) else tuple(value)


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
        if layer.is_over_time and x.numel() and layer.out[1] > 0:
            out = OverTime.apply(x[:, :, :, 0], weight[:, :, :, 0], bias, layer.padding[1])  # type: ignore[no-untyped-call]
            return out[:, :, :, None], 0
        if not _fits(x, weight, layer) or not kernels_work(x.device):
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
            dx = _input_gradient(g, weight, ctx.layer)
        if needs[1] or needs[2]:
            dw, db = kernels.weight_gradient(x, g, ctx.layer, needs[2])
        return dx, dw, db if needs[2] else None, None


def _input_gradient(g: Tensor, weight: Tensor, layer: Layer) -> Tensor:
    """Return what the gradient g (N, B, O, h, w) of outputs gives the images (N, B, C, H, W)."""
    (N, B), C = g.shape[:2], weight.shape[2]
    if math.prod(layer.image) <= WASTE * math.prod(layer.out):
        return kernels.product(g, weight.movedim(1, -1).flatten(2).contiguous(), None, layer, back=True)
    flat, size = g.transpose(0, 1).flatten(1, 2), (B, N * C, *layer.image)
    dx = conv2d_input(size, weight.flatten(0, 1), flat, layer.stride, layer.padding, groups=N)  # type: ignore[no-untyped-call]
    return unflatten(dx, 1, (N, C)).transpose(0, 1)


class _Pool(torch.autograd.Function):
    """The largest number of each window, and where in the window it is."""

    @staticmethod
    def forward(x: Tensor, kernel: Pair) -> tuple[Tensor, Tensor]:
        stacked = x if x.dim() == 5 else x[None]
        out, where = kernels.pool(stacked, kernel)
        return (out, where) if x.dim() == 5 else (out[0].clone(), where[0].clone())  # no views: see memory.empty

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


class _Norm(torch.autograd.Function):
    """Images with normalised groups of channels, and the means and 1/deviations that were taken."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float) -> tuple[Tensor, ...]:
        if x.dim() == 5:
            return kernels.norm(x, weight, bias, groups, eps)
        return tuple(part[0].clone() for part in kernels.norm(x[None], weight[None], bias[None], groups, eps))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(*inputs[:2], *output[1:])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor, *_: Any) -> Any:
        alone = g.dim() == 4
        x, weight, means, rates, g = (part[None] if alone else part for part in (*ctx.saved_tensors, g))
        found = kernels.norm_gradients(x, weight, means, rates, g)
        return *(part[0] if alone else part for part in found), None, None

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float) -> Any:
        stacked = (_stack(given, at, info.batch_size) for given, at in zip((x, weight, bias), in_dims, strict=False))
        return _Norm.apply(*stacked, groups, eps), (0, 0, 0)  # type: ignore[no-untyped-call]


def _stack(tensor: Tensor, at: int | None, count: int) -> Tensor:
    """Return a tensor with the models first, expanded if they share it."""
    return tensor.expand(count, *tensor.shape) if at is None else tensor.movedim(at, 0)


def _fits(x: Tensor, weight: Tensor, layer: Layer) -> bool:
    """Say whether kernels can count all of these numbers."""
    if kernels is None or x.dtype is not torch.float32 or not x.numel() or len(x) > memory.MODELS:
        return False
    return max(x[0].numel(), x.shape[1] * weight.shape[1] * math.prod(layer.out)) <= memory.LARGEST


def has_kernels(tensor: Tensor) -> bool:
    """Say whether kernels can take a stack (n, ...)."""
    usual = tensor.device.type in DEVICES and tensor.dtype is torch.float32
    return usual and tensor.numel() > 0 and kernels_work(tensor.device) and len(tensor) <= memory.MODELS


@lru_cache
def kernels_work(device: torch.device) -> bool:
    """Say whether there are kernels and Triton can compile them for a device, which takes a C compiler and a cache."""
    if kernels is None:
        return False
    try:
        images = torch.ones(1, 1, 1, 2, 2, device=device)
        kernels.product(images, torch.ones(1, 1, 1, device=device), None, Layer((2, 2), (1, 1), (1, 1), (0, 0)))
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        warnings.warn(f"Triton cannot compile kernels here, so CNNs train more slowly: {reason}", stacklevel=2)
        return False
    return True
