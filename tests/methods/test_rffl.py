import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from cofair.engine.phases import TRAIN
from cofair.methods.rffl import RFFL
from tests.conftest import uploads_of

FIRST = [[3.0, 4.0] + [0.0] * 16, [0.5] + [0.0] * 17]


def begun(make_server, method, count=2, sizes=(9, 3), contributions=(0.2, 0.4), reputation=None):
    server = make_server(contributions, sizes[:count], nn.Linear(6, 3, bias=False))
    state = method.start(server)
    if reputation is not None:
        state = replace(state, reputation=torch.tensor(reputation, dtype=torch.float64))
    return server, state


def learned(server, method, state, updates, t, absent=()):
    uploads = uploads_of(updates, server.sizes.tolist(), absent)
    return method.learn(server, state, method.rewards(server, state, t, TRAIN), uploads, t, TRAIN)


def test_the_first_round_worked_out_by_hand(make_server):
    """Γ = 1 cuts (3, 4) to (0.6, 0.8) and leaves (0.5, 0); by samples they make (0.575, 0.6)."""
    method = RFFL(gamma=1.0)
    server, state = begun(make_server, method)
    new = learned(server, method, state, FIRST, 1)
    # cosines are in the ratio of the products with (0.575, 0.6): 0.825 over norm 1, 0.2875 over norm 0.5
    assert new.reputation.tolist() == pytest.approx([0.825 / 1.4, 0.575 / 1.4], abs=1e-6)
    change = new.models - state.models
    # the best receives everything, on top of its own update; the other as much, for all other entries are zeros
    assert change[0, :2].tolist() == pytest.approx([0.6 + 0.575, 0.8 + 0.6], abs=1e-6)
    assert change[1, :2].tolist() == pytest.approx([0.5 + 0.575, 0.6], abs=1e-6)
    assert not bool(change[:, 2:].any())


def test_later_rounds_weigh_by_reputation_and_remember(make_server):
    method = RFFL(gamma=1.0, alpha=0.5)
    server, state = begun(make_server, method, reputation=[0.25, 0.75])
    new = learned(server, method, state, FIRST, 2)
    aggregate = (0.25 * 0.6 + 0.75 * 0.5, 0.25 * 0.8)
    length = math.hypot(*aggregate)
    fresh = [
        0.5 * 0.25 + 0.5 * (0.6 * aggregate[0] + 0.8 * aggregate[1]) / length,
        0.5 * 0.75 + 0.5 * aggregate[0] / length,
    ]
    assert new.reputation.tolist() == pytest.approx([r / sum(fresh) for r in fresh], abs=1e-6)


def test_who_is_worth_less_gets_the_largest_entries_in_proportion(make_server):
    method = RFFL(alpha=1.0)  # reputations stay as they are
    server, state = begun(make_server, method, reputation=[0.8, 0.2])
    updates = torch.randn(2, 18, generator=torch.Generator().manual_seed(0)).tolist()
    new = learned(server, method, state, updates, 2)
    assert new.download.tolist() == pytest.approx([1, 5 / 18])  # ⌈18 / 4⌉ = 5


def test_a_reputation_below_a_third_of_the_mean_is_removed_after_ten_rounds(make_server):
    method = RFFL(alpha=1.0)
    server, state = begun(make_server, method, 3, (4, 4, 4), (0.1, 0.2, 0.3), reputation=[0.5, 0.45, 0.05])
    updates = torch.randn(3, 18, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    tenth = learned(server, method, state, updates.tolist(), 10)
    assert tenth.members.tolist() == [True, True, True]
    new = learned(server, method, state, updates.tolist(), 11)
    assert new.members.tolist() == [True, True, False]
    assert new.reputation.tolist() == pytest.approx([0.5 / 0.95, 0.45 / 0.95, 0])
    own = updates[2] * (0.5 / (updates[2].norm() + 1e-7))
    assert torch.allclose(new.models[2] - state.models[2], own)  # it goes on alone
    # and it stays removed, whatever it uploads: it counts for nothing and receives nothing
    agreeing = updates.clone()
    agreeing[2] = updates[0]
    again = learned(server, RFFL(alpha=0.5), new, agreeing.tolist(), 12)
    assert again.reputation[2] == 0
    assert torch.allclose(again.models[2] - new.models[2], 0.5 * updates[0] / (updates[0].norm() + 1e-7))
    assert again.download[2] == 0


def test_an_absent_client_is_not_removed_and_keeps_its_reputation(make_server):
    method = RFFL(alpha=0.9)
    server, state = begun(make_server, method, 3, (4, 4, 4), (0.1, 0.2, 0.3), reputation=[0.5, 0.45, 0.05])
    updates = [[1.0] * 18, [1.0] * 18, [0.0] * 18]
    new = learned(server, method, state, updates, 11, absent=[2])
    assert new.members.tolist() == [True, True, True]
    # the others agree with the aggregate: 0.9 r + 0.1; then all are divided by the sum
    fresh = [0.9 * 0.5 + 0.1, 0.9 * 0.45 + 0.1, 0.05]
    assert new.reputation.tolist() == pytest.approx([r / sum(fresh) for r in fresh])


def test_the_others_weigh_more_where_a_client_is_absent(make_server):
    method = RFFL(gamma=2.0)
    server, state = begun(make_server, method, 3, (4, 4, 4), (0.1, 0.2, 0.3), reputation=[0.5, 0.3, 0.2])
    same = uploads_of([[3.0] + [0.0] * 17] * 2 + [[0.0] * 18], [4, 4, 4], absent=[2])
    _, aggregate = method.aggregated(server, state, same, 2)
    assert float(aggregate.norm()) == pytest.approx(2, abs=1e-6)


def test_a_threshold_that_would_remove_everybody_removes_nobody(make_server):
    method = RFFL(threshold=9.0, patience=0)
    server, state = begun(make_server, method)
    new = learned(server, method, state, FIRST, 1)
    assert new.members.tolist() == [True, True]
    assert bool(torch.isfinite(new.models).all())


def test_reputations_may_be_negative_but_do_not_explode(make_server):
    method = RFFL(patience=0)
    against = [[1.0] + [0.0] * 17, [-1.0] + [0.0] * 17]
    server, state = begun(make_server, method, sizes=(9, 3))
    new = learned(server, method, state, against, 1)  # cosines 1 and −1 cancel out
    assert new.reputation.tolist() == [0.5, 0.5]
    server, state = begun(make_server, RFFL(alpha=0.5), reputation=[0.75, 0.25])
    new = learned(server, RFFL(alpha=0.5), state, against, 2)  # 0.375 + 0.5 and 0.125 − 0.5
    assert new.reputation.tolist() == pytest.approx([0.875 / 0.5, -0.375 / 0.5])
    assert new.download[1] == 0


def test_true_contributions_can_take_the_place_of_reputation(make_server):
    method = RFFL(reputation_from="contributions")
    server, state = begun(make_server, method)
    new = learned(server, method, state, FIRST, 1)
    assert new.reputation.tolist() == pytest.approx([1 / 3, 2 / 3])
