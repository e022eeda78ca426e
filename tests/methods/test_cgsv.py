import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from cofair.engine.phases import TRAIN
from cofair.methods.cgsv import CGSV
from tests.conftest import uploads_of


def line():
    return nn.Linear(6, 3, bias=False)


UPDATES = [[3.0, 4.0] + [0.0] * 16, [1.0] + [0.0] * 17]


def first_round(make_server, method, updates=UPDATES, sizes=(9, 3), contributions=(0.2, 0.4), absent=()):
    server = make_server(contributions, sizes, line())
    state = method.start(server)
    uploads = uploads_of(updates, sizes, absent)
    return server, state, method.learn(server, state, method.rewards(server, state, 1, TRAIN), uploads, 1, TRAIN)


def test_the_first_round_worked_out_by_hand(make_server):
    """u_1 = (0.6, 0.8), u_2 = (1, 0), weights 3/4 and 1/4: u_N = (0.7, 0.6), cosines in the ratio 0.9 : 0.7."""
    server, before, after = first_round(make_server, CGSV(gamma=1.0))
    assert after.reputation.tolist() == pytest.approx([0.9 / 1.6, 0.7 / 1.6], abs=1e-6)
    share = math.tanh(0.4375) / math.tanh(0.5625)
    reward = after.models - before.models
    assert reward[0, :2].tolist() == pytest.approx([0.7, 0.6], abs=1e-6)
    uploads = uploads_of(UPDATES, [9, 3])
    updates, aggregate = CGSV(gamma=1.0).aggregated(server, before, uploads, 1)
    _, shares = CGSV(gamma=1.0).judge(server, before, uploads, updates, aggregate, 1)
    assert shares.tolist() == pytest.approx([1, share], abs=1e-6)
    assert before.models[0].tolist() == server.initial.tolist()
    # the second round weighs by reputation instead of samples
    weights = CGSV(gamma=1.0).weights(server, after, uploads, 2)
    assert weights.tolist() == after.reputation.tolist()


def test_reputation_is_a_moving_average_that_sums_to_one(make_server):
    method = CGSV(gamma=1.0, alpha=0.5)
    server, _, after = first_round(make_server, method)
    old = replace(after, reputation=torch.tensor([0.2, 0.8], dtype=torch.float64))
    uploads = uploads_of(UPDATES, [9, 3])
    new = method.learn(server, old, method.rewards(server, old, 2, TRAIN), uploads, 2, TRAIN)
    u = torch.tensor([[0.6, 0.8], [1.0, 0.0]], dtype=torch.float64)
    aggregate = old.reputation @ u
    psi = u @ aggregate / aggregate.norm()
    mixed = 0.5 * old.reputation + 0.5 * psi
    assert new.reputation.tolist() == pytest.approx((mixed / mixed.sum()).tolist(), abs=1e-6)


def test_a_client_against_the_others_keeps_the_least_reputation(make_server):
    against = [[1.0, 0.0] + [0.0] * 16, [-1.0, 0.0] + [0.0] * 16]
    _, _, after = first_round(make_server, CGSV(), against)
    assert after.reputation.tolist() == pytest.approx([0.05 / 0.051, 0.001 / 0.051], rel=1e-4)


def test_without_a_limit_on_altruism_everybody_gets_everything(make_server):
    generous = CGSV(gamma=1.0, beta=1e7)
    random = torch.randn(2, 18, generator=torch.Generator().manual_seed(0)).tolist()
    _, before, after = first_round(make_server, generous, random)
    reward = after.models - before.models
    assert torch.equal(reward[0], reward[1])
    assert bool((reward != 0).all())
    assert after.download.tolist() == [1, 1]


def test_the_authors_code_never_hands_out_a_whole_tensor(make_server):
    random = torch.randn(2, 18, generator=torch.Generator().manual_seed(0)).tolist()
    _, before, after = first_round(make_server, CGSV(beta=1e7, drop_one=True), random)
    assert ((after.models - before.models) == 0).sum(1).tolist() == [1, 1]


