import math

import pytest
import torch
from torch import nn

from cofair.engine.exchange import Uploads
from cofair.methods.fedave import FedAVE

LOSSES = torch.tensor([[1.0, 3.0], [2.0, 2.0], [1.0, 1.0]], dtype=torch.float64)  # of two batches of each client


@pytest.fixture
def judged(make_server, monkeypatch):
    """Judge three clients whose validation losses and accuracies are given."""

    def judge(t=2, reputation=(0.2, 0.3, 0.5), accuracy=(0.5, 0.6, 0.7), **settings):
        method = FedAVE(**settings)
        server = make_server([0.1, 0.2, 0.3], module=nn.Linear(6, 3))
        state = method.start(server)
        object.__setattr__(state, "reputation", torch.tensor(reputation, dtype=torch.float64))
        on_server = torch.tensor([[2.0, 2.0], [2.0, 2.0], [1.0, 3.0]], dtype=torch.float64)
        monkeypatch.setattr("cofair.methods.fedave.batch_means", lambda *given: on_server)
        monkeypatch.setattr(FedAVE, "_accuracy", lambda *given: torch.tensor(accuracy, dtype=torch.float64))
        updates = torch.zeros(3, server.layout.size).double()
        uploads = Uploads(
            updates, torch.ones(3, dtype=torch.bool), torch.tensor([12] * 3), {"batch_losses_before": LOSSES}
        )
        return method.judge(server, state, uploads, updates, updates[0], t)

    return judge


# KL of (1/4, 3/4) from (1/2, 1/2), of equal lists, and of (1/2, 1/2) from (1/4, 3/4)
FIRST = 0.25 * math.log(0.5) + 0.75 * math.log(1.5)
THIRD = 0.5 * math.log(2) + 0.5 * math.log(2 / 3)


def test_reputation_and_quota_by_hand(judged, monkeypatch):
    monkeypatch.setattr("cofair.contributions.divergence._FLOOR", FIRST / 2)  # the equal lists count as this near
    g = [0.5, 1.0, FIRST / 2 / THIRD]
    reputation, quota = judged(alpha=0.9, beta=1.5)
    mixed = [
        0.9 * old + 0.1 * accuracy * near**2
        for old, accuracy, near in zip((0.2, 0.3, 0.5), (0.5, 0.6, 0.7), g, strict=True)
    ]
    expected = [value / sum(mixed) for value in mixed]
    assert reputation.tolist() == pytest.approx(expected, abs=1e-9)
    tanh = [math.tanh(1.5 * r) for r in expected]
    assert quota.tolist() == pytest.approx([near * value / max(tanh) for near, value in zip(g, tanh, strict=True)])


def test_the_first_round_sets_reputation_and_hands_out_nothing(judged):
    reputation, quota = judged(t=1, divergence_in="quota")
    assert reputation.tolist() == pytest.approx([0.5 / 1.8, 0.6 / 1.8, 0.7 / 1.8])
    assert quota.tolist() == [0, 0, 0]


def test_the_ablations_leave_the_divergence_out(judged):
    with_it, _ = judged(divergence_in="reputation")
    without, quota = judged(divergence_in="neither")
    assert not torch.allclose(with_it, without)
    tanh = torch.tanh(1.5 * without)
    assert quota.tolist() == pytest.approx((tanh / tanh.max()).tolist())
    _, full_quota = judged(divergence_in="reputation")
    assert full_quota.max() == 1


def test_a_whole_round_runs_and_stays_finite(make_server):
    server = make_server([0.1, 0.2, 0.3], sizes=[130, 70, 5])
    method = FedAVE()
    state = method.start(server)
    assert method.rewards(server, state, 1, "train").work.statistics == ("batch_losses_before",)
    losses = torch.rand(3, 3, dtype=torch.float64)
    losses[1, 2:], losses[2, 1:] = torch.nan, torch.nan
    updates = torch.randn(3, server.layout.size, dtype=torch.float64) * 0.1
    for t in (1, 2, 3):
        present = torch.tensor([True, True, t != 2])
        given = Uploads(updates, present, torch.tensor([130, 70, 5]), {"batch_losses_before": losses})
        state = method.learn(server, state, method.rewards(server, state, t, "train"), given, t, "train")
        assert torch.isfinite(state.models).all()
        assert float(state.reputation.sum()) == pytest.approx(1)
    assert float(state.download.max()) > 0
