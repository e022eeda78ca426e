"""A fuzz of uploads: whatever one client sends, the server goes on, and the honest get what they would without it."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from cofair import methods
from cofair.errors import RunError
from tests.driving import collected, fresh
from tests.methods.test_every_method import every_method, rows, run

BROUGHT = [0.2, 0.5, 0.7, 0.4]
ROUND = 3  # of which one upload is corrupted
KINDS = ("NaN somewhere", "infinite somewhere", "NaN everywhere", "huge", "losses", "bits")


def corrupted(kind, update, random):
    """Return what a client sends instead of its update (D,)."""
    somewhere = random.integers(0, len(update), random.integers(1, 5))
    changed = update.clone()
    if kind == "bits":
        raw = changed.numpy().view(np.uint64)
        raw[somewhere] ^= np.uint64(1) << random.integers(0, 64, len(somewhere), dtype=np.uint64)
        return changed
    fill = {"NaN somewhere": np.nan, "infinite somewhere": random.choice([np.inf, -np.inf])}
    if kind == "huge":
        fill[kind] = float(10 ** random.uniform(8, 308)) * random.choice([-1, 1])
    changed[somewhere if kind in fill else slice(None)] = fill.get(kind, np.nan)
    return update if kind == "losses" else changed


def sent(uploads, client, kind, random):
    """Return uploads in which one client sends something else; without a kind it sends nothing."""
    updates, present = uploads.updates.clone(), uploads.present.clone()
    updates[client] = 0 if kind is None else corrupted(kind, updates[client], random)
    present[client] = kind is not None
    statistics = {name: values.clone() for name, values in uploads.statistics.items()}
    if kind in ("losses", None):
        for values in statistics.values():
            values[client] = torch.nan
    return replace(uploads, updates=updates, present=present, statistics=statistics)


class Fuzzed:
    """A run of a method up to a round, which can be gone on with as often as one likes."""

    def __init__(self, name):
        """Run up to the round before the corrupted one."""
        settings = {"last": ROUND, "contributions": BROUGHT, "run": {"evaluate_every": 100}}
        _, self.prepared = run(name, **settings)
        self.method = self.prepared.experiment.method
        kept = collected(self.prepared).states
        self.begun = next((state for state in kept if state.round == ROUND - 1), None)

    def rewards(self, client, kind, random):
        """Return the models delivered after the round in which a client sends something corrupted, and its record."""
        resumed, journal = fresh(self.prepared, begun=self.begun)
        training = resumed.start()
        while training is not None:
            uploads, states = self.prepared.engine.train(training.rewards, training.clients, training.t)
            there = uploads.present.nonzero().flatten().tolist()
            answers = client if client in there else there[0] if there else None  # RR trains one client at a time
            changed = uploads if answers is None else sent(uploads, answers, kind, random)
            training = resumed.advance((changed, states))
        (tested,) = journal.rounds
        return rows(tested.delivered, self.prepared), tested.record, answers


def check(name, count, seed):
    fuzzed = Fuzzed(name)
    if fuzzed.begun is None:
        pytest.skip("exchanges nothing")
    random = np.random.default_rng(seed)
    absent = {client: fuzzed.rewards(client, None, random) for client in range(4)}
    refused = 0
    for k in range(count):
        client, kind = int(random.integers(4)), KINDS[k % len(KINDS)]
        found, record, who = fuzzed.rewards(client, kind, random)
        assert bool(torch.isfinite(found).all()), (kind, client)
        assert all(value == value for value in record.reputation or [])
        if kind == "bits":  # most make another number of a number, which nobody can tell from an update
            continue
        if record.refused is None:
            assert kind == "losses"  # which were not asked for
            continue
        refused += 1
        assert list(record.refused) == [f"client {who}"]
        honest = [i for i in range(4) if i != who]
        expected = absent[client][0]
        assert torch.allclose(found[honest], expected[honest], rtol=1e-6, atol=1e-12), (kind, client)
    assert refused >= 0.6 * count


@every_method
def test_what_is_corrupted_is_refused_and_harms_nobody(name):
    check(name, 10, 0)


@pytest.mark.long
@pytest.mark.parametrize("name", methods.names())
def test_a_thousand_corruptions_harm_nobody(name):
    check(name, 1000, 1)


def test_a_federation_in_which_everybody_sends_nonsense_ends_in_a_sentence():
    fuzzed = Fuzzed("fedavg")
    resumed, _ = fresh(fuzzed.prepared, begun=fuzzed.begun)
    training = resumed.start()
    uploads, states = fuzzed.prepared.engine.train(training.rewards, training.clients, training.t)
    with pytest.raises(RunError, match="every client's last upload was refused"):
        resumed.advance((replace(uploads, updates=uploads.updates * torch.nan), states))
