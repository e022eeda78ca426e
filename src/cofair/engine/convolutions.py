"""Convolutions of many models at once: products of matrices, where torch.func has one convolution of N groups.

cuDNN is slow at the gradients of convolutions of many groups and takes no tensor cores for those of the inputs. Here
patches of stacked images (N, B, C, H, W) are copied into columns (N, M, K): M = B·h·w rows, one for each pixel of the
outputs, of K = k·k·C numbers. The kernels of all models then multiply them in one batched product. Ones fill each row
up to a multiple of four, which tensor cores ask for, and the first of them carries the bias.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn, unflatten
from torch.autograd.function import once_differentiable
from torch.nn.grad import conv2d_input, conv2d_weight

DEVICES = {"cuda"}  # on a CPU torch.func's own rule is faster; tests add "cpu"
FEWEST = 16  # models from which on columns pay: measured on an H200 with 10, 30, 40 and 60 of them
BUDGET = 2**30  # bytes of columns held at once: several processes may share a GPU
Pair = tuple[int, int]


@dataclass(frozen=True)
class Layer:
    """What all three products of a layer have to know."""

    image: Pair
    kernel: Pair
    stride: Pair
    padding: Pair
    bias: bool

    @cached_property
    def out(self) -> Pair:
        """Return the height and width of the outputs."""
        h, w = ((self.image[d] + 2 * self.padding[d] - self.kernel[d]) // self.stride[d] + 1 for d in (0, 1))
        return h, w

    def width(self, channels: int) -> int:
        """Return the length of a row of columns, its ones included."""
        return math.ceil((channels * math.prod(self.kernel) + self.bias) / 4) * 4

    def numbers(self, images: int, channels: int) -> int:
        """Return how many numbers the columns of so many images have."""
        return images * math.prod(self.out) * self.width(channels)

    @cached_property
    def turned(self) -> "Layer":
        """Return the layer from the outputs' gradient to the inputs', if the stride is 1."""
        h, w = (self.kernel[d] - 1 - self.padding[d] for d in (0, 1))
        return replace(self, image=self.out, padding=(h, w), bias=False)


class StackableConv2d(nn.Conv2d):
    """A convolution that torch.func stacks as products of matrices."""

    def forward(self, input: Tensor) -> Tensor:
        """Return what nn.Conv2d returns."""
        if input.device.type not in DEVICES or input.dim() != 4:
            return super().forward(input)
        height, width = input.shape[2:]
        layer = Layer((height, width), self.kernel_size, self.stride, self.padding, self.bias is not None)  # type: ignore[arg-type]
        most = max(layer.numbers(len(input), self.in_channels), layer.turned.numbers(len(input), self.out_channels))
        if most * input.element_size() > BUDGET:  # one model alone has too many, there or back
            return super().forward(input)
        out: Tensor = _Convolution.apply(input, self.weight, self.bias, layer)  # type: ignore[no-untyped-call]
        return out


def make_stackable(module: nn.Module) -> None:
    """Make a module's plain convolutions stackable ones; their parameters, names and hooks stay."""
    for part in module.modules():
        if type(part) is nn.Conv2d and (part.groups, part.dilation, part.padding_mode) == (1, (1, 1), "zeros"):
            part.__class__ = nn.Conv2d if isinstance(part.padding, str) else StackableConv2d
        elif type(part) is nn.GroupNorm:
            part.register_forward_pre_hook(_channels_first)


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
        if N < FEWEST:
            flat = None if bias is None else bias.flatten()
            out = F.conv2d(x.transpose(0, 1).flatten(1, 2), weight.flatten(0, 1), flat, *steps, groups=N)
            return unflatten(out, 1, (N, -1)), 1
        return _images(_Stacked.apply(x, weight, bias, layer), layer), 0  # type: ignore[no-untyped-call]


