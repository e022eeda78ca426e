import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cofair.methods.rules.calibration import calibrate
from cofair.methods.rules.promises import EqualGain
from cofair.scoring.scorer import Scores

C = torch.tensor([0.28, 0.34, 0.36, 0.41], dtype=torch.float64)


class Ladder:
    """A scorer whose prefixes have a known accuracy, and which counts what it is asked."""

    def __init__(self, accuracy, samples=10**9):
        self.accuracy, self.asked, self.samples = accuracy, [], range(samples)

    def prefixes(self, base, order, counts):
        self.asked += counts.tolist()
        metric = torch.tensor([self.accuracy(int(count)) for count in counts], dtype=torch.float64)
        return Scores(torch.zeros(len(counts)), metric)


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
    assert len(ladder.asked) < 70
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


@pytest.mark.parametrize(
    ("small", "large", "whole", "nearest", "inside"),
    [
        (0.29, 0.43, 0.50, 0.43, 0.29),  # owed 37 %: 43 is nearer than 29, but above the bound of 42.1
        (0.275, 0.35, 0.43, 0.275, 0.35),  # owed 30 %: 27.5 is nearer than 35, but less than the 28 it has alone
        (0.27, 0.48, 0.50, 0.27, 0.27),  # owed 37 %: neither is inside, so that the nearest it is
    ],
)
def test_where_accuracy_jumps_a_promise_is_missed_inside_the_band(small, large, whole, nearest, inside):
    ladder = Ladder(lambda k: small if k < 200 else large if k < 400 else whole)
    brought = torch.tensor([0.28, 0.41], dtype=torch.float64)
    for wanted, expected in ((False, nearest), (True, inside)):
        found = calibrate(ladder, torch.zeros(1), torch.arange(400), brought, EqualGain(), 1, inside=wanted)
        assert found.validated.tolist() == pytest.approx([expected, whole])


def test_of_equals_the_largest_is_handed_out():
    ladder = Ladder(lambda k: 0.37 if 100 <= k < 300 else k / 800)
    found = calibrate(ladder, torch.zeros(1), torch.arange(400), C[[0, 3]], EqualGain(), pack=1)
    assert int(found.masks[0].sum()) == max(k for k in ladder.asked if k < 300)


def test_one_client_and_equal_contributions_get_the_whole_model():
    ladder = Ladder(lambda k: k / 800)
    for brought in ([0.4], [0.4, 0.4, 0.4]):
        found = calibrate(ladder, torch.zeros(1), torch.arange(400), torch.tensor(brought).double(), EqualGain(), 4)
        assert bool(found.masks.all())


def test_four_hundred_neurons_and_ten_clients_take_fewer_scores_than_fedrac():
    ladder = Ladder(lambda k: 0.5 * (k / 400) ** 0.5, samples=5_000)
    brought = torch.linspace(0.28, 0.41, 10, dtype=torch.float64)
    found = calibrate(ladder, torch.zeros(1), torch.arange(400), brought, EqualGain(), 1)
    assert len(ladder.asked) < 50  # FedRAC scores 400 / 8 prefixes
    assert float((found.validated - found.promised).abs().max()) < 0.002


def test_no_better_fit_is_looked_for_than_samples_can_tell():
    asked = []
    for samples in (50, 10_000, 10**8):
        ladder = Ladder(lambda k: k / 4_000, samples)
        found = calibrate(ladder, torch.zeros(1), torch.arange(4_000), C / 2, EqualGain(), 1)
        noise = (found.promised * (1 - found.promised) / samples).sqrt()
        assert bool(((found.validated - found.promised).abs() <= torch.maximum(noise / 4, torch.tensor(1e-3))).all())
        asked.append(len(ladder.asked))
    assert asked[0] < asked[2]
    assert asked == sorted(asked)


def test_where_accuracy_falls_and_rises_every_crossing_is_looked_at():
    # every second prefix is scored at first; 0.3 lies between three pairs of them, and is met between the farthest
    known = {9: 0.30}
    ladder = Ladder(lambda k: known.get(k, 0.2 if k < 10 else 0.4 if k < 24 else 0.29 if k < 30 else 0.5))
    brought = torch.tensor([0.1, 0.3], dtype=torch.float64)
    found = calibrate(ladder, torch.zeros(1), torch.arange(32), brought, EqualGain(), 1)
    assert found.masks.sum(1).tolist() == [9, 32]
    assert found.validated.tolist() == [0.30, 0.50]


def test_a_promise_below_every_prefix_gets_the_smallest():
    ladder = Ladder(lambda k: 0.5 + k / 1000)
    brought = torch.tensor([0.0, 0.4, 0.9], dtype=torch.float64)
    found = calibrate(ladder, torch.zeros(1), torch.arange(100), brought, EqualGain(), pack=3)
    assert found.masks.sum(1).tolist() == [3, 3, 100]


def test_one_half_chooses_and_the_other_half_tells():
    choosing, checking = Ladder(lambda k: k / 800, 3 * 10**9), Ladder(lambda k: k / 800 + 0.04, 10**9)
    found = calibrate(choosing, torch.zeros(1), torch.arange(400), C, EqualGain(), 1, checking)
    # the whole model has (3 · 0.50 + 0.54) / 4 = 0.51 on both together
    assert found.promised.tolist() == pytest.approx((C + 0.10).tolist())
    assert found.masks.sum(1).tolist() == [304, 352, 368, 400]
    assert found.validated.tolist() == pytest.approx([0.42, 0.48, 0.50, 0.54])
    assert set(checking.asked) == {304, 352, 368, 400}
