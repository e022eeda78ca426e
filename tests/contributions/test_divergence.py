import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cofair.contributions.divergence import batch_means, closeness, divergences
from cofair.errors import RunError, UsageError

nan, inf = math.nan, math.inf
positive = st.lists(st.floats(0.01, 10), min_size=2, max_size=6)


def kl(own, validation):
    """The divergence of one client by a plain loop, as in the paper's code."""
    length = min(len(own), len(validation))
    p = [value / sum(own[:length]) for value in own[:length]]
    q = [value / sum(validation[:length]) for value in validation[:length]]
    return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))


def one(own, validation):
    return float(divergences(torch.tensor([own]), torch.tensor([validation])))


@settings(deadline=None)
@given(positive, positive)
def test_it_is_the_divergence_of_lists_cut_to_the_shorter_length(own, validation):
    assert one(own, validation) == pytest.approx(kl(own, validation), abs=1e-6)


def test_two_batches_by_hand():
    # p = (1/4, 3/4), q = (1/2, 1/2): ¼ ln ½ + ¾ ln 3/2
    expected = 0.25 * math.log(0.5) + 0.75 * math.log(1.5)
    assert one([1.0, 3.0], [2.0, 2.0, 9.0]) == pytest.approx(expected)
    assert one([1.0, 3.0, 5.0], [2.0, 2.0]) == pytest.approx(expected)
    assert one([10.0, 30.0], [0.2, 0.2]) == pytest.approx(expected)  # sums do not matter


def test_clients_of_different_lengths_stand_in_one_table_padded_with_nan():
    own = torch.tensor([[1.0, 3.0, nan], [1.0, 2.0, 3.0], [nan, nan, nan], [2.0, nan, nan]])
    validation = torch.tensor([[2.0, 2.0, 2.0, 2.0]]).expand(4, 4)
    found = divergences(own, validation)
    assert found[:2].tolist() == pytest.approx([kl([1, 3], [2, 2]), kl([1, 2, 3], [2, 2, 2])])
    assert found[2] == inf  # no data
    assert found[3].isnan()  # one batch is no distribution


def test_the_most_typical_client_is_worth_1_the_others_by_the_ratio():
    assert closeness(torch.tensor([0.2, 0.1, 0.4], dtype=torch.float64)).tolist() == pytest.approx([0.5, 1, 0.25])
    assert closeness(torch.tensor([0.2, nan, 0.4, inf])).tolist() == pytest.approx([1, 0.5, 0.5, 0])


def test_lists_that_agree_and_clients_that_nobody_can_judge_are_defined():
    same = one([1.0, 2.0], [2.0, 4.0])
    assert same == pytest.approx(0, abs=1e-15)
    assert closeness(torch.tensor([0.0, 0.3])).tolist() == pytest.approx([1, 0], abs=1e-9)
    assert closeness(torch.zeros(3)).tolist() == [1, 1, 1]
    assert closeness(torch.tensor([nan, nan])).tolist() == [1, 1]
    assert closeness(torch.tensor([inf, inf])).tolist() == [0, 0]
    assert closeness(torch.tensor([nan, inf])).tolist() == [1, 0]


def test_zero_losses():
    assert one([0.0, 0.0], [1.0, 3.0]) == pytest.approx(kl([1, 1], [1, 3]))  # nothing lost anywhere: uniform
    assert one([0.0, 1.0], [1.0, 1.0]) == pytest.approx(math.log(2))
    assert one([1.0, 1.0], [0.0, 1.0]) == inf


@pytest.mark.parametrize(
    ("own", "error", "sentence"),
    [
        ([1.0, nan, 2.0], RunError, "A batch loss is NaN"),
        ([1.0, inf], RunError, "A batch loss is infinite"),
        ([1.0, -2.0], UsageError, "a loss that is never negative"),
    ],
)
def test_losses_that_cannot_be_compared_are_sentences(own, error, sentence):
    with pytest.raises(error, match=sentence):
        one(own, [1.0, 1.0, 1.0])


def test_the_last_batch_may_be_smaller():
    losses = torch.arange(10, dtype=torch.float64)
    assert batch_means(losses, 4).tolist() == [1.5, 5.5, 8.5]
    assert batch_means(torch.stack([losses, 2 * losses]), 4).tolist() == [[1.5, 5.5, 8.5], [3.0, 11.0, 17.0]]
    assert batch_means(losses[:0], 4).shape == (0,)
