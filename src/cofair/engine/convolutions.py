"""Convolutions of many models at once: products of matrices, where torch.func has one convolution of N groups.

cuDNN is slow at the gradients of grouped convolutions and takes no tensor cores for those of the inputs. Here patches
of stacked images (N, B, C, H, W) are copied into columns (N, M, K): M = B·h·w rows, one for each pixel of the outputs,
of K = C·k·k numbers. The kernels of all models then multiply them in one batched product. Ones fill each row up to a
multiple of four, which tensor cores ask for, and the first of them carries the bias.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn, unflatten
from torch.autograd.function import once_differentiable
from torch.nn.grad import conv2d_input, conv2d_weight

DEVICES = {"cuda"}  # on a CPU torch.func's own rule is faster; tests add "cpu"
BUDGET = 2**30  # bytes of columns held at once: several processes may share a GPU
Pair = tuple[int, int]


@dataclass(frozen=True)
class How:
    """How a layer's three products are computed where both of their factors are stacked."""

    forward: str = "columns"  # or "grouped", one convolution of N groups
    input_gradient: str = "slices"  # or "patches" or "flipped", which both take slices for other strides; "grouped"
    weight_gradient: str = "columns"  # or "grouped"
    keep: bool = False  # hold the forward's columns for the weight gradient, which else builds them again
    channels_last: bool = True  # K is k·k·C, else C·k·k as kernels lie in memory; grouped: NHWC, else NCHW


