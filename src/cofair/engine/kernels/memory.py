"""How stacked images (N, B, C, h, w) lie in memory, and how kernels are launched over them.

Channels are last. Kernels count offsets within a model's images in 32 bits.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import triton
from torch import Tensor

LARGEST = 2**31 - 2**16  # offset within the images of one model, at most: a tile may reach beyond the end
MODELS = 65535  # at most: the second dimension of a grid
PIXELS = 1024  # of poolings and norms, at a time
Pair = tuple[int, int]


def tile(count: int, most: int) -> int:
    """Return the power of two that covers a count, between 16, as tensor cores need, and `most`."""
    return min(most, max(16, triton.next_power_of_2(count)))


def empty(*shape: int, like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Return images (N, B, C, h, w) that are yet to be written, their channels last.

    They are no view of something else: autograd would not let such a view be changed in place.
    """
    N, B, C, h, w = shape
    strides = (B * C * h * w, C * h * w, 1, w * C, C)
    return torch.empty_strided((N, B, C, h, w), strides, dtype=dtype or like.dtype, device=like.device)


def channels_last(images: Tensor) -> Tensor:
    """Return images (N, B, C, h, w) with their channels last in memory."""
    return images.movedim(2, -1).contiguous().movedim(-1, 2)


def has_rows_in_line(images: Tensor) -> bool:
    """Say whether pixels can be counted over rows."""
    h, w = images.shape[3:]
    return h == 1 or w == 1 or images.stride(3) == w * images.stride(4)


def within_reach(images: Tensor) -> Tensor:
    """Return images with offsets that kernels can count: torch.func may have laid the models between the samples."""
    last = sum((size - 1) * stride for size, stride in zip(images.shape[1:], images.stride()[1:], strict=True))
    return images if last <= LARGEST else channels_last(images)


def pixel_strides(images: Tensor) -> tuple[int, int, int, int]:
    """Return the strides of models, samples, channels and pixels, which are counted over rows here."""
    n, b, c, h, w = images.stride()
    return n, b, c, h if images.shape[4] == 1 else w  # the stride of a dimension of one means nothing


def parts_of(images: Tensor, programs: int, count: int, block: int) -> tuple[int, int]:
    """Return how many of `count` pixels to give to a program, in blocks, and how many parts that makes.

    There are to be enough programs to fill the GPU. Their parts are summed up afterwards: atomic additions would come
    in an order of chance.
    """
    wanted = 4 * torch.cuda.get_device_properties(images.device).multi_processor_count if images.is_cuda else 8
    parts = max(1, min(triton.cdiv(wanted, programs), triton.cdiv(count, 8 * block)))
    each = triton.cdiv(triton.cdiv(count, parts), block) * block
    return each, triton.cdiv(count, each)


def device_of(tensor: Tensor) -> AbstractContextManager[Any]:
    """Return a context in which kernels are launched where a tensor lies."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else nullcontext()  # Triton's interpreter runs on a CPU
