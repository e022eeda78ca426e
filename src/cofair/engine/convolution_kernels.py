"""Triton kernels for the convolutions and poolings of many models at once, each with parameters of its own.

A convolution is a product of matrices. The rows of the left one are patches of images, one for each pixel of the
outputs: M = B·h·w of them for a model. They are never stored, but read from the images as the product goes along.
"""

import math
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl
from torch import Tensor

if TYPE_CHECKING:
    from cofair.engine.convolutions import Layer

FLAT = 32  # channels: up to so many, the numbers of a patch are counted over its pixels and channels together
PIXELS = 1024  # of poolings, at a time
Pair = tuple[int, int]


@triton.jit
def _read(
    images, b, i, j, c, ki, kj, there, H, W, sb, sc, sh, sw,
    SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, BACK: tl.constexpr,
):  # fmt: skip
    """Return what pixels (i, j) of the outputs see at (ki, kj) of their patches; BACK: pixels of inputs, of outputs."""
    if BACK:
        y, x = i + PH - ki, j + PW - kj
        there = there & (y >= 0) & (x >= 0)
        if SH > 1:
            there = there & (y % SH == 0)
            y = y // SH
        if SW > 1:
            there = there & (x % SW == 0)
            x = x // SW
        there = there & (y < H) & (x < W)
    else:
        y, x = i * SH - PH + ki, j * SW - PW + kj
        if PH > 0:
            there = there & (y >= 0) & (y < H)
        if PW > 0:
            there = there & (x >= 0) & (x < W)
    return tl.load(images + (b * sb + y * sh + x * sw + c * sc), mask=there, other=0.0)


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


def _width(count: int, most: int) -> int:
    return min(most, max(16, triton.next_power_of_2(count)))


def _of(layer: "Layer") -> dict[str, Any]:
    (KH, KW), (SH, SW), (PH, PW) = layer.kernel, layer.stride, layer.padding
    precision = "ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32"
    return {"KH": KH, "KW": KW, "SH": SH, "SW": SW, "PH": PH, "PW": PW, "PRECISION": precision}