@dataclass(frozen=True)
class Layer:
    """What all three products of a layer have to know."""

    image: Pair
    kernel: Pair
    stride: Pair
    padding: Pair
    bias: bool
    how: How = field(default_factory=How)

    @cached_property
    def out(self) -> Pair:
        """Return the height and width of the outputs."""
        h, w = ((self.image[d] + 2 * self.padding[d] - self.kernel[d]) // self.stride[d] + 1 for d in (0, 1))
        return h, w

    def width(self, channels: int) -> int:
        """Return the length of a row of columns, its ones included."""
        return math.ceil((channels * math.prod(self.kernel) + self.bias) / 4) * 4

    @cached_property
    def turned(self) -> "Layer":
        """Return the layer from the outputs' gradient to the inputs', if the stride is 1."""
        h, w = (self.kernel[d] - 1 - self.padding[d] for d in (0, 1))
        return replace(self, image=self.out, padding=(h, w), bias=False)


def choose(samples: int, channels: int, outputs: int, layer: Layer) -> How:
    """Return how a layer's products move the fewest bytes."""
    rows = samples * math.prod(layer.out)
    if 4 * rows * layer.width(channels) > BUDGET:  # one model alone has too many, as when all of a test set is scored
        return How("grouped", "flipped", "grouped", channels_last=False)
    # shares of k·k·C are written and read, sums read and written; patches of k·k·O are written and read, for each
    # pixel of the inputs, and kernels turned around
    slices, patches = 4 * rows * channels, outputs * (2 * samples * math.prod(layer.image) + 4 * channels)
    # kernels larger than their columns are left as they lie
    return How(input_gradient="slices" if slices < patches else "patches", channels_last=rows > outputs)


class StackableConv2d(nn.Conv2d):
    """A convolution that torch.func stacks as products of matrices."""

    def forward(self, input: Tensor) -> Tensor:
        """Return what nn.Conv2d returns."""
        if input.device.type not in DEVICES or input.dim() != 4:
            return super().forward(input)
        image, sizes = tuple(input.shape[2:]), (len(input), self.in_channels, self.out_channels)
        layer = _layer(choose, sizes, image, self.kernel_size, self.stride, self.padding, self.bias is not None)
        out: Tensor = _Convolution.apply(input, self.weight, self.bias, layer)  # type: ignore[no-untyped-call]
        return out


@lru_cache
def _layer(choose: Callable[..., How], sizes: tuple[int, int, int], *about: Any) -> Layer:
    """Return a layer and how it is computed; a model asks for the same few again and again."""
    layer = Layer(*about)
    return replace(layer, how=choose(*sizes, layer))


def make_stackable(module: nn.Module) -> None:
    """Make a module's plain convolutions stackable ones; their parameters, names and hooks stay."""
    for part in module.modules():
        if type(part) is nn.Conv2d and (part.groups, part.dilation, part.padding_mode) == (1, (1, 1), "zeros"):
            part.__class__ = nn.Conv2d if isinstance(part.padding, str) else StackableConv2d
        elif isinstance(part, nn.GroupNorm):
            part.register_forward_pre_hook(_channels_first)


def _channels_first(_: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
    """Make the copy that group_norm would make: its look at the channels' place has no rule in torch.func."""
    swapped = inputs[0].device.type in DEVICES
    return (inputs[0].clone(memory_format=torch.contiguous_format) if swapped else inputs[0],)


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
        if in_dims[1] is None and in_dims[2] is None:  # one convolution of all models' samples
            x = x.movedim(in_dims[0], 0)
            return unflatten(F.conv2d(x.flatten(0, 1), weight, bias, *steps), 0, x.shape[:2]), 0
        weight = _stack(weight, in_dims[1], N)
        bias = None if bias is None else _stack(bias, in_dims[2], N)
        if in_dims[0] is None:  # one convolution of all models' channels
            return unflatten(_side_by_side(x, weight, bias, layer, 1), 1, weight.shape[:2]), 1
        out = _Stacked.apply(x.movedim(in_dims[0], 0), weight, bias, layer)  # type: ignore[no-untyped-call]
        return _images(out, N, layer.how.forward == "grouped", layer), 0


class _Stacked(torch.autograd.Function):
    """Outputs of images (N, B, C, H, W), kernels (N, O, C, k, k) and biases (N, O).

    They are left as the product has them, since autograd lets nothing be changed in place, as by nn.ReLU(inplace=True),
    that is a view made in here.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, layer: Layer) -> Tensor:
        ctx.layer, columns = layer, x.new_empty(0)
        if layer.how.forward == "grouped":
            out = _side_by_side(_groups(x, layer), weight, bias, layer, len(x))
        else:
            if layer.how.keep and any(ctx.needs_input_grad) and _parts(x, x.shape[2], layer) == 1:
                columns = _columns(x, layer)
            out = _product(x, _rows(weight, bias, layer), layer, columns)
        ctx.save_for_backward(x, weight, columns)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> Any:
        (x, weight, columns), needs = ctx.saved_tensors, ctx.needs_input_grad
        g = _images(g, len(x), ctx.layer.how.forward == "grouped", ctx.layer)
        dx = _input_gradient(g, weight, ctx.layer) if needs[0] else None
        dw, db = _weight_gradient(g, x, columns, ctx.layer) if needs[1] or needs[2] else (None, None)
        return dx, dw, db, None


def _input_gradient(g: Tensor, weight: Tensor, layer: Layer) -> Tensor:
    """Return what the gradient g (N, B, O, h, w) of the outputs gives the images."""
    N, how, turned = len(g), layer.how.input_gradient, layer.turned
    if how == "grouped":
        size, kernels = (g.shape[1], N * weight.shape[2], *layer.image), weight.flatten(0, 1)
        dx = conv2d_input(size, kernels, _groups(g, layer), layer.stride, layer.padding, 1, N)  # type: ignore[no-untyped-call]
        return _images(dx, N, True, layer)
    if how == "slices" or layer.stride != (1, 1) or min(turned.padding) < 0:
        layer = replace(layer, bias=False)
        return _slices(g, _rows(weight, None, layer), weight.shape[2], layer)
    weight = weight.transpose(1, 2).flip(3, 4)
    if how == "flipped":
        return _images(_side_by_side(_groups(g, turned), weight, None, turned, N), N, True, turned)
    return _images(_product(g, _rows(weight, None, turned), turned, g.new_empty(0)), N, False, turned)


def _weight_gradient(g: Tensor, x: Tensor, columns: Tensor, layer: Layer) -> tuple[Tensor, Tensor | None]:
    """Return what the gradient g (N, B, O, h, w) of the outputs gives kernels (N, O, C, k, k) and biases (N, O)."""
    (N, _, O), C = g.shape[:3], x.shape[2]  # noqa: E741
    if layer.how.weight_gradient == "grouped":
        size, sides = (N * O, C, *layer.kernel), (_groups(x, layer), _groups(g, layer))
        dw = conv2d_weight(sides[0], size, sides[1], layer.stride, layer.padding, 1, N)  # type: ignore[no-untyped-call]
        return unflatten(dw, 0, (N, O)), g.sum((1, 3, 4)) if layer.bias else None
    rows, K = _row_gradient(g, x, layer, columns), C * math.prod(layer.kernel)
    return _kernels(rows[..., :K], C, layer), rows[..., K] if layer.bias else None


def _stack(tensor: Tensor, at: int | None, count: int) -> Tensor:
    """Return a tensor with the models first, expanded if they share it."""
    return tensor.expand(count, *tensor.shape) if at is None else tensor.movedim(at, 0)


def _groups(x: Tensor, layer: Layer) -> Tensor:
    """Return stacked images (N, B, C, H, W) as groups of channels (B, N·C, H, W)."""
    if layer.how.channels_last:
        return x.permute(1, 3, 4, 0, 2).flatten(3).movedim(-1, 1)
    return x.transpose(0, 1).flatten(1, 2)


def _side_by_side(x: Tensor, weight: Tensor, bias: Tensor | None, layer: Layer, groups: int) -> Tensor:
    """Return outputs (B, N·O, h, w) of one convolution, the kernels of all models side by side."""
    flat = None if bias is None else bias.flatten()
    return F.conv2d(x, weight.flatten(0, 1), flat, layer.stride, layer.padding, 1, groups)


def _images(out: Tensor, count: int, grouped: bool, layer: Layer) -> Tensor:
    """Return the outputs of groups (B, N·O, h, w), or of products (N, M, O), as stacked images (N, B, O, h, w)."""
    if grouped:
        return unflatten(out, 1, (count, -1)).transpose(0, 1)
    return unflatten(out, 1, (-1, *layer.out)).movedim(-1, 2)


def _columns(x: Tensor, layer: Layer) -> Tensor:
    """Return the patches of stacked images (N, B, C, H, W) as rows (N, M, K) with their ones."""
    (N, B, C), (ph, pw), last = x.shape[:3], layer.padding, layer.how.channels_last
    x = x.movedim(2, -1) if last else x
    if ph or pw:
        x = F.pad(x, (0, 0, pw, pw, ph, ph) if last else (pw, pw, ph, ph))
    x, dtype = _wide(x.contiguous()) if last else x, x.dtype
    height = 2 if last else 3
    patches = x.unfold(height, layer.kernel[0], layer.stride[0]).unfold(height + 1, layer.kernel[1], layer.stride[1])
    patches = patches.movedim(4, -1) if last else patches.movedim(2, 4)  # (N, B, h, w, k, k, C) or (..., C, k, k)
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
    rows = (weight.movedim(2, -1) if layer.how.channels_last else weight).flatten(2)
    rows = rows if bias is None else torch.cat((rows, bias[..., None]), 2)
    spare = layer.width(weight.shape[2]) - rows.shape[2]
    return F.pad(rows, (0, spare)) if spare else rows


def _kernels(rows: Tensor, channels: int, layer: Layer) -> Tensor:
    """Return rows (..., K) as kernels (..., C, k, k)."""
    if layer.how.channels_last:
        return unflatten(rows, -1, (*layer.kernel, channels)).movedim(-1, -3)
    return unflatten(rows, -1, (channels, *layer.kernel))


def _parts(images: Tensor, channels: int, layer: Layer) -> int:
    """Return in how many parts the columns of stacked images fit the budget."""
    size = images.shape[:2].numel() * math.prod(layer.out) * layer.width(channels) * images.element_size()
    return min(len(images), math.ceil(size / BUDGET))


def _in_parts(work: Callable[[Tensor, Tensor], Tensor], a: Tensor, b: Tensor, parts: int) -> Tensor:
    """Return work(a, b), some models after others."""
    if parts == 1:
        return work(a, b)
    return torch.cat([work(*pair) for pair in zip(a.chunk(parts), b.chunk(parts), strict=True)])


def _product(x: Tensor, rows: Tensor, layer: Layer, columns: Tensor) -> Tensor:
    """Return outputs (N, M, O), which are images with their channels last."""

    def work(x: Tensor, rows: Tensor) -> Tensor:
        return torch.bmm(columns if columns.numel() else _columns(x, layer), rows.mT)

    return _in_parts(work, x, rows, _parts(x, x.shape[2], layer))


def _row_gradient(g: Tensor, x: Tensor, layer: Layer, columns: Tensor) -> Tensor:
    """Return the gradient (N, O, K) of the rows that multiplied columns."""

    def work(g: Tensor, x: Tensor) -> Tensor:
        return torch.bmm(g.movedim(2, -1).flatten(1, 3).mT, columns if columns.numel() else _columns(x, layer))

    return _in_parts(work, g, x, _parts(x, x.shape[2], layer))


def _slices(g: Tensor, rows: Tensor, channels: int, layer: Layer) -> Tensor:
    """Return the images' gradient: every output's share for its patch, added up k·k times where they overlap."""
    (H, W), (h, w), (sh, sw), (ph, pw) = layer.image, layer.out, layer.stride, layer.padding

    def work(g: Tensor, rows: Tensor) -> Tensor:
        shares = torch.bmm(g.movedim(2, -1).flatten(1, 3), rows)[..., : channels * math.prod(layer.kernel)]
        shares = _kernels(unflatten(shares, 1, (-1, h, w)), channels, layer)
        total = g.new_zeros(*g.shape[:2], H + 2 * ph, W + 2 * pw, channels)
        for i in range(layer.kernel[0]):
            for j in range(layer.kernel[1]):
                total[:, :, i : i + sh * h : sh, j : j + sw * w : sw].add_(shares[..., i, j])
        return total

    total = _in_parts(work, g, rows, _parts(g, channels, layer))
    return total[:, :, ph : ph + H, pw : pw + W].movedim(-1, 2)
