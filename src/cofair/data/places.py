"""Where a client's samples stand in the table of a federation, as they are or in a random order of the client's own."""

import torch
from torch import Tensor

from cofair import randomness
from cofair.data.federation import Federation


def places_of(federation: Federation, i: int) -> Tensor:
    """Return the places of a client's samples."""
    start = int(federation.offsets[i])
    return torch.arange(start, start + int(federation.sizes[i]), device=federation.device)


def shuffled(federation: Federation, i: int, purpose: str, seed: int) -> Tensor:
    """Return the places of a client's samples in a random order, drawn for its name and a purpose."""
    places = places_of(federation, i)
    random = randomness.generator(seed, purpose, federation.names[i])
    return places[torch.randperm(len(places), generator=random).to(places.device)]