def _empty(*shape: int, like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Return images (N, B, C, h, w) that are yet to be written, their channels last.

    They are no view of something else: autograd would not let such a view be changed in place.
    """
    N, B, C, h, w = shape
    strides = (B * C * h * w, C * h * w, 1, w * C, C)
    return torch.empty_strided((N, B, C, h, w), strides, dtype=dtype or like.dtype, device=like.device)


def _contiguous(images: Tensor) -> Tensor:
    """Return images (N, B, C, h, w) with their channels last in memory."""
    return images.movedim(2, -1).contiguous().movedim(-1, 2)


# Tiles, warps and stages below are the fastest of sixteen each, or near them, on an H200 for layers of all our models.


def product(images: Tensor, rows: Tensor, bias: Tensor | None, layer: "Layer", back: bool = False) -> Tensor:
    """Return outputs (N, B, O, h, w) of images (N, B, C, H, W) and rows (N, O, K) of kernels.

    Where `back`, images are a gradient of outputs, and inputs' gradient is returned; rows are kernels by input channel.
    """
    (N, B, C, H, W), O, (h, w) = images.shape, rows.shape[1], layer.image if back else layer.out
    M, flat = B * h * w, C if C <= FLAT else 0
    out = _empty(N, B, O, h, w, like=images)
    small = flat > 0 and O <= FLAT
    BM, BO, BK = 64 if small else 128, _width(O, 128), _width(C * math.prod(layer.kernel) if flat else C, 32)
    with _device_of(images):
        _product[triton.cdiv(M, BM) * triton.cdiv(O, BO), N](
            images, rows, rows if bias is None else bias, out, M, O, C, H, W, h, w, *images.stride(),
            *_pixel_strides(out), **_of(layer), BACK=back, FLAT=flat, EVEN=C % BK == 0, BIAS=bias is not None,
            BM=BM, BO=BO, BK=BK, num_warps=2 if small else 4, num_stages=3,
        )  # fmt: skip
    return out


def weight_gradient(images: Tensor, g: Tensor, layer: "Layer", bias: bool) -> tuple[Tensor, Tensor | None]:
    """Return what the gradient g (N, B, O, h, w) of outputs gives kernels (N, O, C, k, k) and biases (N, O)."""
    (N, B, C, H, W), O, (h, w) = images.shape, g.shape[2], layer.out
    g = g if g.stride(3) == w * g.stride(4) else _contiguous(g)
    M, K, flat = B * h * w, C * math.prod(layer.kernel), C if C <= FLAT else 0
    BM, BO, BK = 32, _width(O, 128), _width(K if flat else C, 32)
    tiles = (triton.cdiv(K, BK) if flat else math.prod(layer.kernel) * triton.cdiv(C, BK)) * triton.cdiv(O, BO)
    # enough programs to fill the GPU; sums of their parts, since atomic additions come in an order of chance
    parts = max(1, min(triton.cdiv(_programs(images), N * tiles), triton.cdiv(M, 8 * BM)))
    each = triton.cdiv(triton.cdiv(M, parts), BM) * BM
    parts = triton.cdiv(M, each)
    out, sums = g.new_empty(N, parts, K, O), g.new_empty(N, parts, O)
    with _device_of(images):
        _weight_gradient[tiles, N, parts](
            images, g, out, sums, M, O, C, H, W, *images.stride(), *_pixel_strides(g), each, parts, h, w, **_of(layer),
            FLAT=flat, EVEN=not flat and C % BK == 0, BIAS=bias, BM=BM, BO=BO, BK=BK,
            num_warps=4 if BO == 128 else 2, num_stages=3,
        )  # fmt: skip
    total = (out[:, 0] if parts == 1 else out.sum(1)).view(N, *layer.kernel, C, O).permute(0, 4, 3, 1, 2)
    return total, sums.sum(1) if bias else None


def _pixel_strides(images: Tensor) -> tuple[int, int, int, int]:
    """Return the strides of models, samples, channels and pixels, which are counted over rows here."""
    n, b, c, _, w = images.stride()
    return n, b, c, w


def _device_of(tensor: Tensor) -> AbstractContextManager[Any]:
    return torch.cuda.device(tensor.device) if tensor.is_cuda else nullcontext()  # Triton's interpreter runs on a CPU


def _programs(images: Tensor) -> int:
    return 4 * torch.cuda.get_device_properties(images.device).multi_processor_count if images.is_cuda else 8


def pool(images: Tensor, kernel: Pair) -> tuple[Tensor, Tensor]:
    """Return the largest numbers (N, B, C, h, w) of windows side by side in images, and where they are."""
    N, B, C, H, W = images.shape
    h, w = H // kernel[0], W // kernel[1]
    out, where = (_empty(N, B, C, h, w, like=images, dtype=dtype) for dtype in (images.dtype, torch.int8))
    flat = images.flatten(0, 1)
    with _device_of(images):
        _pool[(triton.cdiv(out.numel(), PIXELS),)](
            flat, out, where, out.numel(), C, h, w, *flat.stride(), *kernel, BLOCK=PIXELS
        )  # fmt: skip
    return out, where


def pool_gradient(g: Tensor, where: Tensor, image: Pair, kernel: Pair) -> Tensor:
    """Return what the gradient g (N, B, C, h, w) of largest numbers gives images (N, B, C, H, W)."""
    N, B, C, h, w = g.shape
    out = _empty(N, B, C, *image, like=g)
    with _device_of(g):
        _pool_gradient[(triton.cdiv(out.numel(), PIXELS),)](
            _contiguous(g), where, out, out.numel(), C, *image, h, w, *kernel, BLOCK=PIXELS
        )  # fmt: skip
    return out
