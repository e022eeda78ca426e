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
PIXELS = 1024  # of poolings and norms, at a time
LARGEST = 2**31 - 2**16  # offset within the images of one model: kernels count in 32 bits, and a tile beyond the end
MODELS = 65535  # at most: the second dimension of a grid
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
    M, flat, images = B * h * w, C if C <= FLAT else 0, _within_reach(images)
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
    images, g = _within_reach(images), _within_reach(g if _has_rows_in_line(g) else _contiguous(g))
    M, K, flat = B * h * w, C * math.prod(layer.kernel), C if C <= FLAT else 0
    BM, BO, BK = 32, _width(O, 128), _width(K if flat else C, 32)
    tiles = (triton.cdiv(K, BK) if flat else math.prod(layer.kernel) * triton.cdiv(C, BK)) * triton.cdiv(O, BO)
    each, parts = _parts(images, N * tiles, M, BM)
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
    n, b, c, h, w = images.stride()
    return n, b, c, h if images.shape[4] == 1 else w  # the stride of a dimension of one means nothing


def _has_rows_in_line(images: Tensor) -> bool:
    """Tell whether pixels can be counted over rows."""
    h, w = images.shape[3:]
    return h == 1 or w == 1 or images.stride(3) == w * images.stride(4)


def _within_reach(images: Tensor) -> Tensor:
    """Return images with offsets that kernels can count: torch.func may have laid the models between the samples."""
    last = sum((size - 1) * stride for size, stride in zip(images.shape[1:], images.stride()[1:], strict=True))
    return images if last <= LARGEST else _contiguous(images)


def _device_of(tensor: Tensor) -> AbstractContextManager[Any]:
    return torch.cuda.device(tensor.device) if tensor.is_cuda else nullcontext()  # Triton's interpreter runs on a CPU


def _parts(images: Tensor, programs: int, count: int, block: int) -> tuple[int, int]:
    """Return how many of `count` pixels to give to a program, in blocks, and how many parts that makes.

    There are to be enough programs to fill the GPU. Their parts are summed up afterwards: atomic additions would come
    in an order of chance.
    """
    wanted = 4 * torch.cuda.get_device_properties(images.device).multi_processor_count if images.is_cuda else 8
    parts = max(1, min(triton.cdiv(wanted, programs), triton.cdiv(count, 8 * block)))
    each = triton.cdiv(triton.cdiv(count, parts), block) * block
    return each, triton.cdiv(count, each)


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


def norm(x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return images (N, B, C, h, w) with normalised groups of channels, and means and 1/deviations (N, B, groups)."""
    N, B, C, h, w = x.shape
    x, out = _dense(x), _empty(N, B, C, h, w, like=x)
    means, rates = x.new_empty(N, B, groups), x.new_empty(N, B, groups)
    with _device_of(x):
        _norm[B * groups, N](
            x, weight.contiguous(), bias.contiguous(), out, means, rates, C, h * w, groups, *_row_strides(x),
            out.stride(0), eps, BLOCK=_width(C // groups * h * w, PIXELS),
        )  # fmt: skip
    return out, means, rates


def norm_gradients(x: Tensor, weight: Tensor, means: Tensor, rates: Tensor, g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return what the gradient g (N, B, C, h, w) of normalised images gives images, scales and shifts (N, C)."""
    (N, B, C, h, w), groups = x.shape, means.shape[2]
    x, g, dx = _dense(x), _contiguous(g), _empty(N, B, C, h, w, like=x)
    BM, BC = 32, _width(C, 64)
    each, parts = _parts(x, N * triton.cdiv(C, BC), B * h * w, BM)
    sums = x.new_empty(2, N, parts, C)
    with _device_of(x):
        _norm_gradient[B * groups, N](
            x, weight.contiguous(), g, dx, means, rates, C, h * w, groups, *_row_strides(x), dx.stride(0),
            BLOCK=_width(C // groups * h * w, PIXELS),
        )  # fmt: skip
        _norm_weight_gradient[triton.cdiv(C, BC), N, parts](
            x, g, sums, means, rates, B * h * w, C, h * w, groups, B, *_row_strides(x), dx.stride(0), each, parts,
            BM=BM, BC=BC,
        )  # fmt: skip
    scale, shift = sums.sum(2)
    return dx, scale, shift


def _dense(images: Tensor) -> Tensor:
    """Return images with their channels last, and pixels that can be counted over rows."""
    fits = (images.stride(2) == 1 or images.shape[2] == 1) and _has_rows_in_line(images)
    return _within_reach(images) if fits else _contiguous(images)


def _row_strides(images: Tensor) -> tuple[int, int, int]:
    """Return the strides of models, samples and pixels."""
    n, b, _, pixel = _pixel_strides(images)
    return n, b, pixel
