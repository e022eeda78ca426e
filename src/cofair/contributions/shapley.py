"""Shapley values of any utility: exactly, over all coalitions, or sampled, over random orders.

A utility is a function of coalitions: rows (C, N), True for members, to values (C,). The Shapley value is what a
player adds to those that came before it, averaged over all orders in which players may come (Shapley, 1953):

    φ_i = (1/N!) Σ_orders [ v(before_i ∪ {i}) - v(before_i) ] = Σ_{S ∌ i} |S|! (N-|S|-1)! / N! · [ v(S ∪ {i}) - v(S) ]

Values of all coalitions stand in a vector (2^N,) by bitmask: bit i of a position says whether i is a member.
"""

import itertools
import math
from collections.abc import Callable

import torch
from torch import Tensor

from cofair.errors import UsageError

Utility = Callable[[Tensor], Tensor]

EXACT_AT_MOST = 24  # players: 2^24 values are 128 MiB, and a few such vectors are held
_LISTED_AT_MOST = 7  # players whose 5,040 orders are listed, so that some can be drawn without replacement


def coalitions(players: int) -> Tensor:
    """Return all coalitions as rows (2^N, N) of a mask, in the order of their bitmasks."""
    check_players(players)
    return (torch.arange(2**players)[:, None] >> torch.arange(players)) & 1 == 1


def subset_sums(terms: Tensor) -> Tensor:
    """Return the sum over the members of each coalition (2^N,) by bitmask; each player doubles the vector."""
    sums = terms.new_zeros(1)
    for term in terms:
        sums = torch.cat([sums, sums + term])
    return sums


def exact(utility: Utility, players: int) -> Tensor:
    """Return the Shapley values (N,) of a utility that is asked once for all coalitions."""
    return from_values(utility(coalitions(players)))


def from_values(values: Tensor) -> Tensor:
    """Return the Shapley values (N,) from the values of all coalitions (2^N,) by bitmask, float64."""
    joins, stays, size = _weights(values)
    # with a_s = (s-1)!(N-s)!/N! and b_s = s!(N-s-1)!/N! the sum over S above is, over coalitions T of s players,
    # φ_i = Σ_{T ∋ i} a_s v(T) - Σ_{T ∌ i} b_s v(T) = Σ_{T ∋ i} (a_s + b_s) v(T) - Σ_T b_s v(T)
    values = values.to(torch.float64)
    return _sums_with((joins + stays)[size] * values) - (stays[size] * values).sum()


def orders(players: int, count: int, generator: torch.Generator, places: Tensor | None = None) -> Tensor:
    """Draw orders (K, N) in which players come: all N! if `count` allows it, without replacement where N! is small.

    With `places` (N,), where each player stands by name, draws are of places, so that they move with the players.
    """
    if players <= _LISTED_AT_MOST:
        drawn = torch.tensor(list(itertools.permutations(range(players))), dtype=torch.int64)
        if count < len(drawn):
            drawn = drawn[torch.randperm(len(drawn), generator=generator)[:count]]
    else:
        drawn = torch.rand(count, players, generator=generator, dtype=torch.float64).argsort(1)
    return drawn if places is None else places.argsort()[drawn]


def sampled(utility: Utility, drawn: Tensor) -> Tensor:
    """Return Shapley values (N,) averaged over drawn orders (K, N); a coalition that occurs again is scored once."""
    count, players = drawn.shape
    if players == 0:
        return torch.zeros(0, dtype=torch.float64)
    place = drawn.argsort(1)
    members = place[:, None, :] < torch.arange(players + 1)[:, None]  # (K, N + 1, N): the first s of each order
    distinct, which = torch.unique(members.flatten(0, 1), dim=0, return_inverse=True)
    values = utility(distinct).to(device="cpu", dtype=torch.float64)[which].view(count, players + 1)
    total = torch.zeros(players, dtype=torch.float64)
    return total.index_add_(0, drawn.flatten(), values.diff(dim=1).flatten()) / count


def _weights(values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return a_s and b_s (N + 1,) for s = 0..N, and how many members each coalition has (2^N,)."""
    players = (len(values) - 1).bit_length()
    if len(values) != 2**players:
        raise UsageError(f"Exact Shapley values need a value for each of 2^N coalitions, but got {len(values)}.")
    orders = [1 / (players * math.comb(players - 1, s)) for s in range(players)]  # s!(N-s-1)!/N!
    joins, stays = torch.tensor([[0.0, *orders], [*orders, 0.0]], dtype=torch.float64, device=values.device)
    return joins, stays, subset_sums(torch.ones(players, dtype=torch.int32, device=values.device))


def _sums_with(weighted: Tensor) -> Tensor:
    """Return for each player (N,) the sum over the coalitions (2^N,) that it is a member of."""
    sums = []
    while len(weighted) > 1:
        without, member = weighted.view(2, -1)  # of the player of the highest bit
        sums.append(member.sum())
        weighted = without + member
    return torch.stack(sums[::-1]) if sums else weighted.new_zeros(0)


def check_players(players: int) -> None:
    """Refuse a number of players for which the values of all coalitions would not fit into memory."""
    if players > EXACT_AT_MOST:
        raise UsageError(
            f"Exact Shapley values of {players} clients would need 2^{players} coalitions: at most {EXACT_AT_MOST} "
            f"clients are possible, so take a sampled or approximate measure."
        )
