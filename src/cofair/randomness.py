"""Randomness that is addressed, not consumed.

Every random number is a hash of what it is for (seed, client, round, phase, epoch, sample). CPU, GPU, every
engine, a resumed run and a run with absent clients therefore see the same batches.
"""

import hashlib
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

_GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15 as a signed integer: splitmix64's increment
_FIRST = -4658895280553007687  # 0xBF58476D1CE4E5B9
_SECOND = -7723592293110705685  # 0x94D049BB133111EB
_ALL = 0xFFFF_FFFF_FFFF_FFFF


def address(*parts: int | str) -> int:
    """Hash names and numbers into one signed 64-bit integer."""
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in parts)
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def client_keys(seed: int, names: Sequence[str]) -> Tensor:
    """Return one 64-bit key for each client of a run."""
    return torch.tensor([address(seed, name) for name in names], dtype=torch.int64)


def fold(keys: Tensor, value: int | Tensor) -> Tensor:
    """Derive new keys from keys and a number, such as a round or an epoch."""
    if isinstance(value, int):  # avoids copying a number to a GPU
        return mix(keys ^ _mix_number(value + _GOLDEN))
    return mix(keys ^ mix(value + _GOLDEN))


def mix(x: Tensor) -> Tensor:
    """Scramble 64-bit integers (the finaliser of splitmix64; torch integers wrap around on every device)."""
    x = (x ^ _shift_right(x, 30)) * _FIRST
    x = (x ^ _shift_right(x, 27)) * _SECOND
    return x ^ _shift_right(x, 31)


def _mix_number(x: int) -> int:
    """Scramble one number as `mix` scrambles tensors."""
    x &= _ALL
    x = (x ^ (x >> 30)) * _FIRST & _ALL
    x = (x ^ (x >> 27)) * _SECOND & _ALL
    x ^= x >> 31
    return x - (1 << 64) if x >> 63 else x


def stream(keys: Tensor, count: int) -> Tensor:
    """Return `count` hashes for each key: shape (*keys.shape, count)."""
    counter = torch.arange(1, count + 1, dtype=torch.int64, device=keys.device)
    return mix(keys[..., None] + counter * _GOLDEN)


def generator(*parts: int | str) -> torch.Generator:
    """Return a torch generator on the CPU for one purpose, the same on every machine."""
    return torch.Generator().manual_seed(address(*parts) & 0x7FFF_FFFF_FFFF_FFFF)


def numpy_generator(*parts: int | str) -> np.random.Generator:
    """Return a numpy generator for one purpose."""
    return np.random.default_rng(address(*parts) & 0xFFFF_FFFF_FFFF_FFFF)


def _shift_right(x: Tensor, bits: int) -> Tensor:
    # torch shifts signed integers arithmetically; the hash needs zeros shifted in from the left
    return (x >> bits) & ((1 << (64 - bits)) - 1)