def test_who_is_worth_less_gets_a_part_of_what_the_best_gets(make_server):
    random = torch.randn(2, 18, generator=torch.Generator().manual_seed(1)).tolist()
    _, before, after = first_round(make_server, CGSV(), random, sizes=(11, 1))
    reward = after.models - before.models
    best, other = after.reputation.argmax(), after.reputation.argmin()
    assert bool(((reward[other] == 0) | (reward[other] == reward[best])).all())
    assert after.download[other] < after.download[best] == 1


def test_true_contributions_can_take_the_place_of_reputation(make_server):
    _, _, after = first_round(make_server, CGSV(reputation_from="contributions"))
    assert after.reputation.tolist() == pytest.approx([1 / 3, 2 / 3])


def test_nearness_to_the_aggregate_can_count_instead_of_the_cosine(make_server):
    """Distances to the mean (2.5, 3): |(0.5, 1)| and |(-1.5, -3)|, so the second scores only 0.001."""
    _, _, after = first_round(make_server, CGSV(measure="euclidean"))
    far, near = math.hypot(1.5, 3), math.hypot(0.5, 1)
    scores = [0.05 * (far - near + 1e-3), 0.001]  # the second is lifted to the least reputation
    assert after.reputation.tolist() == pytest.approx([s / sum(scores) for s in scores], rel=1e-6)


def test_nearness_is_measured_among_the_clients_that_answered(make_server):
    """Distances to the mean (2, 2) of those who answered are √2 each; the absent one's zeros would be √8 away."""
    updates = [[3.0, 1.0] + [0.0] * 16, [1.0, 3.0] + [0.0] * 16, [0.0] * 18]
    method = CGSV(measure="euclidean")
    _, _, after = first_round(make_server, method, updates, (4, 4, 4), (0.1, 0.2, 0.3), absent=[2])
    # 0.05 · 0.001 is lifted to the least reputation, which the absent client has too
    assert after.reputation.tolist() == pytest.approx([1 / 3, 1 / 3, 1 / 3])


def test_an_absent_client_keeps_its_reputation_and_zero_updates_are_harmless(make_server):
    method = CGSV()
    server, _, after = first_round(make_server, method)
    nothing = uploads_of([[0.0] * 18, [0.0] * 18], [9, 3], absent=[1])
    new = method.learn(server, after, method.rewards(server, after, 2, TRAIN), nothing, 2, TRAIN)
    assert torch.isfinite(new.models).all()
    assert torch.equal(new.models, after.models)
    ratio = new.reputation / after.reputation
    assert ratio[1] > ratio[0]  # before both are divided by the sum, the absent one's did not change


def test_the_length_of_a_step_does_not_depend_on_how_many_answer(make_server):
    """Equal updates make an aggregate of length Γ, whoever is absent; only the direction depends on who is there."""
    method, same = CGSV(gamma=2.0), [[1.0] + [0.0] * 17] * 3
    server, _, after = first_round(make_server, method, same, (6, 6, 6), (0.1, 0.2, 0.3))
    for absent in ([], [0], [0, 1]):
        _, aggregate = method.aggregated(server, after, uploads_of(same, [6, 6, 6], absent), 2)
        assert float(aggregate.norm()) == pytest.approx(2, abs=1e-6)


def test_an_absent_client_receives_what_its_reputation_earned_before(make_server):
    """A model that missed a reward would never make up for it: models are the initial one plus all rewards."""
    method = CGSV(gamma=1.0)
    random = torch.randn(2, 18, generator=torch.Generator().manual_seed(2)).tolist()
    server, _, after = first_round(make_server, method, random)
    after = replace(after, reputation=torch.tensor([0.3, 0.7], dtype=torch.float64))
    uploads = uploads_of([random[0], [0.0] * 18], [9, 3], absent=[1])
    new = method.learn(server, after, method.rewards(server, after, 2, TRAIN), uploads, 2, TRAIN)
    assert new.reputation[1] > new.reputation[0]
    assert new.download.tolist()[1] == 1  # the best reputation is paid all of it
    assert new.download[0] < 1


def test_equal_clients_get_equal_rewards(make_server):
    same = [[1.0, -2.0, 3.0] + [0.5] * 15] * 2
    _, _, after = first_round(make_server, CGSV(), same, sizes=(6, 6))
    assert torch.equal(after.models[0], after.models[1])
