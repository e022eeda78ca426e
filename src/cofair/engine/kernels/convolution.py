"""Convolutions as products of matrices.

The rows of the left one are patches of images, one for each pixel of the outputs: M = B·h·w of them for a model. They
are never stored, but read from the images as the product goes along. Tiles, warps and stages are the fastest of sixteen
each, or near them, on an H200 for the layers of all our models.
"""

import math
from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from cofair.engine.kernels.memory import (
    channels_last,
    device_of,
    empty,
    has_rows_in_line,
    parts_of,
    pixel_strides,
    tile,
    within_reach,
)

if TYPE_CHECKING:
    from cofair.engine.stackable import Layer

FLAT = 32  # up to this many channels, the numbers of a patch are counted over its pixels and channels together


@triton.jit
def _read(
    images, b, i, j, c, ki, kj, there, H, W, sb, sc, sh, sw,
    SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, BACK: tl.constexpr,
):  # fmt: skip
    """Return what pixels (i, j) of the outputs see at (ki, kj) of their patches; BACK: pixels of inputs, of outputs.

    Pixels are one dimension of a tile and places in a patch the other. An offset is the sum of a part of each, so
    that one addition is left for each pair of them; what pads images costs a look at where each pair is.
    """
    if BACK:
        if SH == 1 and SW == 1:
            at = (b * sb + (i + PH) * sh + (j + PW) * sw) + (c * sc - ki * sh - kj * sw)
            y, x = i + PH - ki, j + PW - kj
            there = there & (y >= 0) & (x >= 0) & (y < H) & (x < W)
        else:
            y, x = i + PH - ki, j + PW - kj
            there = there & (y >= 0) & (x >= 0) & (y % SH == 0) & (x % SW == 0)
            y, x = y // SH, x // SW
            there = there & (y < H) & (x < W)
            at = b * sb + y * sh + x * sw + c * sc
    else:
        at = (b * sb + (i * SH - PH) * sh + (j * SW - PW) * sw) + (c * sc + ki * sh + kj * sw)
        if PH > 0:
            y = i * SH - PH + ki
            there = there & (y >= 0) & (y < H)
        if PW > 0:
            x = j * SW - PW + kj
            there = there & (x >= 0) & (x < W)
    return tl.load(images + at, mask=there, other=0.0)


