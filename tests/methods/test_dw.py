import pytest
import torch
from torch import nn

from cofair.engine.phases import TRAIN
from cofair.methods.dw import DW
from tests.conftest import uploads_of


def learned(make_server, method, sizes, contributions=(0.2, 0.4), absent=()):
    server = make_server(contributions, sizes, nn.Linear(6, 3, bias=False))
    state = method.start(server)
    rows = torch.zeros(2, 18, dtype=torch.float64)
    rows[0] = torch.arange(1, 19)
    rows[list(absent)] = 0
    uploads = uploads_of(rows.tolist(), sizes, absent)
    new = method.learn(server, state, method.rewards(server, state, 1, TRAIN), uploads, 1, TRAIN)
    return new, new.models - state.models


def test_a_third_of_the_samples_gets_a_third_of_the_aggregate(make_server):
    new, reward = learned(make_server, DW(gamma=2.0), (9, 3))
    assert new.reputation.tolist() == [0.75, 0.25]
    # the second client's update is zero, so the aggregate is 3/4 · 2 · (1, …, 18) / ‖(1, …, 18)‖
    aggregate = 1.5 * torch.arange(1, 19, dtype=torch.float64) / 2109**0.5
    assert reward[0].tolist() == pytest.approx(aggregate.tolist(), abs=1e-6)
    assert reward[1, :12].tolist() == [0] * 12
    assert reward[1, 12:].tolist() == reward[0, 12:].tolist()
    assert new.download.tolist() == pytest.approx([1, 1 / 3])


def test_shares_round_up_in_each_tensor_and_down_over_all_parameters(make_server):
    """3/7 of 18 entries are 7.7."""
    for sparsify, kept in (("layer", 8), ("all", 7)):
        _, reward = learned(make_server, DW(sparsify=sparsify), (7, 3))
        assert (reward != 0).sum(1).tolist() == [18, kept]


def test_who_is_absent_has_no_weight_in_the_aggregate(make_server):
    _, reward = learned(make_server, DW(gamma=2.0), (9, 3), absent=[1])
    assert float(reward[0].norm()) == pytest.approx(2, abs=1e-6)


def test_equal_sizes_get_everything_and_no_samples_get_nothing(make_server):
    _, reward = learned(make_server, DW(), (5, 5))
    assert torch.equal(reward[0], reward[1])
    new, reward = learned(make_server, DW(), (5, 0), absent=[1])
    assert new.reputation.tolist() == [1, 0]
    assert not bool(reward[1].any())
    assert bool(reward[0].all())


def test_true_contributions_can_take_the_place_of_sizes(make_server):
    new, reward = learned(make_server, DW(reputation_from="contributions"), (9, 3))
    assert new.reputation.tolist() == pytest.approx([1 / 3, 2 / 3])
    assert [int((row != 0).sum()) for row in reward] == [9, 18]
