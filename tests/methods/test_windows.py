import math
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from cofair.engine.phases import TRAIN
from cofair.engine.protocol import Uploads
from cofair.errors import UsageError
from cofair.methods.families.submodels import ReputedSubmodels
from cofair.methods.fedrolex import FedRolex
from cofair.methods.fjord import FjORD
from cofair.methods.heterofl import HeteroFL
from cofair.models.mlp import MLP


def begun(make_server, method, contributions=(0.2, 0.4), hidden=(10, 4)):
    server = make_server(contributions, module=MLP((6,), 3, hidden=hidden))
    return server, method.start(server)


def units(mask):
    """Return which of ten units of the first layer and of four of the second a client holds."""
    return mask[:10].nonzero().flatten().tolist(), (mask[10:].nonzero().flatten()).tolist()


def test_heterofl_hands_out_the_first_units_of_each_layer(make_server):
    _, state = begun(make_server, HeteroFL(share="linear"))
    assert state.reputation.tolist() == [50, 100]
    assert units(state.granted[0]) == ([0, 1, 2, 3, 4], [0, 1])
    assert state.granted[1].all()
    # exp(−10 · 0.2) = 0.135: two of ten and one of four
    server, state = begun(make_server, HeteroFL())
    assert state.reputation.tolist() == pytest.approx([100 * math.exp(-2), 100])
    assert units(state.granted[0]) == ([0, 1], [0])
    assert torch.equal(HeteroFL().windows(server, state.reputation / 100, 9), state.granted)
    # a share so small that nothing would be left still holds a unit of each layer
    _, state = begun(make_server, HeteroFL(beta=1000.0))
    assert units(state.granted[0]) == ([0], [0])


@pytest.mark.parametrize(
    ("step", "t", "expected"),
    [
        (1, 1, ([0, 1, 2, 3, 4], [0, 1])),
        (1, 2, ([1, 2, 3, 4, 5], [1, 2])),
        (1, 8, ([0, 1, 7, 8, 9], [0, 3])),
        (1, 11, ([0, 1, 2, 3, 4], [2, 3])),
        (-1, 2, ([0, 1, 2, 3, 9], [0, 3])),
    ],
)
def test_fedrolex_rolls_on_and_around(make_server, step, t, expected):
    method = FedRolex(share="linear", step=step)
    server, state = begun(make_server, method)
    assert units(method.grant(server, state, t).granted[0]) == expected


def test_fedrolex_trains_every_unit_equally_often_in_time(make_server):
    method = FedRolex(share="linear")
    server, state = begun(make_server, method)
    held = sum(method.windows(server, state.reputation / 100, t)[0].long() for t in range(1, 21))
    assert held.tolist() == [10] * 14


def test_fjord_draws_from_the_widths_below_ones_own_and_ones_own(make_server):
    method = FjORD(share="linear", widths=4)
    server, state = begun(make_server, method, (0.06, 0.36, 0.6, 0.3))
    given = method.rewards(server, state, 1, TRAIN)
    # p = 0.1: only its own; 0.6: also 1/4 and 1/2; 1: also 1/4, 1/2, 3/4; 0.5: also 1/4, and 1/2 is its own
    assert given.step_choices.tolist() == [1, 3, 4, 2]
    widths = given.step_masks[:, :, :10].sum(2).tolist()
    assert [widths[i][:n] for i, n in enumerate([1, 3, 4, 2])] == [[1], [3, 5, 6], [3, 5, 8, 10], [3, 5]]
    for i, choices in enumerate(given.step_choices.tolist()):
        assert torch.equal(given.step_masks[i, choices - 1], given.neuron_masks[i])
        nested = given.step_masks[i, :choices].long()
        assert bool((nested.diff(dim=0) >= 0).all())


def test_widths_are_exact_parts_of_a_layer(make_server):
    """3/5 of ten units are six, not the seven that 0.6 in single precision would round up to."""
    server, state = begun(make_server, FjORD())
    masks = FjORD().rewards(server, state, 1, TRAIN).step_masks[1]
    assert masks[:, :10].sum(1).tolist() == [2, 4, 6, 8, 10]


