import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from cofair.contributions.divergence import batch_means, closeness, divergences
from cofair.data.federation import Samples
from cofair.engine.phases import TRAIN
from cofair.engine.protocol import Uploads
from cofair.methods.fedave import FedAVE
from cofair.scoring.scorer import Scorer, Scores
from tests.conftest import uploads_of

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


def test_each_ablation_leaves_the_divergence_out_in_its_place(judged, monkeypatch):
    """r⁻ counts it in the quota alone, q⁻ in the reputation alone, r⁻q⁻ nowhere."""
    monkeypatch.setattr("cofair.contributions.divergence._FLOOR", FIRST / 2)
    g = torch.tensor([0.5, 1.0, FIRST / 2 / THIRD], dtype=torch.float64)
    accuracy = torch.tensor([0.5, 0.6, 0.7], dtype=torch.float64)
    for where, in_reputation, in_quota in (("quota", 0, 1), ("reputation", 2, 0), ("neither", 0, 0)):
        reputation, quota = judged(alpha=0.0, divergence_in=where)
        value = accuracy * g**in_reputation
        assert reputation.tolist() == pytest.approx((value / value.sum()).tolist())
        tanh = torch.tanh(1.5 * reputation)
        assert quota.tolist() == pytest.approx((tanh / tanh.max() * g**in_quota).tolist())


def test_one_divergence_near_zero_starves_everybody(judged, monkeypatch):
    """The example of FedAVE's page: the others' quotas fall to KL_1 / KL_i, and the first has little reputation."""
    monkeypatch.setattr("cofair.methods.fedave.divergences", lambda *given: torch.tensor([0.0001, 0.1, 0.2]).double())
    reputation, quota = judged(reputation=(0.1, 0.45, 0.45), accuracy=(0.5, 0.5, 0.5))
    assert reputation.tolist() == pytest.approx([0.12 / 0.975, 0.4275 / 0.975, 0.4275 / 0.975], abs=1e-6)
    first = math.tanh(1.5 * 0.12 / 0.975) / math.tanh(1.5 * 0.4275 / 0.975)
    assert quota.tolist() == pytest.approx([first, 0.001, 0.0005], rel=1e-5)
    assert first == pytest.approx(0.316, abs=5e-4)
    _, usual = judged(reputation=(0.1, 0.45, 0.45), accuracy=(0.5, 0.5, 0.5), divergence_in="reputation")
    assert usual.tolist() == pytest.approx([first, 1, 1], rel=1e-5)  # what they get where quotas leave KL out


def test_nobody_falls_below_the_least_reputation(judged):
    reputation, _ = judged(alpha=0.0, accuracy=(0.0, 0.5, 0.5), divergence_in="neither")
    assert reputation.tolist() == pytest.approx([0.001 / 1.001, 0.5 / 1.001, 0.5 / 1.001])


def test_true_contributions_can_take_the_place_of_reputation(judged):
    reputation, quota = judged(reputation_from="contributions", divergence_in="reputation")
    assert reputation.tolist() == pytest.approx([1 / 6, 2 / 6, 3 / 6])
    tanh = [math.tanh(1.5 * r) for r in (1 / 6, 2 / 6, 3 / 6)]
    assert quota.tolist() == pytest.approx([value / tanh[2] for value in tanh])


def begun(make_server, method, reputation):
    """A server whose score of a model is its first parameter, and two clients' uploads."""
    server = make_server([0.1, 0.2], [9, 3], nn.Linear(6, 3, bias=False))
    state = replace(method.start(server), reputation=torch.tensor(reputation, dtype=torch.float64))
    scored = []

    def score(models, per_sample=False, among=None):
        scored.append(models)
        losses = torch.tensor([[1.0] * 64 + [3.0] * 64] * 2, dtype=torch.float64) if per_sample else None
        return Scores(torch.zeros(2), models[:, 0] - server.initial[0], losses)

    server.score = score
    return server, state, scored


def test_models_are_scored_as_trained_and_losses_are_those_before_training(make_server):
    method = FedAVE()
    server, state, scored = begun(make_server, method, [0.5, 0.5])
    uploads = uploads_of([[0.2] * 18, [0.6] * 18], [9, 3])
    uploads.statistics["batch_losses_before"] = torch.ones(2, 2).double()
    method.learn(server, state, method.rewards(server, state, 2, TRAIN), uploads, 2, TRAIN)
    before, trained = scored
    assert torch.equal(before, state.models)
    assert torch.equal(trained, state.models + uploads.updates)


