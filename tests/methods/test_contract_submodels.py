import pytest
import torch
from torch import nn

import cofair
from cofair.engine.phases import TRAIN
from cofair.errors import UsageError
from cofair.methods.contract import Contract
from cofair.methods.contract_submodels import sizes_of
from cofair.methods.rules.calibration import calibrate
from cofair.models import build
from cofair.scoring.importance import taylor
from tests.conftest import uploads_of
from tests.methods.test_contract import C


def submodels(**settings):
    return Contract(hands="submodels", **settings)


def test_the_least_trained_come_first_and_of_those_trained_alike_the_least_important(make_server):
    """Trainings are counted in steps of two rounds of three clients; on one step importance decides."""
    module = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    server = make_server([0.1, 0.2, 0.3], module=module)
    importance = taylor(server.validation, server.initial)
    frequency = torch.tensor([5.0, 0, 7, 3, 13], dtype=torch.float64)
    among = sorted([0, 1, 3], key=lambda k: float(importance[k]))  # f / 6 rounded down is 0
    assert submodels().mechanism.order(server, server.initial, frequency, 9).tolist() == [*among, 2, 4]
    assert submodels(alike=0).mechanism.order(server, server.initial, frequency, 9).tolist() == [1, 3, 0, 2, 4]
    assert submodels(pays="neurons").mechanism.order(server, server.initial, frequency, 9).tolist() == [1, 3, 0, 2, 4]


def test_shares_of_neurons_need_no_validation_set():
    whole = cofair.federate("digits", "pow", clients=6, validation=0.0)
    assert whole.validation is None
    result = cofair.run(
        lambda: build("mlp", (1, 8, 8), 10, hidden=(40, 40)), whole, submodels(pays="neurons", curve="proportional"),
        rounds=30, steps=10, lr=0.1, contribution={"measure": "cosine", "epochs": 30}, seed=1,
    )  # fmt: skip
    last = result.history[-1]
    assert last.promised is None
    assert "notes" not in result.facts
    cosine = torch.tensor(result.contributions)
    assert last.reputation == pytest.approx((cosine / cosine.max()).tolist())
    with pytest.raises(
        UsageError,
        match=r'needs a validation set .* With .* and method.pays = "neurons" it promises',
    ):
        cofair.run(lambda: build("mlp", (1, 8, 8), 10), whole, Contract(), rounds=1)


def test_trainings_are_counted_round_by_round_but_for_the_whole_models_of_the_first(make_server):
    server = make_server([0.1, 0.2, 0.3])
    method = submodels()
    state, counted = method.start(server), torch.zeros(server.neurons.count, dtype=torch.float64)
    torch.manual_seed(0)
    for t in (1, 2, 3, 4):
        rewards = method.rewards(server, state, t, TRAIN)
        updates = torch.randn(3, len(server.initial)) * server.neurons.parameter_mask(rewards.neuron_masks)
        uploads = uploads_of(updates.tolist(), [12] * 3, absent=[1] if t == 3 else [])
        state = method.learn(server, state, rewards, uploads, t, TRAIN)
        if t > 1:
            counted += rewards.neuron_masks[uploads.present].sum(0)
        assert state.frequency.tolist() == counted.tolist()
    assert 0 < float(counted.min()) < float(counted.max())


def test_halves_of_the_validation_set_choose_in_turns(make_server, monkeypatch):
    server, asked = make_server([0.1, 0.2, 0.3]), []
    halves = server.validation.halves()

    def noted(scorer, base, order, contributions, curve, pack, checked_by=None, **more):
        asked.append((halves.index(scorer), halves.index(checked_by)))
        return calibrate(scorer, base, order, contributions, curve, pack, checked_by, **more)

    monkeypatch.setattr(type(server.validation), "halves", lambda self: halves)
    monkeypatch.setattr("cofair.methods.contract_submodels.calibrate", noted)
    method = submodels(fit="halves")
    for t in (2, 3, 4):
        method.mechanism.grant(server, method.start(server), t)
    assert asked == [(1, 0), (0, 1), (1, 0)]


def test_shares_are_rounded_to_packs_of_at_least_one_and_the_best_get_everything():
    shares = torch.tensor([0.0, 0.26, 0.5, 0.9], dtype=torch.float64)
    assert sizes_of(shares, C, neurons=40, pack=4).tolist() == [4, 12, 20, 40]
    assert sizes_of(shares, C, neurons=40, pack=1).tolist() == [1, 10, 20, 40]


def test_shares_of_neurons_are_for_submodels(make_server):
    with pytest.raises(UsageError, match=r'method.pays = "neurons" is for submodels: set method.hands'):
        Contract(pays="neurons").start(make_server([0.1, 0.2]))


def test_submodels_meet_their_promise_on_the_validation_set():
    federation = cofair.federate("digits", "pow", clients=6)
    result = cofair.run(
        lambda: build("mlp", (1, 8, 8), 10, hidden=(40, 40)), federation, submodels(margin=0.0), rounds=40, steps=10,
        lr=0.1, contribution={"on": "validation"}, seed=1,
    )  # fmt: skip
    last = result.history[-1]
    assert max(abs(a - b) for a, b in zip(last.promised, last.validated, strict=True)) < 0.06
    assert last.allocation is not None
    assert result.fairness > 97
