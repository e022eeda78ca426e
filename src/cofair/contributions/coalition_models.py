"""The models that coalitions would have made, as a game: the federated average of their members' updates.

M_S = w + Σ_{i in S} (n_i / n_S) Δ_i,   M_∅ = w,   v(S) = metric of M_S on the validation set
"""

import torch
from torch import Tensor

from cofair.contributions.checks import check_updates
from cofair.contributions.shapley import Utility
from cofair.scoring.scorer import Scorer


def coefficients(coalitions: Tensor, sizes: Tensor) -> Tensor:
    """Return n_i / n_S (C, N) for the members of each coalition, float64; an empty coalition has none."""
    held = coalitions * sizes.to(torch.float64)
    return held / held.sum(1, keepdim=True).clamp(min=1)


def players(updates: Tensor, sizes: Tensor, present: Tensor) -> Tensor:
    """Return which clients can change a coalition's model (N,): those that answered and have samples."""
    chosen = present.to(updates.device) & (sizes > 0).to(updates.device)
    check_updates(updates, chosen)
    return chosen


def utility(scorer: Scorer, base: Tensor, updates: Tensor, sizes: Tensor, chosen: Tensor) -> Utility:
    """Return the utility v(S) of coalitions (C, n) among chosen clients (N,), a base (D,) and updates (N, D)."""
    rows = updates if bool(chosen.all()) else updates[chosen]
    held = sizes.to(chosen.device)[chosen].cpu()

    def score(coalitions: Tensor) -> Tensor:
        shares = coefficients(coalitions, held).to(updates.device)
        return scorer.coalitions(base, rows, shares).metric.to(device="cpu", dtype=torch.float64)

    return score
