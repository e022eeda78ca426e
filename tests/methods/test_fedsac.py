import math
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from cofair.engine.phases import TRAIN
from cofair.errors import UsageError
from cofair.methods.fedsac import FedSAC
from cofair.models import build
from tests.conftest import uploads_of

# ascending: neurons 2, 0, 1, 3 with 10, 20, 30 and 40 percent
IMPORTANCE = torch.tensor([2.0, 3.0, 1.0, 4.0], dtype=torch.float64)


def mlp():
    torch.manual_seed(0)
    return build("mlp", (6,), 3, hidden=(4,))


def granted(make_server, monkeypatch, contributions, importance=IMPORTANCE, t=2, **settings):
    monkeypatch.setattr("cofair.methods.fedsac.by_removal", lambda scorer, base: importance)
    server = make_server(contributions, module=mlp())
    method = FedSAC(**{"importance_transform": "raw", **settings})
    return method.grant(server, method.start(server), t)


def test_a_client_gets_the_least_important_neurons_that_its_reputation_pays_for(make_server, monkeypatch):
    """Cumulative shares 10, 30, 60, 100; reputations 100 · e^(β (c − 0.5)) for β = 1."""
    contributions = [0.5 + math.log(share) for share in (0.05, 0.10, 0.59, 0.61, 1.0)]
    state = granted(make_server, monkeypatch, contributions, beta=1.0)
    assert state.reputation.tolist() == pytest.approx([5, 10, 59, 61, 100])
    assert state.granted.int().tolist() == [
        [0, 0, 1, 0],  # 5 pays for nothing, but nobody is left without a neuron
        [0, 0, 1, 0],  # exactly 10
        [1, 0, 1, 0],
        [1, 1, 1, 0],
        [1, 1, 1, 1],
    ]


def test_rounding_takes_no_neuron_from_anybody(make_server, monkeypatch):
    """The first reputation is 30 less a rounding, and pays for neurons of 30 all the same."""
    state = granted(make_server, monkeypatch, [0.5 + math.log(0.3) / 10, 0.5], beta=10.0)
    assert state.reputation[0] < 30
    assert state.granted.sum(1).tolist() == [2, 4]
    # shares in the billions that all but cancel out add up to 100.000001; the best gets everything even so
    cancelling = torch.randn(4, generator=torch.Generator().manual_seed(198)).double()
    state = granted(make_server, monkeypatch, [0.1, 0.5], cancelling - cancelling.mean() + 1e-8)
    assert float(state.importance.sort().values.cumsum(0)[-1]) > 100 + 1e-6
    assert bool(state.granted[1].all())


def test_importance_is_that_of_the_new_model(make_server, monkeypatch):
    measured = []
    monkeypatch.setattr("cofair.methods.fedsac.by_removal", lambda scorer, base: measured.append(base) or IMPORTANCE)
    server, method = make_server([0.1, 0.9], module=mlp()), FedSAC()
    state = method.start(server)
    uploads = uploads_of(torch.ones(2, server.layout.size).tolist(), [12, 12])
    after = method.learn(server, state, method.rewards(server, state, 1, TRAIN), uploads, 1, TRAIN)
    assert torch.equal(measured[0], after.parameters)
    assert torch.equal(after.parameters, server.initial + 1)
    # what is tested are still the masks of round 1: everything
    assert bool(method.delivered(server, after).neuron_masks.all())
    assert not bool(after.granted.all())


def test_equal_contributions_get_the_whole_model(make_server, monkeypatch):
    state = granted(make_server, monkeypatch, [0.3, 0.3, 0.3])
    assert bool(state.granted.all())


def test_a_beta_that_would_overflow_is_harmless(make_server, monkeypatch):
    state = granted(make_server, monkeypatch, [0.1, 0.9], beta=1e6)
    assert state.reputation.tolist() == [0, 100]
    assert state.granted.sum(1).tolist() == [1, 4]


def test_equal_importances_are_shared_equally(make_server, monkeypatch):
    even = granted(
        make_server,
        monkeypatch,
        [0.0, math.log(2)],
        torch.full((4,), 7.0).double(),
        beta=1.0,
        importance_transform="shift",
    )
    assert even.granted.sum(1).tolist() == [2, 4]


