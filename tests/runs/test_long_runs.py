"""Runs of very many rounds or clients need no more memory at their end than in their middle."""

import os
import time
from pathlib import Path

import pytest
import torch

import cofair
from cofair.data.federation import Federation
from cofair.models import build
from cofair.storage.ledger import verified_entries
from tests.storage.test_resume import small_federation

STATISTICS = Path("/proc/self/statm")
METHODS = ("fedavg", "cgsv", "fedsac", "fedrac", "contract")
MEBIBYTE = 2**20
pytestmark = pytest.mark.skipif(not STATISTICS.exists(), reason="only Linux tells a process's memory this way")


def resident():
    """The process's memory now, in MiB."""
    return int(STATISTICS.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / MEBIBYTE


def many_clients(clients):
    draw = torch.Generator().manual_seed(0)
    centres = torch.randn(3, 6, generator=draw)

    def samples(n):
        y = torch.randint(0, 3, (n,), generator=draw)
        return centres[y] + 0.8 * torch.randn(n, 6, generator=draw), y

    own = [samples(4 + i % 9) for i in range(clients)]
    return Federation(own, validation=samples(60), test=samples(40), classes=3)


def grown(method, federation, rounds, every, out):
    """Run a method in a folder; return the memory at its end and how much more that is than in its middle, in MiB.

    Each is a mean over a quarter of the tests: the second and the last.
    """
    seen = []
    began = time.perf_counter()
    result = cofair.run(
        lambda: build("mlp", (6,), 3, hidden=(10, 6)), federation, method, rounds=rounds, steps=1, batch_size=4,
        lr=0.01, contribution={"epochs": 1}, execution={"evaluate_every": every}, out=out,
        listener=lambda *_: seen.append(resident()),
    )  # fmt: skip
    seconds, quarter = time.perf_counter() - began, len(seen) // 4
    assert result.history[-1].round == rounds
    assert verified_entries(out / "ledger.jsonl")[-1]["round"] == rounds
    middle, end = sum(seen[quarter : 2 * quarter]) / quarter, sum(seen[-quarter:]) / quarter
    print(
        f"{method}, {len(result.names):,} clients, {rounds:,} rounds: {end:.1f} MiB at the end, {end - middle:+.1f} "
        f"since the middle, {seconds:.0f} s", flush=True,
    )  # fmt: skip
    return end - middle


def test_memory_stays_flat_over_rounds(tmp_path):
    assert grown("fedsac", small_federation(), 300, 5, tmp_path) < 8


def test_memory_stays_flat_with_many_clients(tmp_path):
    assert grown("fedrac", many_clients(100), 24, 1, tmp_path) < 8


@pytest.mark.long
@pytest.mark.parametrize("method", METHODS)
def test_memory_stays_flat_over_ten_thousand_rounds(method, tmp_path):
    assert grown(method, small_federation(), 10_000, 100, tmp_path) < 8


@pytest.mark.long
@pytest.mark.parametrize("method", METHODS)
def test_memory_stays_flat_with_a_thousand_clients(method, tmp_path):
    assert grown(method, many_clients(1000), 100, 2, tmp_path) < 16
