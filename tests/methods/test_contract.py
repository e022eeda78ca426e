import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import cofair
from cofair import metrics
from cofair.engine.scoring import Scores
from cofair.errors import UsageError
from cofair.methods.contract import Contract, calibrate
from cofair.methods.promises import BcfMiddle, EqualGain, Proportional, check, expected_fairness, outside, table

C = torch.tensor([0.28, 0.34, 0.36, 0.41], dtype=torch.float64)


class Ladder:
    """A scorer of 400 neurons whose prefixes have a known accuracy, and which counts what it is asked."""

    def __init__(self, accuracy):
        self.accuracy, self.asked = accuracy, []

    def prefixes(self, base, order, counts):
        self.asked += counts.tolist()
        metric = torch.tensor([self.accuracy(int(count)) for count in counts], dtype=torch.float64)
        return Scores(torch.zeros(len(counts)), metric)


def test_everybody_gains_the_same():
    promised = EqualGain()(C, 0.50)
    assert (promised - C).tolist() == pytest.approx([0.09] * 4)
    assert metrics.fairness(C, promised) == pytest.approx(100)


def test_curves_worked_out_by_hand():
    assert EqualGain(kappa=0.5)(C, 0.50).tolist() == pytest.approx([0.435, 0.465, 0.475, 0.50])
    assert Proportional()(C, 0.82).tolist() == pytest.approx([0.56, 0.68, 0.72, 0.82])
    assert BcfMiddle()(C, 0.82).tolist() == pytest.approx(
        [(0.28 + 0.69) / 2, (0.34 + 0.75) / 2, (0.36 + 0.77) / 2, 0.82]
    )
    assert table((0.0, 0.5, 1.0, 1.0))(C, 1.0).tolist() == pytest.approx((0.5 + 0.5 * C / 0.41).tolist())


def test_a_client_gets_the_prefix_whose_accuracy_is_closest_to_its_promise():
    ladder = Ladder(lambda k: k / 800)  # half of the samples are right with all 400 neurons
    found = calibrate(ladder, torch.zeros(1), torch.arange(400), C, EqualGain(), pack=4)
    # promised 0.37, 0.43, 0.45, 0.50: prefixes of 296, 344, 360, 400
    assert found.masks.sum(1).tolist() == [296, 344, 360, 400]
    assert found.validated.tolist() == pytest.approx([0.37, 0.43, 0.45, 0.50])


def test_wide_models_are_searched_and_not_scanned():
    ladder = Ladder(lambda k: k / 200_000)
    order = torch.arange(100_000)
    found = calibrate(ladder, torch.zeros(1), order, C, EqualGain(), pack=1)
    assert found.masks.sum(1).tolist() == [74_000, 86_000, 90_000, 100_000]
    assert len(ladder.asked) < 120
    assert len(set(ladder.asked)) == len(ladder.asked)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(0.05, 0.9), min_size=1, max_size=12), st.floats(0.1, 1.0), st.integers(1, 7))
def test_masks_are_nested_the_best_get_everything_and_no_other_candidate_fits_better(brought, top, pack):
    ladder = Ladder(lambda k: top * (k / 60) ** 0.7)
    contributions = torch.tensor(brought, dtype=torch.float64)
    found = calibrate(ladder, torch.zeros(1), torch.randperm(60), contributions, EqualGain(), pack)
    counts = found.masks.sum(1)
    assert bool((counts[contributions == contributions.max()] == 60).all())
    ascending = found.masks[counts.argsort()]
    assert not bool((ascending[:-1] & ~ascending[1:]).any())
    for i in range(len(brought)):
        if contributions[i] < contributions.max():
            miss = min(abs(ladder.accuracy(k) - float(found.promised[i])) for k in ladder.asked)
            assert abs(float(found.validated[i] - found.promised[i])) == pytest.approx(miss, abs=1e-12)


def test_more_is_never_promised_for_less():
    for curve in (EqualGain(), Proportional(), BcfMiddle(), table((0.0, 0.2, 0.5, 0.8, 1.0, 1.0))):
        check(curve, C, 0.5)
    with pytest.raises(UsageError, match=r"promises less for a contribution of 0.34 than for 0.28"):
        check(lambda c, a: a - c, C, 0.5)
    for wrong in (lambda c, a: c[:2], lambda c, a: c / 0, lambda c, a: 3):
        with pytest.raises(UsageError, match="one finite accuracy"):
            check(wrong, C, 0.5)


@pytest.mark.parametrize("points", [(0.0, 0.0), (0.0, 0.0, 1.0), (0.5, 0.1, 0.5, 0.9), (1.0, 1.0, 0.0, 0.0)])
def test_points_that_make_no_curve_are_refused(points):
    with pytest.raises(UsageError, match="pairs of numbers"):
        Contract(curve="points", points=points).promise()


def test_who_would_be_outside_the_band_is_named():
    assert outside(EqualGain(), C, 0.50, "abcd") == []
    low = outside(EqualGain(), C, 0.40, "abcd")
    assert low[0] == "Client a is promised 27.0 %, not more than the 28.0 % it reaches alone."
    high = outside(EqualGain(kappa=0.1), C, 0.80, "abcd")
    assert high[0].startswith("Client a is promised 78.7 %, above the 67.3 %")


def test_expected_fairness_grows_with_the_validation_set():
    few, many = (expected_fairness(EqualGain(), C, 0.5, n, 10_000) for n in (100, 5_000))
    assert few < many < 100
    # var a* = 0.002169, noise 0.2442 (1/5000 + 1/10000): γ = 100 √(0.002169 / 0.002242)
    assert many == pytest.approx(98.3, abs=0.1)


def test_one_client_and_equal_contributions_get_the_whole_model():
    ladder = Ladder(lambda k: k / 800)
    for brought in ([0.4], [0.4, 0.4, 0.4]):
        found = calibrate(ladder, torch.zeros(1), torch.arange(400), torch.tensor(brought).double(), EqualGain(), 4)
        assert bool(found.masks.all())


def run(**settings):
    federation = cofair.federate("digits", "pow", clients=6)
    from cofair.models import build

    return cofair.run(
        lambda: build("mlp", (1, 8, 8), 10, hidden=(40, 40)), federation, Contract(**settings), rounds=40, steps=10,
        lr=0.1, contribution={"on": "validation"}, seed=1,
    )  # fmt: skip


def test_the_promise_is_kept_on_the_validation_set_and_told_round_by_round():
    result = run()
    last = result.history[-1]
    assert last.promised is not None
    assert last.validated is not None
    gains = [a - c for a, c in zip(last.promised, result.contributions, strict=True)]
    assert max(gains) - min(gains) < 1e-9
    assert max(abs(a - b) for a, b in zip(last.promised, last.validated, strict=True)) < 0.06
    assert result.fairness > 97


def test_a_curve_of_ones_own_is_a_function():
    result = run(own_curve=lambda c, accuracy: accuracy * (c / c.max()) ** 2)
    last = result.history[-1]
    expected = [max(last.promised) * (c / max(result.contributions)) ** 2 for c in result.contributions]
    assert last.promised == pytest.approx(expected)