def test_importance_is_measured_in_round_2_and_every_tenth_round_from_then_on(make_server, monkeypatch):
    measured = []
    monkeypatch.setattr("cofair.methods.fedsac.by_removal", lambda *given: measured.append(t) or IMPORTANCE)
    server, method = make_server([0.1, 0.9], module=mlp()), FedSAC()
    state = method.start(server)
    for t in range(2, 33):
        state = method.grant(server, state, t)
    assert measured == [2, 12, 22, 32]


def test_without_allocation_the_order_is_random_and_shares_are_equal(make_server, monkeypatch):
    orders = set()
    for t in (2, 12, 22, 32):
        state = granted(make_server, monkeypatch, [math.log(0.5), 0.0], t=t, beta=1.0, without_allocation=True)
        assert state.granted.sum(1).tolist() == [2, 4]
        orders.add(tuple(state.granted[0].tolist()))
    assert len(orders) > 1


def test_parameters_are_averaged_over_holders_and_the_new_model_is_delivered_under_the_old_masks(make_server):
    server, method = make_server([0.1, 0.9], module=mlp()), FedSAC(beta=1.0)
    state = replace(method.start(server), granted=torch.tensor([[1, 0, 0, 0], [1, 1, 1, 1]]).bool())
    rewards = method.rewards(server, state, 2, TRAIN)
    assert rewards.download is None
    keep = server.neurons.parameter_mask(state.granted)
    updates = torch.where(keep, 1.0, 0.0).double()
    updates[1] *= 3
    uploads = uploads_of(updates.tolist(), [12, 12])
    after = method.learn(server, state, rewards, uploads, 5, TRAIN)
    shared = keep.all(0)
    change = after.parameters - state.parameters
    assert torch.allclose(change[shared], torch.tensor(2.0).double())
    assert torch.allclose(change[~shared], torch.tensor(3.0).double())
    plain = replace(method, without_aggregation=True).learn(server, state, rewards, uploads, 5, TRAIN)
    assert torch.allclose((plain.parameters - state.parameters)[~shared], torch.tensor(1.5).double())
    delivered = method.delivered(server, after)
    assert torch.equal(delivered.parameters, after.parameters)
    assert torch.equal(delivered.neuron_masks, state.granted)


def test_a_holder_counts_whether_its_update_is_zero_or_not_unless_the_descendants_code_is_asked_for(make_server):
    server = make_server([0.1, 0.9], module=mlp())
    updates = torch.full((2, server.layout.size), 3.0)
    updates[0, 0] = 0.0  # held by both, but the first client had no gradient for it
    for method, change in ((FedSAC(), 1.5), (FedSAC(count="nonzero"), 3.0)):
        state = method.start(server)
        rewards = method.rewards(server, state, 5, TRAIN)
        after = method.learn(server, state, rewards, uploads_of(updates.tolist(), [12, 12]), 5, TRAIN)
        assert float((after.parameters - state.parameters)[0]) == pytest.approx(change)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8), st.floats(0, 30), st.integers(0, 999))
@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_rewards_are_nested_grow_with_reputation_and_come_nearer_to_the_model(
    make_server, monkeypatch, contributions, beta, seed
):
    """FedSAC's Theorem 1: the distance between the server's model and a submodel falls as reputation rises."""
    importance = torch.randn(4, generator=torch.Generator().manual_seed(seed)).double()
    state = granted(make_server, monkeypatch, contributions, importance, beta=beta, importance_transform="shift")
    server = make_server(contributions, module=mlp())
    kept = server.initial * server.neurons.parameter_mask(state.granted)
    distance = (server.initial - kept).norm(dim=1)
    ranked = sorted(range(len(contributions)), key=contributions.__getitem__)
    for low, high in pairwise(ranked):
        assert not bool((state.granted[low] & ~state.granted[high]).any())
        assert distance[high] <= distance[low]
    assert bool(state.granted[ranked[-1]].all())
    assert bool(state.granted.any(1).all())


def test_a_model_without_neurons_is_a_sentence(make_server):
    server = make_server([0.1, 0.2], module=nn.Linear(6, 3))
    with pytest.raises(UsageError, match="'fedsac' hands out submodels, but the model has no neuron"):
        FedSAC().start(server)
