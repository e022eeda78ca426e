import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cofair.methods.rules.reputation import counted, normalised, of_the_best, remaining


def numbers(*values):
    return torch.tensor(values, dtype=torch.float64)


def test_scores_become_parts_of_their_sum_or_of_the_largest():
    assert normalised(numbers(1, 3)).tolist() == [0.25, 0.75]
    assert normalised(numbers(1, 3, 4), torch.tensor([True, True, False])).tolist() == [0.25, 0.75, 0]
    assert of_the_best(numbers(1, -1, 4)).tolist() == [0.25, 0, 1]


def test_scores_that_say_nothing_become_equal():
    assert normalised(numbers(0, 0)).tolist() == [0.5, 0.5]
    assert normalised(numbers(-1, -2)).tolist() == [0.5, 0.5]
    # the sum is 2⁻⁵⁴ or so, and dividing by it would make huge reputations of a rounding error
    assert normalised(numbers(0.1 + 0.2, -0.3)).tolist() == [0.5, 0.5]
    assert normalised(numbers(0, 0, 0), torch.tensor([True, False, True])).tolist() == [0.5, 0, 0.5]
    assert normalised(numbers(1, 2), torch.tensor([False, False])).tolist() == [0, 0]
    assert of_the_best(numbers(-1, 0, -2)).tolist() == [1, 1, 1]


def test_who_is_far_below_the_mean_is_removed_unless_it_was_not_judged():
    everyone = torch.ones(4, dtype=torch.bool)
    reputation = numbers(0.5, 0.4, 0.02, 0.08)
    assert remaining(reputation, everyone, everyone, 1 / 3).tolist() == [True, True, False, False]  # 1/12 = 0.083
    silent = torch.tensor([True, True, False, True])
    assert remaining(reputation, everyone, silent, 1 / 3).tolist() == [True, True, True, False]
    # of a smaller set the mean is larger
    three = torch.tensor([True, True, False, True])
    assert remaining(reputation, three, everyone, 1 / 4).tolist() == [True, True, False, False]  # 1/12


def test_a_threshold_that_would_remove_everybody_removes_nobody():
    members = torch.tensor([True, False, True])
    assert remaining(numbers(0.5, 0, 0.5), members, members, 5.0).tolist() == [True, False, True]


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=9))
def test_reputations_are_finite_and_sum_to_one(scores):
    parts = normalised(numbers(*scores))
    assert float(parts.sum()) == pytest.approx(1, abs=1e-6)
    best = of_the_best(numbers(*scores))
    assert bool(((best >= 0) & (best <= 1)).all())
    assert float(best.max()) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("share", "of", "up", "count"), [
    (0.1, 10, True, 1), (0.1, 614_400, True, 61_440), (0.7, 10, False, 7), (1.0, 50_000_001, True, 50_000_001),
    (0.51, 6, True, 4), (0.51, 6, False, 3), (0.0, 6, True, 0), (1e-8, 6, True, 1), (1.0001, 10, False, 10),
])  # fmt: skip
def test_a_share_of_a_number_of_things_is_a_whole_number_of_them(dtype, share, of, up, count):
    assert counted(torch.tensor([share], dtype=dtype), of, up=up).tolist() == [count]


@given(st.integers(1, 50), st.integers(1, 50), st.integers(1, 20_000), st.booleans())
def test_whoever_brings_a_share_of_what_the_best_brings_counts_as_that_share(one, more, times, up):
    """However it was computed: here as DW does, from parts of the sum, in float32."""
    best = one + more
    shares = of_the_best(normalised(torch.tensor([one, best], dtype=torch.float32)))
    assert counted(shares, best * times, up=up).tolist() == [one * times, best * times]


@given(st.lists(st.floats(0, 1, width=32), min_size=2), st.integers(1, 10**8), st.booleans())
def test_a_larger_share_never_counts_less(shares, of, up):
    counts = counted(torch.tensor(sorted(shares)), of, up=up)
    assert bool((counts.diff() >= 0).all())
    assert int(counts.min()) >= 0
    assert int(counts.max()) <= of
