"""From scores to reputations, shares and counts, and who is still reputable: rules that several methods share."""

import torch
from torch import Tensor


def normalised(scores: Tensor, members: Tensor | None = None) -> Tensor:
    """Return scores (N,) divided by their sum, zero for clients that are not members (N,).

    Equal parts where the sum is not above zero, or where scores of both signs all but cancel out.
    """
    inside = torch.ones_like(scores) if members is None else members.to(scores)
    scores = scores * inside
    total = scores.sum()
    if bool(total > 1e-6 * scores.abs().sum()):
        return scores / total
    return inside / inside.sum().clamp(min=1)


def of_the_best(scores: Tensor) -> Tensor:
    """Return scores (N,) as parts of the largest, from 0 to 1; all 1 where none is above zero."""
    best = scores.max()
    return (scores / best).clamp(min=0) if bool(best > 0) else torch.ones_like(scores)


def counted(shares: Tensor, of: int, *, up: bool) -> Tensor:
    """Return how many of a number of things each share is (N,), rounded up or down to a whole number.

    Few shares are exact: 0.1 in float32 is a little more than a tenth. What stands off a whole number by no more than
    the rounding of the shares' own type is that number, so that a tenth of ten is one.
    """
    number = shares.double() * of
    nearest = number.round()
    rounding = (2 * torch.finfo(shares.dtype).eps * number).clamp(min=1e-9)  # three roundings
    return torch.where((number - nearest).abs() <= rounding, nearest, number.ceil() if up else number.floor()).long()


def remaining(reputation: Tensor, members: Tensor, judged: Tensor, coefficient: float) -> Tensor:
    """Return which clients stay in R (N,): members of at least coefficient / |R|, and those not judged this time.

    All members stay where none would be left (CFFL, RFFL).
    """
    least = coefficient / max(int(members.sum()), 1)
    stay = members & ((reputation >= least) | ~judged)
    return stay if bool(stay.any()) else members
