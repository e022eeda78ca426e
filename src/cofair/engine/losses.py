"""What clients minimise: a loss gives one value per sample, its mean over a batch is the objective.

The value of a sample may depend on that sample only: batches of all clients are computed together, and padded. A torch
loss with class weights therefore counts as the plain mean of weighted values, not divided by the sum of weights.
"""

import copy
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cofair.errors import UsageError, nearest

Loss = Callable[[Tensor, Tensor], Tensor]


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the cross entropy of each sample: the default loss."""
    return F.cross_entropy(outputs, targets, reduction="none")


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the squared error of each sample, summed over outputs; classes count as vectors of 0 and 1."""
    if not targets.is_floating_point():
        targets = F.one_hot(targets, outputs.shape[1]).to(outputs.dtype)
    return (outputs.flatten(1) - targets.reshape(len(targets), -1)).square().sum(1)


LOSSES: dict[str, Loss] = {"cross_entropy": cross_entropy, "squared_error": squared_error}


def loss(choice: str | Loss, device: torch.device | None = None, dtype: torch.dtype | None = None) -> Loss:
    """Resolve a loss: a name, a torch loss module (a copy, moved, its reduction set to none), or any callable."""
    if isinstance(choice, str):
        if choice not in LOSSES:
            raise UsageError(f"Unknown loss {choice!r}: {nearest(choice, LOSSES)}")
        return LOSSES[choice]
    if isinstance(choice, nn.Module):
        choice = copy.deepcopy(choice).to(device=device, dtype=dtype)
        if hasattr(choice, "reduction"):
            choice.reduction = "none"  # type: ignore[assignment]
    if not callable(choice):
        raise UsageError(f"loss must be a name or a callable, but is {choice!r}.")
    return choice


def check_loss(values: object, batch: int) -> None:
    """Refuse a loss that does not give one value per sample: padding could not be left out."""
    if not isinstance(values, Tensor) or tuple(values.shape) != (batch,):
        got = f"shape {tuple(values.shape)}" if isinstance(values, torch.Tensor) else type(values).__name__
        raise UsageError(
            f"The loss must return one value per sample, shape ({batch},) for a batch of {batch}, but returned "
            f"{got}: use reduction='none'."
        )
