"""Cosine gradient Shapley value of CGSV (Xu et al., NeurIPS 2021): what an update has in common with everybody's.

    (1) u_i = Γ Δ_i / ‖Δ_i‖,   u_N = Σ_i r_i u_i
    (2) φ_i = (1/N!) Σ_orders [ v(S ∪ {i}) - v(S) ],   v(S) = cos(u_S, u_N),   u_S = Σ_{j in S} r_j u_j,   v(∅) = 0
    (3) ψ_i = cos(u_i, u_N)

Every cosine follows from inner products of updates, so the exact value needs one pass over the D parameters, for the
N × N Gram matrix; its 2^N coalitions cost nothing of size D. Γ cancels. A client that brought nothing (it was absent,
or its update is zero) gets 0; where u_S or u_N vanishes, because updates cancel, its cosine is 0.
"""

import math

import torch
from torch import Tensor

from cofair.contributions import shapley
from cofair.contributions.checks import check_finite, check_weights
from cofair.contributions.shapley import Utility

_FLOOR = 1e-7  # added to norms, as the authors' code does
_COLUMNS = 2**12  # parameters whose products are summed in the updates' own type, before float64 takes over
_AT_ONCE = 64  # such chunks in one batched product: one call for all cores, and memory of 64 N² numbers
_COALITIONS = 2**14  # coalitions of drawn orders that are held at once
_ROUNDING = 16.0  # units in the last place below which the square of a sum counts as zero


def normalised(updates: Tensor, gamma: float = 1.0) -> Tensor:
    """Return u_i = Γ Δ_i / ‖Δ_i‖ (N, D); an update of zeros stays zero."""
    norms: Tensor = torch.linalg.vector_norm(updates, dim=1, keepdim=True)
    return updates * (gamma / (norms + _FLOOR))


def gram(updates: Tensor) -> Tensor:
    """Return the inner products (N, N) of updates (N, D) in float64, summed over chunks of parameters."""
    products = torch.zeros(len(updates), len(updates), dtype=torch.float64, device=updates.device)
    for block in torch.split(updates, _COLUMNS * _AT_ONCE, dim=1):
        count = block.shape[1] // _COLUMNS
        chunks = block[:, : count * _COLUMNS].reshape(len(updates), count, _COLUMNS).transpose(0, 1)
        rest = block[:, count * _COLUMNS :]
        products += torch.bmm(chunks, chunks.mT).sum(0, dtype=torch.float64) + rest @ rest.mT
    return products


def exact(updates: Tensor, weights: Tensor, present: Tensor | None = None) -> Tensor:
    """Return φ (Eq. 2) of updates (N, D) with weights r (N,), over all coalitions of clients that brought something."""
    inner, players = inner_products(updates, weights, present)
    return _placed(shapley.from_values(coalition_cosines(inner, _tolerance(updates))), players)


def approximate(updates: Tensor, weights: Tensor, present: Tensor | None = None) -> Tensor:
    """Return ψ (Eq. 3) in time linear in N: the Gram matrix is not needed.

    Unlike φ_i it does not depend on r_i: a client without weight in u_N still has a cosine.
    """
    players = _present(updates, weights, present)
    rows = updates if bool(players.all()) else updates[players]
    norms = torch.linalg.vector_norm(rows, dim=1)
    check_finite(norms, players)
    scales = weights.to(norms)[players] / (norms + _FLOOR)
    aggregate = scales @ rows  # u_N for Γ = 1
    length = torch.linalg.vector_norm(aggregate)
    if length.square() <= _tolerance(updates) * (scales * norms).square().sum():
        return torch.zeros(len(updates), dtype=torch.float64, device=updates.device)
    cosines = (rows @ aggregate).double() / (norms.double() * length.double())
    return _placed(torch.where(norms > 0, cosines, 0).clamp(-1, 1), players)


