from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from cofair.methods.rules.sparsification import largest_entries
from cofair.models.parameters import Layout

LAYOUT = Layout(nn.Linear(3, 2))  # a tensor of six entries and one of two
UPDATE = torch.tensor([3.0, -5.0, 1.0, 0.5, -2.0, 4.0, 7.0, -1.0])


@pytest.mark.parametrize(
    ("share", "settings", "expected"),
    [
        (0.5, {}, [3, -5, 0, 0, 0, 4, 7, 0]),
        (0.51, {}, [3, -5, 0, 0, -2, 4, 7, -1]),  # four of six and two of two: rounded up
        (1.0, {}, [3, -5, 1, 0.5, -2, 4, 7, -1]),
        (1.0, {"drop_one": True}, [3, -5, 1, 0, -2, 4, 7, 0]),
        (0.0, {}, [0] * 8),
        (0.5, {"per_tensor": False}, [3, -5, 0, 0, 0, 4, 7, 0]),
        (0.3, {"per_tensor": False}, [0, -5, 0, 0, 0, 0, 7, 0]),  # two of eight: rounded down
    ],
)
def test_the_largest_entries_are_kept(share, settings, expected):
    kept = largest_entries(UPDATE, torch.tensor([share]), LAYOUT, **settings)
    assert kept[0].tolist() == expected


@pytest.mark.parametrize(("share", "kept"), [(0.1, 1), (0.3, 3), (0.7, 7), (0.71, 8)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_tenth_of_ten_entries_is_one_in_every_precision(dtype, share, kept):
    layout = Layout(nn.Linear(5, 2, bias=False))
    update = torch.arange(1, 11, dtype=dtype)
    found = largest_entries(update, torch.tensor([share], dtype=dtype), layout)
    assert (found != 0).sum(1).tolist() == [kept]
    of_all = largest_entries(update, torch.tensor([share], dtype=dtype), layout, per_tensor=False)
    assert (of_all != 0).sum(1).tolist() == [int(share * 10 + 1e-6)]


def test_entries_as_large_as_the_last_kept_are_kept_too():
    assert largest_entries(torch.ones(8), torch.tensor([0.1]), LAYOUT).tolist() == [[1] * 8]


def test_a_tensor_of_one_entry_is_rewarded_even_where_one_entry_is_dropped():
    layout = Layout(nn.Linear(2, 1))
    kept = largest_entries(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0]), layout, drop_one=True)
    assert kept.tolist() == [[0, 2, 3]]


@given(st.lists(st.floats(0, 1), min_size=2, max_size=6), st.integers(0, 99), st.booleans())
def test_who_deserves_more_gets_all_that_others_get_and_is_nearer_to_the_aggregate(shares, seed, per_tensor):
    update = torch.randn(8, generator=torch.Generator().manual_seed(seed))
    kept = largest_entries(update, torch.tensor(sorted(shares)), LAYOUT, per_tensor=per_tensor)
    for less, more in pairwise(kept):
        assert ((less == 0) | (less == more)).all()
        assert (update - more).norm() <= (update - less).norm()