def test_a_parameter_is_averaged_over_its_holders(make_server):
    method = HeteroFL(share="linear")
    server, state = begun(make_server, method)
    rewards = method.rewards(server, state, 1, TRAIN)
    holds = server.neurons.parameter_mask(state.granted)
    rows = holds * torch.tensor([[1.0], [3.0]], dtype=torch.float64)
    rows[0, 0] = 0.0  # held by both, but the first client had no gradient for it
    assert holds[:, 0].all()
    uploads = Uploads(rows, torch.ones(2, dtype=torch.bool), server.sizes)
    moved = method.learn(server, state, rewards, uploads, 1, TRAIN).parameters - state.parameters
    shared = holds.all(0)
    shared[0] = False
    assert moved[0].item() == pytest.approx(1.5)  # 3 / 2: it holds the parameter and counts
    assert moved[shared].tolist() == pytest.approx([2.0] * int(shared.sum()))
    assert moved[~holds[0]].tolist() == pytest.approx([3.0] * int((~holds[0]).sum()))
    other = HeteroFL(share="linear", count="nonzero").learn(server, state, rewards, uploads, 1, TRAIN)
    assert (other.parameters - state.parameters)[0].item() == pytest.approx(3.0)
    # an absent holder does not count
    alone = Uploads(rows * torch.tensor([[0.0], [1.0]]), torch.tensor([False, True]), server.sizes)
    moved = method.learn(server, state, rewards, alone, 1, TRAIN).parameters - state.parameters
    assert moved.tolist() == pytest.approx([3.0] * len(moved))


def test_what_is_delivered_is_the_new_model_under_the_windows_of_its_round(make_server):
    method = FedRolex(share="linear")
    server, state = begun(make_server, method)
    rewards = method.rewards(server, state, 1, TRAIN)
    nothing = Uploads(torch.zeros(2, len(server.initial)).double(), torch.ones(2, dtype=torch.bool), server.sizes)
    state = method.learn(server, state, rewards, nothing, 1, TRAIN)
    assert torch.equal(method.delivered(server, state).neuron_masks, rewards.neuron_masks)
    assert units(state.granted[0]) == ([1, 2, 3, 4, 5], [1, 2])


@pytest.mark.parametrize("share", ["linear", "exponential"])
@pytest.mark.parametrize("contributions", [(0.0, 0.0), (-2.0, -2.0), (0.5, 0.5)])
def test_equal_contributions_hold_everything(make_server, share, contributions):
    _, state = begun(make_server, HeteroFL(share=share), contributions)
    assert state.granted.all()


def test_contributions_below_zero_have_exponential_shares_too(make_server):
    _, state = begun(make_server, HeteroFL(beta=1.0), (-1.0, -0.5))
    assert state.reputation.tolist() == pytest.approx([100 * math.exp(-0.5), 100])


def test_a_model_without_neurons_is_a_sentence(make_server):
    with pytest.raises(UsageError, match="no neuron"):
        HeteroFL().start(make_server([0.1, 0.2], module=nn.Linear(6, 3)))


@given(
    st.lists(st.floats(0, 1), min_size=1, max_size=6), st.floats(0, 50), st.integers(1, 30),
    st.sampled_from([HeteroFL, FedRolex, FjORD]), st.sampled_from(["linear", "exponential"]),
)  # fmt: skip
def test_windows_are_nested_grow_with_contribution_and_the_best_holds_all(contributions, beta, t, kind, share):
    neurons = SimpleNamespace(slices=(slice(0, 7), slice(7, 10)))
    server = SimpleNamespace(contributions=torch.tensor(contributions, dtype=torch.float64), neurons=neurons)
    method = kind(beta=beta, share=share)
    state = method.grant(server, ReputedSubmodels(*[torch.zeros(1)] * 5), t)
    order = server.contributions.argsort()
    for less, more in pairwise(order):
        assert bool((state.granted[more] | ~state.granted[less]).all())
    assert state.granted[order[-1]].all()
    assert state.granted[:, :7].any(1).all()
    assert state.granted[:, 7:].any(1).all()