def test_validation_batches_that_no_client_has_are_not_scored(make_server, monkeypatch):
    """Lists are cut to the shorter one: the divergences are those of all batches of the validation set."""
    method = FedAVE()
    server = make_server([0.1, 0.2], [9, 3], nn.Linear(6, 3, bias=False))
    x = torch.randn(300, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    scorer = Scorer(server.validation.problem, Samples(x, torch.arange(300) % 3))
    monkeypatch.setattr(type(server), "validation", scorer)
    state, whole, asked = method.start(server), server.score, []
    own = torch.tensor([[1.0, 2.0, 0.5], [1.0, math.nan, math.nan]]).double()
    uploads = replace(uploads_of([[0.2] * 18, [0.6] * 18], [9, 3]), statistics={"batch_losses_before": own})

    def score(models, per_sample=False, among=None):
        asked.append(len(among))
        return whole(models, per_sample=per_sample, among=among)

    server.score = score
    found = method._closeness(server, state, uploads, 5)
    assert asked == [192]  # three batches of 64
    order = torch.randperm(300, generator=server.random(5, "validation batches"))
    losses = whole(state.models, per_sample=True).losses[:, order]
    expected = closeness(divergences(own, batch_means(losses, 64)))
    assert found.tolist() == pytest.approx(expected.tolist())


def test_clients_are_asked_for_no_more_batches_than_the_validation_set_has(make_server, monkeypatch):
    server = make_server([0.1, 0.2], [900, 3], nn.Linear(6, 3, bias=False))
    scorer = Scorer(server.validation.problem, Samples(torch.randn(130, 6).double(), torch.arange(130) % 3))
    monkeypatch.setattr(type(server), "validation", scorer)
    method = FedAVE()
    assert method.rewards(server, method.start(server), 1, TRAIN).work.looks == 3


def test_updates_weigh_by_samples_and_without_any_divergence_by_accuracy(make_server):
    updates = [[0.2] + [0.0] * 17, [0.6] + [0.0] * 17]  # scaled to 1, with accuracies 0.2 and 0.6
    for where, length in (("both", 1.0), ("neither", 0.2 + 0.6)):
        method = FedAVE(gamma=1.0, divergence_in=where)
        server, state, _ = begun(make_server, method, [0.5, 0.5])
        uploads = uploads_of(updates, [9, 3])
        assert float(method.aggregated(server, state, uploads, 2)[1][0]) == pytest.approx(length, abs=1e-5)
    by_samples = FedAVE().weights(server, state, uploads, 2)
    assert by_samples.tolist() == [0.75, 0.25]


@pytest.mark.parametrize(("where", "receives"), [("both", False), ("quota", False), ("reputation", True)])
def test_an_absent_client_keeps_its_reputation_and_where_losses_count_receives_nothing(make_server, where, receives):
    method = FedAVE(alpha=0.5, divergence_in=where)
    server, state, _ = begun(make_server, method, [0.4, 0.6])
    uploads = uploads_of([[0.2] * 18, [0.0] * 18], [9, 3], absent=[1])
    uploads.statistics["batch_losses_before"] = torch.tensor([[1.0, 2.0], [math.nan, math.nan]]).double()
    new = method.learn(server, state, method.rewards(server, state, 2, TRAIN), uploads, 2, TRAIN)
    mixed = [0.5 * 0.4 + 0.5 * 0.2, 0.6]
    assert new.reputation.tolist() == pytest.approx([value / sum(mixed) for value in mixed])
    assert bool((new.models[1] != state.models[1]).any()) == receives


def test_a_whole_round_runs_and_stays_finite(make_server):
    server = make_server([0.1, 0.2, 0.3], sizes=[130, 70, 5])
    method = FedAVE()
    state = method.start(server)
    assert method.rewards(server, state, 1, TRAIN).work.statistics == ("batch_losses_before",)
    losses = torch.rand(3, 3, dtype=torch.float64)
    losses[1, 2:], losses[2, 1:] = torch.nan, torch.nan
    updates = torch.randn(3, server.layout.size, dtype=torch.float64) * 0.1
    for t in (1, 2, 3):
        present = torch.tensor([True, True, t != 2])
        given = Uploads(updates, present, torch.tensor([130, 70, 5]), {"batch_losses_before": losses})
        state = method.learn(server, state, method.rewards(server, state, t, TRAIN), given, t, TRAIN)
        assert torch.isfinite(state.models).all()
        assert float(state.reputation.sum()) == pytest.approx(1)
    assert float(state.download.max()) > 0
