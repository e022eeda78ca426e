"""Normalisation of groups of channels, each group of each image on its own."""

import triton
import triton.language as tl
from torch import Tensor

from cofair.engine.kernels.memory import (
    PIXELS,
    channels_last,
    device_of,
    empty,
    has_rows_in_line,
    parts_of,
    pixel_strides,
    tile,
    within_reach,
)


@triton.jit
def _norm(
    images, weight, bias, out, means, rates, C, P, G, sn, sb, sp, on, eps, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write images whose groups of channels have mean 0 and variance 1, then scaled; channels are last in memory."""
    n, b, group = tl.program_id(1).to(tl.int64), tl.program_id(0) // G, tl.program_id(0) % G
    width = C // G
    count = width * P
    images += n * sn + b * sb + group * width
    out += n * on + b * C * P + group * width
    weight += n * C + group * width
    bias += n * C + group * width
    at = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, count, BLOCK):
        k = start + at
        total += tl.load(images + (k // width * sp + k % width), mask=k < count, other=0.0)
    mean = tl.sum(total, 0) / count
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, count, BLOCK):
        k = start + at
        value = tl.load(images + (k // width * sp + k % width), mask=k < count, other=0.0) - mean
        total += tl.where(k < count, value * value, 0.0)
    rate = 1 / tl.sqrt(tl.sum(total, 0) / count + eps)
    for start in range(0, count, BLOCK):
        k = start + at
        c = k % width
        value = (tl.load(images + (k // width * sp + c), mask=k < count, other=0.0) - mean) * rate
        value = value * tl.load(weight + c, mask=k < count, other=0.0) + tl.load(bias + c, mask=k < count, other=0.0)
        tl.store(out + (k // width * C + c), value, mask=k < count)
    place = (n * (tl.num_programs(0) // G) + b) * G + group
    tl.store(means + place, mean)
    tl.store(rates + place, rate)


@triton.jit
def _norm_gradient(
    images, weight, g, out, means, rates, C, P, G, sn, sb, sp, on, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the gradient of images that were normalised; g and out have their channels last."""
    n, b, group = tl.program_id(1).to(tl.int64), tl.program_id(0) // G, tl.program_id(0) % G
    width = C // G
    count = width * P
    images += n * sn + b * sb + group * width
    g += n * on + b * C * P + group * width
    out += n * on + b * C * P + group * width
    weight += n * C + group * width
    place = (n * (tl.num_programs(0) // G) + b) * G + group
    mean, rate = tl.load(means + place), tl.load(rates + place)
    at = tl.arange(0, BLOCK)
    plain, turned = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32)
    for start in range(0, count, BLOCK):
        k = start + at
        c = k % width
        value = (tl.load(images + (k // width * sp + c), mask=k < count, other=0.0) - mean) * rate
        back = tl.load(g + (k // width * C + c), mask=k < count, other=0.0)
        back *= tl.load(weight + c, mask=k < count, other=0.0)
        plain += back
        turned += back * value
    of_all, along = tl.sum(plain, 0) / count, tl.sum(turned, 0) / count
    for start in range(0, count, BLOCK):
        k = start + at
        c = k % width
        value = (tl.load(images + (k // width * sp + c), mask=k < count, other=0.0) - mean) * rate
        back = tl.load(g + (k // width * C + c), mask=k < count, other=0.0)
        back *= tl.load(weight + c, mask=k < count, other=0.0)
        tl.store(out + (k // width * C + c), (back - of_all - value * along) * rate, mask=k < count)


@triton.jit
def _norm_weight_gradient(
    images, g, out, means, rates, M, C, P, G, B, sn, sb, sp, on, each, parts,
    BM: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Write what the scale and the shift of each channel get (2, N, S, C), in S parts of the pixels."""
    n, part = tl.program_id(1).to(tl.int64), tl.program_id(2)
    c = tl.program_id(0) * BC + tl.arange(0, BC)[None, :]
    scale, shift = tl.zeros((BM, BC), tl.float32), tl.zeros((BM, BC), tl.float32)
    for start in range(0, each, BM):
        m = part * each + start + tl.arange(0, BM)[:, None]
        b = m // P
        there = (m < M) & (c < C)
        back = tl.load(g + n * on + (m * C + c), mask=there, other=0.0)
        value = tl.load(images + n * sn + (b * sb + m % P * sp + c), mask=there, other=0.0)
        place = (n * B + b) * G + c // (C // G)
        value = (value - tl.load(means + place, mask=there, other=0.0)) * tl.load(rates + place, mask=there, other=0.0)
        scale += back * value
        shift += back
    c = tl.program_id(0) * BC + tl.arange(0, BC)
    out += (n * parts + part) * C
    tl.store(out + c, tl.sum(scale, 0), mask=c < C)
    tl.store(out + tl.num_programs(1).to(tl.int64) * parts * C + c, tl.sum(shift, 0), mask=c < C)


def norm(x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return images (N, B, C, h, w) with normalised groups of channels, and means and 1/deviations (N, B, groups)."""
    N, B, C, h, w = x.shape
    x, out = _dense(x), empty(N, B, C, h, w, like=x)
    means, rates = x.new_empty(N, B, groups), x.new_empty(N, B, groups)
    with device_of(x):
        _norm[B * groups, N](
            x, weight.contiguous(), bias.contiguous(), out, means, rates, C, h * w, groups, *_row_strides(x),
            out.stride(0), eps, BLOCK=tile(C // groups * h * w, PIXELS),
        )  # fmt: skip
    return out, means, rates


def norm_gradients(x: Tensor, weight: Tensor, means: Tensor, rates: Tensor, g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return what the gradient g (N, B, C, h, w) of normalised images gives images, scales and shifts (N, C)."""
    (N, B, C, h, w), groups = x.shape, means.shape[2]
    x, g, dx = _dense(x), channels_last(g), empty(N, B, C, h, w, like=x)
    BM, BC = 32, tile(C, 64)
    each, parts = parts_of(x, N * triton.cdiv(C, BC), B * h * w, BM)
    sums = x.new_empty(2, N, parts, C)
    with device_of(x):
        _norm_gradient[B * groups, N](
            x, weight.contiguous(), g, dx, means, rates, C, h * w, groups, *_row_strides(x), dx.stride(0),
            BLOCK=tile(C // groups * h * w, PIXELS),
        )  # fmt: skip
        _norm_weight_gradient[triton.cdiv(C, BC), N, parts](
            x, g, sums, means, rates, B * h * w, C, h * w, groups, B, *_row_strides(x), dx.stride(0), each, parts,
            BM=BM, BC=BC,
        )  # fmt: skip
    scale, shift = sums.sum(2)
    return dx, scale, shift


def _dense(images: Tensor) -> Tensor:
    """Return images with their channels last, and pixels that can be counted over rows."""
    fits = (images.stride(2) == 1 or images.shape[2] == 1) and has_rows_in_line(images)
    return within_reach(images) if fits else channels_last(images)


def _row_strides(images: Tensor) -> tuple[int, int, int]:
    """Return the strides of models, samples and pixels."""
    n, b, _, pixel = pixel_strides(images)
    return n, b, pixel