def sampled(
    updates: Tensor, weights: Tensor, generator: torch.Generator, permutations: int = 150,
    present: Tensor | None = None, places: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Return φ (Eq. 2) averaged over random orders; 150 of them are the paper's ε = δ = 0.1 (Figure 1).

    Orders are drawn for `places` (N,) where these are given.
    """
    inner, players = inner_products(updates, weights, present)
    there = None if places is None else places[players.cpu()]
    drawn = shapley.orders(len(inner), permutations, generator, there)
    return _placed(shapley.sampled(cosine_utility(inner, _tolerance(updates)), drawn), players)


def inner_products(updates: Tensor, weights: Tensor, present: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return ⟨r_i u_i, r_j u_j⟩ for Γ = 1 among clients that brought something, on the CPU, and which they are (N,)."""
    players = _present(updates, weights, present)
    products = gram(updates if bool(players.all()) else updates[players])
    check_finite(products.diagonal(), players)
    norms = products.diagonal().sqrt()
    scales = weights.to(norms)[players] / (norms + _FLOOR)
    inner = products * scales[:, None] * scales
    brought = inner.diagonal() > 0
    players = players.clone()
    players[players.clone()] = brought
    return inner[brought][:, brought].cpu(), players


def coalition_cosines(inner: Tensor, tolerance: float) -> Tensor:
    """Return v(S) = cos(u_S, u_N) of all coalitions (2^N,) by bitmask, from the inner products of r_i u_i."""
    lengths = coalition_squares(inner)
    zero = lengths <= tolerance * shapley.subset_sums(inner.diagonal())
    if bool(zero[-1]):
        return torch.zeros_like(lengths)
    dots = shapley.subset_sums(inner.sum(1))  # ⟨u_S, u_N⟩ = Σ_{i in S} Σ_j ⟨r_i u_i, r_j u_j⟩
    return dots.div_(lengths.mul_(lengths[-1].clone()).sqrt_()).masked_fill_(zero, 0).clamp_(-1, 1)


def coalition_squares(inner: Tensor) -> Tensor:
    """Return ‖u_S‖² of all coalitions (2^N,): ‖u_S + u_k‖² = ‖u_S‖² + ‖u_k‖² + 2 Σ_{j in S} ⟨u_j, u_k⟩."""
    shapley.check_players(len(inner))
    squares = inner.new_zeros(1)
    for k in range(len(inner)):
        crossed = shapley.subset_sums(2 * inner[k, :k])
        squares = torch.cat([squares, crossed.add_(squares).add_(inner[k, k])])
    return squares


def cosine_utility(inner: Tensor, tolerance: float) -> Utility:
    """Return the utility v(S) = cos(u_S, u_N) of coalitions (C, N)."""
    total = math.sqrt(max(float(inner.sum()), 0.0))
    diagonal = inner.diagonal()
    vanishes = total**2 <= tolerance * float(diagonal.sum())

    def utility(coalitions: Tensor) -> Tensor:
        if vanishes:
            return torch.zeros(len(coalitions), dtype=inner.dtype)
        parts = []
        for members in torch.split(coalitions, _COALITIONS):
            chosen = members.to(inner)
            lengths = ((chosen @ inner) * chosen).sum(1)
            cosines = chosen @ inner.sum(1) / (lengths.clamp(min=0).sqrt() * total)
            parts.append(torch.where(lengths <= tolerance * (chosen @ diagonal), 0, cosines).clamp(-1, 1))
        return torch.cat(parts)

    return utility


def _present(updates: Tensor, weights: Tensor, present: Tensor | None) -> Tensor:
    check_weights(updates, weights, present)
    if present is None:
        return torch.ones(len(updates), dtype=torch.bool, device=updates.device)
    return present.to(updates.device)


def _placed(values: Tensor, players: Tensor) -> Tensor:
    """Return values of players (n,) at their places among all clients (N,), zero for the others."""
    placed = torch.zeros(len(players), dtype=torch.float64, device=players.device)
    placed[players] = values.to(placed)
    return placed


def _tolerance(updates: Tensor) -> float:
    return _ROUNDING * torch.finfo(updates.dtype).eps
