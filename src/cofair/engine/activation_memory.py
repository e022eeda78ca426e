"""How much memory the layers' outputs of one sample take."""

import torch
from torch import Tensor, nn


def activation_bytes(module: nn.Module, x: Tensor) -> tuple[int, int]:
    """Return how many bytes of layer outputs one sample needs, and how many of the model's own outputs."""
    sizes = [x.numel()]
    leaves = [part for part in module.modules() if not list(part.children())]
    handles = [
        part.register_forward_hook(
            lambda _part, _args, out: sizes.append(out.numel()) if isinstance(out, Tensor) else None
        )
        for part in leaves
    ]
    try:
        with torch.no_grad():
            outputs = module(x)
    finally:
        for handle in handles:
            handle.remove()
    return 4 * sum(sizes), 4 * outputs.numel()
