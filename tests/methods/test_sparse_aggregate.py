import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cofair.methods.families.sparse_aggregate import by_reputation, by_size
from tests.conftest import uploads_of


def test_weights_by_samples_are_as_exact_as_the_run():
    uploads = uploads_of([[1.0], [1.0], [1.0]], [1, 2, 7], absent=[2])
    assert by_size(uploads).tolist() == [1 / 3, 2 / 3, 0]  # in float32 a third is 1e-8 too large


def test_without_anybody_weights_by_samples_are_zero():
    assert by_size(uploads_of([[1.0]], [5], absent=[0])).tolist() == [0]


def test_reputations_of_those_who_answered_weigh_as_much_as_all():
    uploads = uploads_of([[1.0]] * 3, [1, 1, 1], absent=[2])
    reputation = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
    assert by_reputation(reputation, uploads).tolist() == pytest.approx([0.4, 0.6, 0])


@given(st.lists(st.floats(-1, 1, width=32), min_size=1, max_size=8))
def test_where_all_answered_reputations_weigh_as_they_are_to_the_bit(reputation):
    uploads = uploads_of([[1.0]] * len(reputation), [1] * len(reputation))
    assert by_reputation(torch.tensor(reputation), uploads).tolist() == reputation


def test_reputations_that_all_but_cancel_out_do_not_grow_without_bounds():
    uploads = uploads_of([[1.0]] * 3, [1, 1, 1], absent=[2])
    reputation = torch.tensor([0.6, -0.59, 0.99], dtype=torch.float64)
    assert by_reputation(reputation, uploads).abs().sum() == pytest.approx(0.6 + 0.59 + 0.99)


def test_without_anybody_reputations_weigh_nothing():
    uploads = uploads_of([[1.0]] * 2, [1, 1], absent=[0, 1])
    assert by_reputation(torch.tensor([0.4, 0.6]), uploads).tolist() == [0, 0]