class _Stacked(torch.autograd.Function):
    """Outputs (N, M, O) of images (N, B, C, H, W), kernels (N, O, C, k, k) and biases (N, O).

    They are left as the product has them, since autograd lets nothing be changed in place, as by nn.ReLU(inplace=True),
    that is a view made in here. Columns are built again for the gradient: held, they would fill the memory.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, layer: Layer) -> Tensor:
        ctx.layer = layer
        ctx.save_for_backward(x, weight)
        return _product(x, _rows(weight, bias, layer), layer)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> Any:
        (x, weight), needs = ctx.saved_tensors, ctx.needs_input_grad
        dx = _input_gradient(g, weight, ctx.layer) if needs[0] else None
        dw, db = _weight_gradient(g, x, ctx.layer) if needs[1] or needs[2] else (None, None)
        return dx, dw, db, None


def _stack(tensor: Tensor, at: int | None, count: int) -> Tensor:
    """Return a tensor with the models first, expanded if they share it."""
    return tensor.expand(count, *tensor.shape) if at is None else tensor.movedim(at, 0)


def _images(out: Tensor, layer: Layer) -> Tensor:
    """Return the outputs of products (N, M, O) as stacked images (N, B, O, h, w)."""
    return unflatten(out, 1, (-1, *layer.out)).movedim(-1, 2)


def _columns(x: Tensor, layer: Layer) -> Tensor:
    """Return the patches of stacked images (N, B, C, H, W) as rows (N, M, K) with their ones."""
    (N, B, C), (ph, pw), dtype = x.shape[:3], layer.padding, x.dtype
    x = F.pad(x.movedim(2, -1), (0, 0, pw, pw, ph, ph)) if ph or pw else x.movedim(2, -1)
    x = _wide(x.contiguous())
    patches = x.unfold(2, layer.kernel[0], layer.stride[0]).unfold(3, layer.kernel[1], layer.stride[1])
    patches = patches.movedim(4, -1)  # (N, B, h, w, k, k, C)
    K, width = C * math.prod(layer.kernel), layer.width(C)
    if width == K:
        return patches.reshape(N, -1, patches.shape[4:].numel()).view(dtype)
    columns = torch.empty(N, B, *layer.out, width, dtype=dtype, device=x.device)
    unflatten(columns[..., :K].view(x.dtype), -1, patches.shape[4:]).copy_(patches)
    columns[..., K:] = 1
    return columns.flatten(1, 3)


def _wide(x: Tensor) -> Tensor:
    """Return numbers as 16 bytes each if channels allow it: a strided copy counts numbers rather than bytes."""
    fits = all(size * x.element_size() % 16 == 0 for size in (x.shape[-1], x.storage_offset()))
    return x.view(torch.complex128) if fits else x


def _rows(weight: Tensor, bias: Tensor | None, layer: Layer) -> Tensor:
    """Return stacked kernels (N, O, C, k, k) and biases (N, O) as rows (N, O, K) that multiply columns."""
    rows = weight.movedim(2, -1).flatten(2)
    rows = rows if bias is None else torch.cat((rows, bias[..., None]), 2)
    return F.pad(rows, (0, layer.width(weight.shape[2]) - rows.shape[2]))


def _product(x: Tensor, rows: Tensor, layer: Layer) -> Tensor:
    """Return outputs (N, M, O), which are images with their channels last."""
    return _in_parts(lambda x, rows: torch.bmm(_columns(x, layer), rows.mT), x, rows, x, x.shape[2], layer)


def _weight_gradient(g: Tensor, x: Tensor, layer: Layer) -> tuple[Tensor, Tensor | None]:
    """Return what the gradient g (N, M, O) of the outputs gives kernels (N, O, C, k, k) and biases (N, O)."""
    C = x.shape[2]
    rows = _in_parts(lambda g, x: torch.bmm(g.mT, _columns(x, layer)), g, x, x, C, layer)
    K = C * math.prod(layer.kernel)
    return unflatten(rows[..., :K], -1, (*layer.kernel, C)).movedim(-1, 2), rows[..., K] if layer.bias else None


def _input_gradient(g: Tensor, weight: Tensor, layer: Layer) -> Tensor:
    """Return what the gradient g (N, M, O) of the outputs gives the images (N, B, C, H, W)."""
    turned = layer.turned
    if layer.stride == (1, 1) and min(turned.padding) >= 0:  # a convolution of g with kernels turned around
        kernels = weight.transpose(1, 2).flip(3, 4)
        return _images(_product(_images(g, layer), _rows(kernels, None, turned), turned), turned)
    return _shares(g, weight, replace(layer, bias=False))


def _shares(g: Tensor, weight: Tensor, layer: Layer) -> Tensor:
    """Return the images' gradient: every output's share for its patch, added up k·k times where they overlap."""
    (H, W), (h, w), (sh, sw), (ph, pw), C = layer.image, layer.out, layer.stride, layer.padding, weight.shape[2]

    def work(g: Tensor, rows: Tensor) -> Tensor:
        shares = unflatten(torch.bmm(g, rows)[..., : C * math.prod(layer.kernel)], 1, (-1, h, w))
        shares = unflatten(shares, -1, (*layer.kernel, C))
        total = g.new_zeros(*shares.shape[:2], H + 2 * ph, W + 2 * pw, C)
        for i in range(layer.kernel[0]):
            for j in range(layer.kernel[1]):
                total[:, :, i : i + sh * h : sh, j : j + sw * w : sw].add_(shares[..., i, j, :])
        return total

    total = _in_parts(work, g, _rows(weight, None, layer), _images(g, layer), C, layer)
    return total[:, :, ph : ph + H, pw : pw + W].movedim(-1, 2)


def _in_parts(
    work: Callable[[Tensor, Tensor], Tensor], a: Tensor, b: Tensor, images: Tensor, channels: int, layer: Layer
) -> Tensor:
    """Return work(a, b), some models after others where columns of so many channels would be too many."""
    each = layer.numbers(images.shape[1], channels) * images.element_size()
    at_once = max(1, BUDGET // max(1, each))
    if at_once >= len(images):
        return work(a, b)
    return torch.cat([work(*pair) for pair in zip(torch.split(a, at_once), torch.split(b, at_once), strict=True)])