@triton.jit
def _product(
    images, rows, bias, out, M, O, C, H, W, h, w, sn, sb, sc, sh, sw, on, ob, oc, op,
    KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    BACK: tl.constexpr, FLAT: tl.constexpr, EVEN: tl.constexpr, BIAS: tl.constexpr, PRECISION: tl.constexpr,
    BM: tl.constexpr, BO: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Write outputs: patches times rows (N, O, K), where K counts pixels of a patch, then channels."""
    blocks = tl.cdiv(O, BO)
    n = tl.program_id(1).to(tl.int64)
    m = tl.program_id(0) // blocks * BM + tl.arange(0, BM)[:, None]
    o = tl.program_id(0) % blocks * BO + tl.arange(0, BO)[None, :]
    b, pixel = m // (h * w), m % (h * w)
    i, j = pixel // w, pixel % w
    images += n * sn
    k = tl.arange(0, BK)
    total = tl.zeros((BM, BO), tl.float32)
    if FLAT:
        rows += n * O * (KH * KW * FLAT)
        for start in range(0, KH * KW * FLAT, BK):
            at = start + k
            tap = at // FLAT
            patches = _read(
                images, b, i, j, (at % FLAT)[None, :], (tap // KW)[None, :], (tap % KW)[None, :],
                (m < M) & (at < KH * KW * FLAT)[None, :], H, W, sb, sc, sh, sw, SH, SW, PH, PW, BACK,
            )  # fmt: skip
            own = rows + (o * (KH * KW * FLAT) + at[:, None])
            kernels = tl.load(own, mask=(o < O) & (at < KH * KW * FLAT)[:, None], other=0.0)
            total = tl.dot(patches, kernels, total, input_precision=PRECISION)
    else:
        rows += n * O * (KH * KW * C)
        parts = tl.cdiv(C, BK)
        for step in range(0, KH * KW * parts):
            tap, c = step // parts, step % parts * BK + k
            there, held = m < M, o < O
            if not EVEN:
                there, held = there & (c < C)[None, :], held & (c < C)[:, None]
            patches = _read(
                images, b, i, j, c[None, :], tap // KW, tap % KW, there, H, W, sb, sc, sh, sw, SH, SW, PH, PW, BACK
            )
            kernels = tl.load(rows + (o * (KH * KW * C) + (tap * C + c)[:, None]), mask=held, other=0.0)
            total = tl.dot(patches, kernels, total, input_precision=PRECISION)
    if BIAS:
        total += tl.load(bias + n * O + o, mask=o < O, other=0.0)
    tl.store(out + n * on + (b * ob + pixel * op + o * oc), total, mask=(m < M) & (o < O))


@triton.jit
def _weight_gradient(
    images, g, out, sums, M, O, C, H, W, sn, sb, sc, sh, sw, gn, gb, gc, gp, each, parts_m,
    h: tl.constexpr, w: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    FLAT: tl.constexpr, EVEN: tl.constexpr, BIAS: tl.constexpr, PRECISION: tl.constexpr,
    BM: tl.constexpr, BO: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Write out (N, S, K, O): patches times the outputs' gradient, in S parts of the pixels, and its sums (N, S, O)."""
    blocks, part = tl.cdiv(O, BO), tl.program_id(2)
    n, block = tl.program_id(1).to(tl.int64), tl.program_id(0) // blocks
    o = tl.program_id(0) % blocks * BO + tl.arange(0, BO)
    k = tl.arange(0, BK)[:, None]
    images += n * sn
    g += n * gn
    if FLAT:
        at = block * BK + k
        K, tap, c = KH * KW * FLAT, at // FLAT, at % FLAT
        fits = at < K
    else:
        parts = tl.cdiv(C, BK)
        K, tap, c = KH * KW * C, block // parts, block % parts * BK + k
        fits = c < C
        at = tap * C + c
    total, sum_g = tl.zeros((BK, BO), tl.float32), tl.zeros((BO,), tl.float32)
    for start in range(0, each, BM):
        m = part * each + start + tl.arange(0, BM)[None, :]
        b, pixel = m // (h * w), m % (h * w)
        patches = _read(
            images, b, pixel // w, pixel % w, c, tap // KW, tap % KW, m < M if EVEN else fits & (m < M),
            H, W, sb, sc, sh, sw, SH, SW, PH, PW, False,
        )  # fmt: skip
        m = part * each + start + tl.arange(0, BM)[:, None]
        b, pixel = m // (h * w), m % (h * w)
        back = tl.load(g + (b * gb + pixel * gp + o[None, :] * gc), mask=(m < M) & (o < O)[None, :], other=0.0)
        total = tl.dot(patches, back, total, input_precision=PRECISION)
        if BIAS:
            sum_g += tl.sum(back, 0)
    out += (n * parts_m + part) * K * O
    tl.store(out + (at * O + o[None, :]), total, mask=fits & (o < O)[None, :])
    if BIAS:
        if block == 0:
            tl.store(sums + (n * parts_m + part) * O + o, sum_g, mask=o < O)


def product(images: Tensor, rows: Tensor, bias: Tensor | None, layer: "Layer", back: bool = False) -> Tensor:
    """Return outputs (N, B, O, h, w) of images (N, B, C, H, W) and rows (N, O, K) of kernels.

    Where `back`, images are a gradient of outputs, and inputs' gradient is returned; rows are kernels by input channel.
    """
    (N, B, C, H, W), O, (h, w) = images.shape, rows.shape[1], layer.image if back else layer.out
    M, flat, images = B * h * w, C if C <= FLAT else 0, within_reach(images)
    out = empty(N, B, O, h, w, like=images)
    small = flat > 0 and O <= FLAT
    BM, BO, BK = 64 if small else 128, tile(O, 128), tile(C * math.prod(layer.kernel) if flat else C, 32)
    with device_of(images):
        _product[triton.cdiv(M, BM) * triton.cdiv(O, BO), N](
            images, rows, rows if bias is None else bias, out, M, O, C, H, W, h, w, *images.stride(),
            *pixel_strides(out), **_of(layer), BACK=back, FLAT=flat, EVEN=C % BK == 0, BIAS=bias is not None,
            BM=BM, BO=BO, BK=BK, num_warps=2 if small else 4, num_stages=3,
        )  # fmt: skip
    return out


def weight_gradient(images: Tensor, g: Tensor, layer: "Layer", bias: bool) -> tuple[Tensor, Tensor | None]:
    """Return what the gradient g (N, B, O, h, w) of outputs gives kernels (N, O, C, k, k) and biases (N, O)."""
    (N, B, C, H, W), O, (h, w) = images.shape, g.shape[2], layer.out
    images, g = within_reach(images), within_reach(g if has_rows_in_line(g) else channels_last(g))
    M, K, flat = B * h * w, C * math.prod(layer.kernel), C if C <= FLAT else 0
    BM, BO, BK = 32, tile(O, 128), tile(K if flat else C, 32)
    tiles = (triton.cdiv(K, BK) if flat else math.prod(layer.kernel) * triton.cdiv(C, BK)) * triton.cdiv(O, BO)
    each, parts = parts_of(images, N * tiles, M, BM)
    out, sums = g.new_empty(N, parts, K, O), g.new_empty(N, parts, O)
    with device_of(images):
        _weight_gradient[tiles, N, parts](
            images, g, out, sums, M, O, C, H, W, *images.stride(), *pixel_strides(g), each, parts, h, w, **_of(layer),
            FLAT=flat, EVEN=not flat and C % BK == 0, BIAS=bias, BM=BM, BO=BO, BK=BK,
            num_warps=4 if BO == 128 else 2, num_stages=3,
        )  # fmt: skip
    total = (out[:, 0] if parts == 1 else out.sum(1)).view(N, *layer.kernel, C, O).permute(0, 4, 3, 1, 2)
    return total, sums.sum(1) if bias else None


def _of(layer: "Layer") -> dict[str, Any]:
    (KH, KW), (SH, SW), (PH, PW) = layer.kernel, layer.stride, layer.padding
    precision = "ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32"
    return {"KH": KH, "KW": KW, "SH": SH, "SW": SW, "PH": PH, "PW": PW, "PRECISION": precision}
