"""The contribution index over rounds (Song, Tong and Wei, 2019): ECI in the comparison of CGSV.

In each round the server rebuilds, from the uploads, the model that every coalition would have made, scores it on its
validation set, and takes Shapley values of these scores. The index adds them up over rounds, early ones counting more:

    CI_i = Σ_t λ^t φ_i^t / Σ_j φ_j^t
"""

import torch
from torch import Tensor

from cofair.contributions import coalition_models, shapley
from cofair.scoring.scorer import Scorer

EXACT_BELOW = 10  # from this many clients on, random orders take the place of all coalitions


def coalition_shapley(
    scorer: Scorer, base: Tensor, updates: Tensor, sizes: Tensor, present: Tensor, generator: torch.Generator,
    permutations: int = 150, places: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Return φ^t (N,) of one round's updates (N, D) to a model (D,): Σ_i φ_i is what they gain together.

    Exact for fewer than ten clients that answered, else over random orders, drawn for `places` (N,) where these are
    given. Absent clients get 0.
    """
    chosen = coalition_models.players(updates, sizes, present)
    utility = coalition_models.utility(scorer, base, updates, sizes, chosen)
    count = int(chosen.sum())
    if count < EXACT_BELOW:
        values = shapley.exact(utility, count)
    else:
        there = None if places is None else places[chosen.cpu()]
        values = shapley.sampled(utility, shapley.orders(count, permutations, generator, there))
    found = torch.zeros(len(updates), dtype=torch.float64, device=updates.device)
    found[chosen] = values.to(found)
    return found


def shares(values: Tensor) -> Tensor:
    """Return φ_i / Σ_j φ_j; zeros for a round whose updates gain nothing together: its quotients would change signs."""
    total = values.sum()
    return torch.where(total > 1e-12, values / total, 0)


def accumulated(index: Tensor, values: Tensor, t: int, decay: float = 0.9) -> Tensor:
    """Return the index (N,) after round t, with λ = `decay`; it starts from zeros."""
    return index + decay**t * shares(values)
