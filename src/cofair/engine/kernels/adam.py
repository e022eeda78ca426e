"""Adam of many models at once: each number is read and written once."""

import triton
import triton.language as tl
from torch import Tensor

from cofair.engine.kernels.memory import device_of

BLOCK = 1024


@triton.jit
def _adam(
    values, gradients, firsts, seconds, sizes, roots, scales, count, vn, gn, fn, sn, rate_one, rate_two, epsilon,
    SCALED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    n, at = tl.program_id(1).to(tl.int64), tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = at < count
    gradient = tl.load(gradients + n * gn + at, mask=there)
    if SCALED:
        gradient *= tl.load(scales + n)
    first, second = tl.load(firsts + n * fn + at, mask=there), tl.load(seconds + n * sn + at, mask=there)
    first += rate_one * (gradient - first)
    second += rate_two * (gradient * gradient - second)
    spread = tl.sqrt(second) / tl.load(roots + n) + epsilon
    value = tl.load(values + n * vn + at, mask=there) - tl.load(sizes + n) * first / spread
    tl.store(values + n * vn + at, value, mask=there)
    tl.store(firsts + n * fn + at, first, mask=there)
    tl.store(seconds + n * sn + at, second, mask=there)


def adam(
    value: Tensor, gradient: Tensor, first: Tensor, second: Tensor, sizes: Tensor, roots: Tensor,
    scale: Tensor | None, betas: tuple[float, float], epsilon: float,
) -> None:  # fmt: skip
    """Move stacks (n, ...) by their gradients, and their moments on, in place; sizes, roots and scale are (n,)."""
    n, count = len(value), value[0].numel()
    gradient = gradient if gradient[0].is_contiguous() else gradient.contiguous()
    strides = (tensor.stride(0) for tensor in (value, gradient, first, second))
    with device_of(value):
        _adam[triton.cdiv(count, BLOCK), n](
            value, gradient, first, second, sizes, roots, sizes if scale is None else scale, count, *strides,
            1 - betas[0], 1 - betas[1], epsilon, SCALED=scale is not None, BLOCK=BLOCK,
        )  # fmt: skip
