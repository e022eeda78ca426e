import math
from itertools import pairwise

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from cofair.engine.phases import TRAIN
from cofair.engine.protocol import Uploads
from cofair.errors import UsageError
from cofair.methods.fedrac import FedRAC
from cofair.models import build
from cofair.scoring.scorer import Scores


def test_reputation_follows_the_equations():
    """At t = 2: λ (1 − 1/ln(0.3 · 2 + 3)) = 0.2 · (1 − 1/ln 3.6)."""
    c = torch.tensor([0.30, 0.40], dtype=torch.float64)
    accuracy = torch.tensor(0.5, dtype=torch.float64)
    share = math.exp(80 * -0.10)
    held_back = 0.2 * 0.5 * (1 - 1 / math.log(3.6))
    expected = [0.30 + (0.5 - held_back) * share, 0.40 + (0.5 - held_back)]
    assert FedRAC().reputation_at(2, c, accuracy).tolist() == pytest.approx(expected, abs=1e-12)
    static = FedRAC(without_reputation=True).reputation_at(2, c, accuracy)
    assert static.tolist() == pytest.approx([0.5 * share, 0.5], abs=1e-12)


@pytest.mark.parametrize(("t", "factor"), [(2, 0.044), (100, 0.143), (101, 0.572), (1000, 0.660)])
def test_what_is_held_back_has_the_published_values(t, factor):
    zero, one = torch.zeros(1).double(), torch.ones(()).double()
    assert 1 - float(FedRAC().reputation_at(t, zero, one)) == pytest.approx(factor, abs=5e-4)


ACCURACY = torch.linspace(0.02, 1.0, 50).double()  # the prefix of 8 (s + 1) neurons has accuracy 0.02 (s + 1)


SIZES = torch.arange(8, 401, 8)


def allocate(method, reputation, contributions):
    given = (torch.tensor(values, dtype=torch.float64) for values in (reputation, contributions))
    return method.allocate(SIZES, ACCURACY, *given).tolist()


def test_allocation_worked_out_by_hand():
    contributions = [0.3, 0.1, 0.4, 0.2]
    reputation = [0.505, 0.205, 2.0, 0.305]
    # prefixes within reputation: s = 24, 9, (all), 14; the code gives one pack less than the prefix
    assert allocate(FedRAC(), reputation, contributions) == [192, 72, 400, 112]
    assert allocate(FedRAC(pack_offset=1), reputation, contributions) == [200, 80, 400, 120]


def test_nobody_gets_less_than_one_pack_and_the_papers_reading_can_give_just_one():
    contributions, reputation = [0.1, 0.4], [0.03, 1.0]  # only the first prefix, of accuracy 0.02, is within 0.03
    for offset in (0, 1):
        assert allocate(FedRAC(pack_offset=offset), reputation, contributions) == [8, 400]
        assert allocate(FedRAC(pack_offset=offset), [0.0, 1.0], contributions) == [8, 400]
    assert allocate(FedRAC(pack_offset=1), [0.03, 0.03, 1.0], [0.1, 0.2, 0.4]) == [8, 16, 400]


def test_each_contribution_gets_a_pack_more_than_the_one_before():
    assert allocate(FedRAC(), [0.0, 0.0, 0.0, 1.0], [0.1, 0.2, 0.3, 0.4]) == [8, 16, 24, 400]


def test_equal_contributions_share_a_mask_unless_the_code_is_asked_for():
    contributions, reputation = [0.1, 0.1, 0.4, 0.4], [0.3, 0.3, 1.0, 1.0]
    assert allocate(FedRAC(), reputation, contributions) == [112, 112, 400, 400]
    assert allocate(FedRAC(always_one_more=True), reputation, contributions) == [112, 120, 392, 400]


def test_many_clients_do_not_run_out_of_packs():
    contributions = [i / 1000 for i in range(120)]
    counts = allocate(FedRAC(), [0.0] * 120, contributions)
    assert max(counts[:-1]) == 392
    assert counts[-1] == 400
    assert counts == sorted(counts)


@given(
    st.lists(st.tuples(st.floats(0, 1), st.floats(0, 0.1)), min_size=1, max_size=12), st.sampled_from([0, 1]),
    st.randoms(use_true_random=False),
)  # fmt: skip
def test_more_contribution_never_gets_less_and_the_order_of_clients_does_not_matter(clients, offset, random):
    method = FedRAC(pack_offset=offset)
    contributions = [c for c, _ in clients]
    by_value = {c: c + extra for c, extra in clients}
    counts = allocate(method, [by_value[c] for c in contributions], contributions)
    ranked = sorted(zip(contributions, counts, strict=True))
    assert [k for _, k in ranked] == sorted(counts)
    assert all(8 <= k <= 400 for k in counts)
    assert all(k == 400 for c, k in ranked if c == max(contributions))
    shuffled = contributions[:]
    random.shuffle(shuffled)
    again = allocate(method, [by_value[c] for c in shuffled], shuffled)
    assert sorted(zip(shuffled, again, strict=True)) == ranked


def test_a_model_smaller_than_a_pack_still_works():
    size, reputation = torch.tensor([5]), torch.tensor([0.1, 0.9])
    one_pack = FedRAC().allocate(size, torch.tensor([0.5]), reputation, torch.tensor([0.1, 0.2]))
    assert one_pack.tolist() == [5, 5]


