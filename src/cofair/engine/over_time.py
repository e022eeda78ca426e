"""Convolutions over time of many models, as products of matrices: one for each place of a kernel.

Words lie one after another, so that what a place of the kernel sees of all samples is one matrix, that of the words
but for some first and last ones; nothing is copied. Where a kernel would reach into the next sample, outputs are
computed and left out.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable


class OverTime(torch.autograd.Function):
    """Outputs (N, B, O, l) of samples (N, B, C, L), kernels (N, O, C, k) and biases (N, O), at stride 1."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, padding: int) -> Tensor:
        """Return the outputs."""
        words, places = _words(x, padding), weight.movedim(-1, 1).contiguous()
        ctx.save_for_backward(words, places)
        ctx.padding = padding
        (N, B, L, _), (k, O) = words.shape, places.shape[1:3]  # noqa: E741
        # no view of something longer, which autograd would not let be changed in place
        out = words.new_empty_strided((N, B, O, L - k + 1), (B * L * O, L * O, 1, O))
        line, lines = out.as_strided((N, B * L - k + 1, O), (B * L * O, O, 1)), words.flatten(1, 2)
        for j in range(k):
            seen, kernel = lines[:, j : j + line.shape[1]], places[:, j].transpose(1, 2)
            if j:
                line.baddbmm_(seen, kernel)
            elif bias is None:
                torch.bmm(seen, kernel, out=line)
            else:
                torch.baddbmm(bias[:, None], seen, kernel, out=line)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> Any:
        """Return the gradients of samples, kernels and biases."""
        (words, places), needs, dx, dw, db = ctx.saved_tensors, ctx.needs_input_grad, None, None, None
        (N, B, L, C), k = words.shape, places.shape[1]
        # what was left out gives nothing to anybody
        whole = F.pad(g.transpose(2, 3), (0, 0, 0, k - 1)).flatten(1, 2)[:, : B * L - k + 1]
        if needs[0]:
            lines = words.new_zeros(N, B * L, C)
            for j in range(k):
                lines[:, j : j + whole.shape[1]].baddbmm_(whole, places[:, j])
            dx = lines.view(N, B, L, C)[:, :, ctx.padding : L - ctx.padding].transpose(2, 3)
        if needs[1]:
            lines, dw = words.flatten(1, 2), torch.empty_like(places)
            for j in range(k):
                torch.bmm(whole.transpose(1, 2), lines[:, j : j + whole.shape[1]], out=dw[:, j])
            dw = dw.movedim(1, -1)
        if needs[2]:
            db = g.sum((1, 3))
        return dx, dw, db, None


def _words(x: Tensor, padding: int) -> Tensor:
    """Return samples (N, B, C, L) as padded words (N, B, L, C) of which the samples of a model lie in line."""
    words = x.transpose(2, 3)
    words = F.pad(words, (0, 0, padding, padding)) if padding else words
    L, C = words.shape[2:]
    return words if words.stride()[1:] == (L * C, C, 1) else words.contiguous()
