"""Max-pooling of windows side by side."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from cofair.engine.kernels.memory import PIXELS, Pair, channels_last, device_of, empty


@triton.jit
def _pool(
    images, out, where, count, C, h, w, sb, sc, sh, sw, KH: tl.constexpr, KW: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Write the largest number of each window, and where in the window it is: the first of several."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    c, j, i, b = at % C, at // C % w, at // C // w % h, at // C // w // h
    images += b * sb + c * sc + i * KH * sh + j * KW * sw
    there = at < count
    best = tl.load(images, mask=there, other=0.0)
    chosen = tl.zeros((BLOCK,), tl.int8)
    for ki in tl.static_range(KH):
        for kj in tl.static_range(KW):
            if ki + kj > 0:
                value = tl.load(images + (ki * sh + kj * sw), mask=there, other=0.0)
                better = (value > best) | (value != value)  # what is not a number wins, as in PyTorch
                best = tl.where(better, value, best)
                chosen = tl.where(better, ki * KW + kj, chosen).to(tl.int8)
    tl.store(out + at, best, mask=there)
    tl.store(where + at, chosen, mask=there)


@triton.jit
def _pool_gradient(
    g, where, out, count, C, H, W, h, w, KH: tl.constexpr, KW: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Write the gradient of the inputs: an output's where the largest of its window was, nothing elsewhere."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    c, x, y, b = at % C, at // C % W, at // C // W % H, at // C // W // H
    source = ((b * h + y // KH) * w + x // KW) * C + c
    seen = (at < count) & (y // KH < h) & (x // KW < w)
    chosen = tl.load(where + source, mask=seen, other=-1)
    value = tl.load(g + source, mask=seen & (chosen == y % KH * KW + x % KW), other=0.0)
    tl.store(out + at, value, mask=at < count)


def pool(images: Tensor, kernel: Pair) -> tuple[Tensor, Tensor]:
    """Return the largest numbers (N, B, C, h, w) of windows side by side in images, and where they are."""
    N, B, C, H, W = images.shape
    h, w = H // kernel[0], W // kernel[1]
    out, where = (empty(N, B, C, h, w, like=images, dtype=dtype) for dtype in (images.dtype, torch.int8))
    flat = images.flatten(0, 1)
    with device_of(images):
        _pool[(triton.cdiv(out.numel(), PIXELS),)](
            flat, out, where, out.numel(), C, h, w, *flat.stride(), *kernel, BLOCK=PIXELS
        )  # fmt: skip
    return out, where


def pool_gradient(g: Tensor, where: Tensor, image: Pair, kernel: Pair) -> Tensor:
    """Return what the gradient g (N, B, C, h, w) of largest numbers gives images (N, B, C, H, W)."""
    N, B, C, h, w = g.shape
    out = empty(N, B, C, *image, like=g)
    with device_of(g):
        _pool_gradient[(triton.cdiv(out.numel(), PIXELS),)](
            channels_last(g), where, out, out.numel(), C, *image, h, w, *kernel, BLOCK=PIXELS
        )  # fmt: skip
    return out
