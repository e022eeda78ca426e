"""Updates and weights that no contribution can be measured from are refused with a sentence."""

import torch
from torch import Tensor

from cofair.errors import RunError, UsageError


def check_updates(updates: Tensor, present: Tensor) -> None:
    """Refuse updates (N, D) of present clients with NaN or infinite entries."""
    finite = torch.stack([~there | torch.isfinite(row).all() for row, there in zip(updates, present, strict=True)])
    check_finite(torch.where(finite, 0.0, torch.nan), torch.ones_like(present))


def check_finite(sizes: Tensor, clients: Tensor) -> None:
    """Refuse norms (n,) of the updates of the True among all clients (N,) that are not finite."""
    wrong = clients.nonzero().flatten()[~torch.isfinite(sizes)].tolist()
    if wrong:
        who = f"client {wrong[0]}" if len(wrong) == 1 else f"clients {', '.join(map(str, wrong))}"
        raise RunError(
            f"The update of {who} is not finite (NaN, or too large to square), so what it brings cannot be "
            f"measured: a lower learning rate or training.clip may help."
        )


def check_weights(updates: Tensor, weights: Tensor, present: Tensor | None) -> None:
    """Refuse weights that are not one finite number of at least 0 per client, and masks of another length."""
    if updates.dim() != 2 or weights.shape != updates.shape[:1]:
        raise UsageError(
            f"Updates (N, D) need weights (N,), but their shapes are {tuple(updates.shape)} and {tuple(weights.shape)}."
        )
    if present is not None and present.shape != weights.shape:
        raise UsageError(f"present must say for each of the {len(weights)} clients whether it answered.")
    if not bool((torch.isfinite(weights) & (weights >= 0)).all()):
        raise UsageError("Weights of clients must be finite numbers of at least 0.")
