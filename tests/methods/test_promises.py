import pytest
import torch

from cofair.methods.rules.promises import EqualGain, expectations, expected_fairness, half_width

C = torch.tensor([0.28, 0.34, 0.36, 0.41], dtype=torch.float64)


def test_expected_fairness_grows_with_the_validation_set():
    few, many = (expected_fairness(EqualGain(), C, 0.5, n, 10_000) for n in (100, 5_000))
    assert few < many < 100
    # var a* = 0.002169, noise 0.2442 (1/5000 + 1/10000): γ = 100 √(0.002169 / 0.002242)
    assert many == pytest.approx(98.3, abs=0.1)


def test_where_contributions_are_equal_no_fairness_is_expected():
    equal = torch.full((3,), 0.4, dtype=torch.float64)
    assert expected_fairness(EqualGain(), equal, 0.5, 100, 100) is None
    assert len(expectations(EqualGain(), equal, 100, 100)) == 1


def test_the_interval_of_an_accuracy_is_that_of_a_coin():
    # √(0.5 · 0.5 / 100) = 0.05, 1.96 times
    # once of 100: √(0.01 · 0.99 / 100) = 0.00995
    assert half_width(torch.tensor([0.5, 0.0, 1.0, -2]), 100).tolist() == pytest.approx(
        [0.098, *[0.0195018] * 3], abs=1e-6
    )
    assert float(half_width(torch.tensor(0.5), 400)) == pytest.approx(0.049)


def test_promises_below_nothing_are_told():
    # 0.41 − 4 · 0.13 < 0, 0.41 − 4 · 0.07 > 0
    told = expectations(EqualGain(4.0), C, 5_000, 10_000)[1]
    assert told.startswith("1 of 4 clients are promised less than 0 % while the whole model is no better than")


def test_what_is_expected_is_told_in_two_sentences():
    kept, fair = expectations(EqualGain(), C, 5_000, 10_000)
    # widest for the 41 % of the best: 1.96 √(0.41 · 0.59 / 5000) = 1.36 points
    assert kept.startswith("A model chosen on 5,000 samples keeps its promise on new data to ± 1.4 points at worst")
    assert kept.endswith("(95 times of 100), once the whole model is as good as the best client alone.")
    assert fair.startswith("Promises spread by 4.7 points then (standard deviation): ")
    assert fair.endswith("a fairness of 98.5 or more can be expected of a round tested on 10,000 samples.")
