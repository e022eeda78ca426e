"""Data size: n_i / max_j n_j, the share of DW in the comparison of CGSV and of CFFL under power-law sizes."""

import torch
from torch import Tensor


def relative_sizes(sizes: Tensor) -> Tensor:
    """Return n_i / max_j n_j (N,) in float64."""
    held = sizes.to(torch.float64)
    return held / held.max().clamp(min=1)
