"""Leave-one-out: how much worse the average of all models gets without one client.

    φ_i = v(N) - v(N \\ {i}),   v(S) the metric of the model that coalition S would have made (`coalition_models`)

It costs N + 1 models where Shapley values cost 2^N, but two clients that bring the same both count for little.
"""

import torch
from torch import Tensor

from cofair.contributions import coalition_models
from cofair.scoring.scorer import Scorer


def leave_one_out(scorer: Scorer, base: Tensor, updates: Tensor, sizes: Tensor, present: Tensor) -> Tensor:
    """Return φ (N,) of updates (N, D) to a model (D,); absent clients get 0, a single client all that it gains."""
    chosen = coalition_models.players(updates, sizes, present)
    count = int(chosen.sum())
    everyone_and_without_each = torch.cat([torch.ones(1, count, dtype=torch.bool), ~torch.eye(count, dtype=torch.bool)])
    values = coalition_models.utility(scorer, base, updates, sizes, chosen)(everyone_and_without_each)
    found = torch.zeros(len(updates), dtype=torch.float64, device=updates.device)
    found[chosen] = (values[0] - values[1:]).to(found)
    return found