# candidates hold 2, 4, 5 of five neurons; 0.3 is within the reputation of the first client, 0.4 within the second's
PREFIXES = torch.tensor([0.3, 0.4, 0.6], dtype=torch.float64)


@pytest.fixture
def rolling(make_server, monkeypatch):
    """Grant submodels of a model of five neurons whose prefixes have given accuracies; note what was scored."""

    def begin(contributions, **settings):
        method = FedRAC(**{"pack": 2, "pack_offset": 1, **settings})
        server = make_server(contributions, module=build("mlp", (6,), 3, hidden=(5,)))
        scored = []

        def prefixes(base, order, sizes):
            scored.append((order.tolist(), sizes.tolist()))
            return Scores(torch.zeros(len(sizes)), PREFIXES[-len(sizes) :])

        monkeypatch.setattr(server.validation, "prefixes", prefixes)
        return server, method, scored

    return begin


def played(server, method, rounds):
    state, handed = method.start(server), []
    silence = Uploads(torch.zeros(3, server.layout.size).double(), torch.ones(3, dtype=torch.bool), server.sizes)
    for t in range(1, rounds + 1):
        rewards = method.rewards(server, state, t, TRAIN)
        handed.append(rewards.neuron_masks.int().tolist())
        state = method.learn(server, state, rewards, silence, t, TRAIN)
    return state, handed


def test_the_least_trained_neurons_come_first_and_the_first_round_does_not_count(rolling):
    """Clients get 2, 4 and 5 neurons: a round adds 3 to the first two of the order, 2 to the next two, 1 to the last.

    f after round 2 is 3 3 2 2 1, so π³ = 4 2 3 0 1 with f = 5 4 5 4 4 after it, and π⁴ = 1 3 4 0 2 with 7 7 6 7 6.
    """
    server, method, scored = rolling([0.3, 0.4, 0.9])
    state, handed = played(server, method, 4)
    assert scored[:3] == [([0, 1, 2, 3, 4], [2, 4, 5]), ([4, 2, 3, 0, 1], [2, 4, 5]), ([1, 3, 4, 0, 2], [2, 4, 5])]
    everything = [1, 1, 1, 1, 1]
    assert handed == [
        [everything] * 3,
        [[1, 1, 0, 0, 0], [1, 1, 1, 1, 0], everything],
        [[0, 0, 1, 0, 1], [1, 0, 1, 1, 1], everything],
        [[0, 1, 0, 1, 0], [1, 1, 0, 1, 1], everything],
    ]
    assert method.delivered(server, state).neuron_masks.int().tolist() == handed[-1]
    assert state.frequency.tolist() == [7, 7, 6, 7, 6]
    # Acc is the accuracy of the whole model
    assert torch.equal(state.reputation, method.reputation_at(5, server.contributions, PREFIXES[-1]))


def test_without_allocation_neurons_are_random(rolling):
    server, method, scored = rolling([0.3, 0.4, 0.9], without_allocation=True)
    _, handed = played(server, method, 6)
    assert scored[0][0] != [0, 1, 2, 3, 4]  # the order of neurons that are all as little trained
    assert len({tuple(order) for order, _ in scored}) > 3
    assert [[sum(mask) for mask in masks] for masks in handed[1:]] == [[2, 4, 5]] * 5


def test_packs_can_change_their_size_after_the_switch(rolling):
    server, method, scored = rolling([0.3, 0.4, 0.9], pack=3, pack_late=2, switch=3)
    played(server, method, 4)
    assert [sizes for _, sizes in scored] == [[3, 5], [3, 5], [2, 4, 5], [2, 4, 5]]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6), st.integers(2, 6), st.sampled_from([0, 1]))
@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_rewards_are_nested_grow_with_contribution_and_come_nearer_to_the_model(make_server, contributions, t, offset):
    server = make_server(contributions, module=build("mlp", (6,), 3, hidden=(9,)))
    method = FedRAC(pack=2, pack_offset=offset)
    state = method.grant(server, method.start(server), t)
    distance = (server.initial - server.initial * server.neurons.parameter_mask(state.granted)).norm(dim=1)
    ranked = sorted(range(len(contributions)), key=contributions.__getitem__)
    for low, high in pairwise(ranked):
        assert not bool((state.granted[low] & ~state.granted[high]).any())
        assert distance[high] <= distance[low]
        assert contributions[low] < contributions[high] or torch.equal(state.granted[low], state.granted[high])
    assert bool(state.granted[ranked[-1]].all())


def test_a_beta_that_would_overflow_is_harmless():
    c, accuracy = torch.tensor([0.1, 0.9], dtype=torch.float64), torch.tensor(0.5, dtype=torch.float64)
    steep = FedRAC(beta=1e6).reputation_at(2, c, accuracy)
    assert steep[0] == 0.1
    assert steep[1] == pytest.approx(0.9 + 0.5 - 0.1 * (1 - 1 / math.log(3.6)))


def test_a_model_without_neurons_is_a_sentence(make_server):
    with pytest.raises(UsageError, match="'fedrac' hands out submodels, but the model has no neuron"):
        FedRAC().start(make_server([0.1, 0.2], module=nn.Linear(6, 3)))
