"""Label diversity: how much of the label space a client's data covers."""

import math

import torch
from torch import Tensor


def classes_held(counts: Tensor) -> Tensor:
    """Return the share of all classes that each client holds (N,), as CFFL under class imbalance: classes_i / C.

    `counts` (N, C) is the number of samples of each class.
    """
    return (counts > 0).to(torch.float64).mean(1)


def label_entropy(counts: Tensor) -> Tensor:
    """Return -Σ_c p_c ln p_c / ln C of each client's labels (N,): 1 for all classes alike, 0 for one or no data."""
    held = counts.to(torch.float64)
    p = held / held.sum(1, keepdim=True).clamp(min=1)
    return -torch.xlogy(p, p).sum(1) / math.log(max(counts.shape[1], 2))
