"""Figure 1 of CGSV: how far the cosine and sampled orders are from the exact Shapley value, on random updates."""

from collections.abc import Sequence
from functools import cache

import numpy as np
import torch
from torch import Tensor

from cofair.contributions import cosine
from cofair.reproduce.measurements import Line, Value
from cofair.reproduce.paper_numbers import numbers

NAME = "cgsv-figure1"
RULE = "measured"  # there are no rounds to choose from


def lines(seeds: Sequence[int]) -> list[Line]:
    """Return every published point of the figure, and ours over some random draws.

    The authors' store of results is never emptied, so that each of their points is a mean over all settings before it;
    ours are of one setting each.
    """
    found = []
    for point in numbers("cgsv_figure1_approximation"):
        if not point.metric.startswith(("l1diff", "l2diff")):
            continue
        parameters = int(point.scene.partition("=")[2])
        norm = 1 if point.metric.startswith("l1") else 2
        method = "psi" if "psi" in point.method else "sampling"
        errors = [_errors(point.clients, parameters, seed)[method, norm] for seed in seeds]
        spread = float(np.std(errors, ddof=1)) if len(errors) > 1 else None
        found.append(Line(point, {RULE: Value(float(np.mean(errors)), spread, len(errors))}))
    return found


@cache
def _errors(clients: int, parameters: int, seed: int) -> dict[tuple[str, int], float]:
    random = torch.Generator().manual_seed(seed)
    updates = torch.randn(clients, parameters, generator=random)
    weights: Tensor = torch.linalg.vector_norm(updates, dim=1)  # undo the normalisation: all r are equal here
    exact = cosine.exact(updates, weights)
    others = {"psi": cosine.approximate(updates, weights), "sampling": cosine.sampled(updates, weights, random)}
    return {
        (name, norm): float(torch.linalg.vector_norm(exact / exact.sum() - other / other.sum(), norm))
        for name, other in others.items()
        for norm in (1, 2)
    }
