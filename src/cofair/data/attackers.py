"""Who attacks, and attacks on the data itself: labels flipped, one client's data spread over several identities."""

from collections.abc import Sequence

import torch
from torch import Tensor

from cofair import randomness
from cofair.data.federation import Federation
from cofair.data.places import places_of, shuffled
from cofair.errors import UsageError


def attackers(clients: int | Sequence[int], names: Sequence[str], seed: int) -> tuple[int, ...]:
    """Return the places of the attackers: those listed, or as many as asked for, drawn by their names."""
    if isinstance(clients, int):
        if clients > len(names):
            raise UsageError(f"attack.clients asks for {clients} attackers among {len(names)} clients.")
        order = sorted(range(len(names)), key=lambda i: (randomness.address(seed, "attacker", names[i]), names[i]))
        return tuple(sorted(order[:clients]))
    wrong = [i for i in clients if not 0 <= i < len(names)]
    if wrong:
        raise UsageError(f"attack.clients names client {wrong[0]}, but the {len(names)} clients count from 0.")
    return tuple(sorted(set(clients)))


def with_flipped_labels(federation: Federation, who: Sequence[int], share: float, seed: int) -> Federation:
    """Return a federation in which a share of the attackers' samples has the label after its own, y + 1 modulo C."""
    if federation.classes is None:
        raise UsageError("attack.name = 'label_flip' needs labels that are classes.")
    labels = federation.labels.clone()
    for i in who:
        order = shuffled(federation, i, "label flip", seed)
        some = order[: round(share * len(order))]
        labels[some] = (labels[some] + 1) % federation.classes
    return federation.replaced(labels=labels)


def with_identities(
    federation: Federation, who: Sequence[int], count: int, seed: int
) -> tuple[Federation, tuple[int, ...]]:
    """Return a federation in which each attacker is `count` clients that share its data evenly, and who these are."""
    names: list[str] = []
    parts: list[Tensor] = []
    identities: list[int] = []
    for i, name in enumerate(federation.names):
        own = shuffled(federation, i, "sybil", seed) if i in who else places_of(federation, i)
        pieces = list(own.tensor_split(count)) if i in who else [own]
        if i in who:
            identities += range(len(names), len(names) + count)
        names += [f"{name}.{k}" for k in range(1, count + 1)] if i in who else [name]
        parts += pieces
    if len(set(names)) < len(names):
        raise UsageError("attack.name = 'sybil' would give two clients one name: rename the federation's clients.")
    positions = torch.cat(parts)
    changed = federation.replaced(
        names=tuple(names), rows=federation.rows[positions], labels=federation.labels[positions],
        sizes=torch.tensor([len(part) for part in parts]),
    )  # fmt: skip
    return changed, tuple(identities)
