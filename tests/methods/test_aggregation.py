from dataclasses import replace

import pytest
import torch

from cofair.contributions.cosine import normalised
from cofair.methods.rules.aggregation import cosine_with, mean_over_clients, mean_over_holders
from tests.conftest import uploads_of


def test_a_parameter_is_averaged_over_who_counts():
    uploads = uploads_of([[2, 0, 6, 0], [4, 0, 0, 0], [0, 0, 0, 0]], [1, 1, 1])
    holds = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0], [1, 0, 0, 0]], dtype=torch.bool)
    # whose update is not zero: two, nobody, one, nobody; who holds it: three, two, one, nobody
    assert mean_over_holders(uploads, holds, "nonzero").tolist() == [3, 0, 6, 0]
    assert mean_over_holders(uploads, holds, "mask").tolist() == [2, 0, 6, 0]
    assert mean_over_clients(uploads).tolist() == [2, 0, 2, 0]


def test_who_brings_more_weighs_more():
    uploads = uploads_of([[2, 0, 6, 0], [4, 8, 0, 0], [0, 0, 0, 5]], [1, 1, 1])
    holds = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0], [1, 0, 0, 1]], dtype=torch.bool)
    weights = torch.tensor([1.0, 3.0, 0.0])
    assert mean_over_holders(uploads, holds, "mask", weights=weights).tolist() == pytest.approx([3.5, 6, 6, 0])
    assert mean_over_holders(uploads, holds, "nonzero", weights=weights).tolist() == pytest.approx([3.5, 8, 6, 0])
    alike = mean_over_holders(uploads, holds, "mask", weights=torch.full((3,), 0.7))
    assert alike.tolist() == pytest.approx(mean_over_holders(uploads, holds, "mask").tolist())


@pytest.mark.parametrize("small", [0.0, 1e-60])
def test_the_weights_of_who_is_absent_make_no_difference(small):
    uploads = uploads_of([[2, 4], [4, 0], [0, 0]], [1, 1, 1], absent=[2])
    uploads = replace(uploads, updates=uploads.updates.float())
    weights = torch.tensor([small, small, 1.0], dtype=torch.float64)
    assert mean_over_holders(uploads, None, "mask", weights=weights).tolist() == [3, 2]


def test_an_absent_client_holds_nothing():
    uploads = uploads_of([[2.0, 2.0], [0.0, 0.0]], [1, 1], absent=[1])
    everything = torch.ones(2, 2, dtype=torch.bool)
    assert mean_over_holders(uploads, everything, "mask").tolist() == [2, 2]
    assert mean_over_holders(uploads, None, "mask").tolist() == [2, 2]
    assert mean_over_clients(uploads).tolist() == [2, 2]


def test_updates_get_one_length_and_zeros_stay_zero():
    scaled = normalised(torch.tensor([[3.0, 4.0], [0.0, 0.0]], dtype=torch.float64), 0.5)
    assert scaled[0].tolist() == pytest.approx([0.3, 0.4], abs=1e-7)
    assert scaled[1].tolist() == [0, 0]
    assert cosine_with(scaled, torch.tensor([1.0, 0.0], dtype=torch.float64)).tolist() == pytest.approx([0.6, 0])
    assert cosine_with(scaled, torch.zeros(2, dtype=torch.float64)).tolist() == [0, 0]
