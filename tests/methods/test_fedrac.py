import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cofair.methods.fedrac import FedRAC


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


def allocate(method, reputation, contributions, K=400):
    counts = method.allocate(
        ACCURACY, torch.tensor(reputation, dtype=torch.float64), torch.tensor(contributions, dtype=torch.float64), K
    )
    return counts.tolist()


def test_allocation_worked_out_by_hand():
    contributions = [0.3, 0.1, 0.4, 0.2]
    reputation = [0.505, 0.205, 2.0, 0.305]
    # prefixes within reputation: s = 24, 9, (all), 14; the code gives one pack less than the prefix
    assert allocate(FedRAC(), reputation, contributions) == [192, 72, 400, 112]
    assert allocate(FedRAC(pack_offset=1), reputation, contributions) == [200, 80, 400, 120]


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
    one_pack = FedRAC().allocate(torch.tensor([0.5]), torch.tensor([0.1, 0.9]), torch.tensor([0.1, 0.2]), 5)
    assert one_pack.tolist() == [5, 5]
