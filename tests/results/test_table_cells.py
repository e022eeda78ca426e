"""Each rule reads the rounds it says, and `joint` and `last` never look at the test set to choose."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cofair.errors import UsageError
from cofair.metrics import fairness, rate
from cofair.results.table_cells import RULES, read

C = [0.2, 0.3, 0.5]


def history(*rows):
    return np.array(rows, dtype=float)


class TestBest:
    def test_each_metric_has_its_own_best_round(self):
        accuracies = history(
            [0.50, 0.50, 0.50],  # round 1: everyone the same, fairness undefined; best minimum, best mean
            [0.25, 0.35, 0.55],  # round 2: perfectly fair, everyone within the bound
            [0.10, 0.05, 0.90],  # round 3: best maximum
        )
        cell = read("best", [1, 2, 3], C, accuracies)
        assert cell.fairness == pytest.approx(100)
        assert (cell.max, cell.mean, cell.min, cell.rate) == (0.90, 0.5, 0.5, 1.0)
        assert cell.rounds == (1, 2, 3)
        assert cell.rule == "best"

    def test_rounds_name_only_what_was_read(self):
        accuracies = history([0.2, 0.3, 0.4], [0.3, 0.4, 0.6], [0.1, 0.2, 0.1])
        assert read("best", [10, 20, 30], C, accuracies).rounds == (20,)

    def test_fairness_that_is_never_defined_is_none(self):
        cell = read("best", [1, 2], C, history([0.1, 0.1, 0.1], [0.55, 0.55, 0.55]))
        assert cell.fairness is None
        assert cell.max == 0.55
        assert cell.rounds == (2,)

    def test_a_diverged_round_is_passed_over(self):
        cell = read("best", [1, 2], C, history([0.3, 0.4, 0.6], [np.nan] * 3))
        assert cell.fairness == pytest.approx(100)
        assert (cell.max, cell.rounds) == (0.6, (1,))


class TestJoint:
    test = history([0.21, 0.31, 0.51], [0.30, 0.60, 0.40], [0.30, 0.41, 0.70], [0.40, 0.30, 0.75])

    def test_the_fairest_round_on_validation_among_the_accurate_ones(self):
        validation = history(
            [0.20, 0.30, 0.50],  # perfectly fair, but an early fluke: 0.21 below the best
            [0.30, 0.40, 0.70],  # within a point of 0.71, correlation 99.6
            [0.30, 0.71, 0.40],  # most accurate, unfair
            [0.30, 0.41, 0.69],  # fairer than round 6, but two points below the best
        )
        assert fairness(C, validation[1]) < fairness(C, validation[3]) < fairness(C, validation[0])
        cell = read("joint", [5, 6, 7, 8], C, self.test, validation)
        assert cell.rounds == (6,)
        a = self.test[1]
        assert cell.fairness == pytest.approx(fairness(C, a))
        assert (cell.max, cell.min, cell.rate) == (a.max(), a.min(), rate(C, a))
        assert cell.mean == pytest.approx(a.mean())

    def test_exactly_one_point_below_counts(self):
        validation = history([0.3, 0.4, 0.70], [0.3, 0.71, 0.4])  # 0.71 - 0.70 > 0.01 in binary
        assert read("joint", [1, 2], C, self.test[:2], validation).rounds == (1,)

    def test_where_fairness_is_undefined_the_most_accurate_round_is_read(self):
        validation = history([0.700] * 3, [0.705] * 3)
        cell = read("joint", [1, 2], C, history([0.6] * 3, [0.5] * 3), validation)
        assert cell.rounds == (2,)
        assert cell.fairness is None
        assert cell.max == 0.5

    def test_an_undefined_round_never_beats_an_unfair_one(self):
        validation = history([0.7] * 3, [0.7, 0.6, 0.5])
        assert read("joint", [1, 2], C, self.test[:2], validation).rounds == (2,)

    @given(st.integers(0, 99))
    @settings(deadline=None, max_examples=20)
    def test_the_choice_does_not_depend_on_the_test_set(self, seed):
        rng = np.random.default_rng(seed)
        validation, one, two = rng.random((3, 6, 3))
        assert read("joint", range(6), C, one, validation).rounds == read("joint", range(6), C, two, validation).rounds

    def test_without_validation_accuracies_it_says_how_to_get_them(self):
        with pytest.raises(UsageError, match=r"run\.joint = true"):
            read("joint", [1], C, history([0.1, 0.2, 0.3]))


class TestLast:
    def test_mean_over_the_final_ten_rounds(self):
        rounds = np.arange(1, 31)
        accuracies = np.tile(np.array([0.3, 0.4, 0.6]), (30, 1))
        accuracies[:20] += 0.1  # rounds 1 to 20 are not among the final ten
        accuracies[29] += 0.05
        cell = read("last", rounds, C, accuracies)
        assert cell.rounds == tuple(range(21, 31))
        assert cell.max == pytest.approx(0.605)
        assert cell.mean == pytest.approx(1.3 / 3 + 0.005)
        assert cell.min == pytest.approx(0.305)

    def test_only_evaluated_rounds_count(self):
        accuracies = history([0.9] * 3, [0.3, 0.4, 0.6], [0.4, 0.5, 0.7])
        assert read("last", [90, 95, 100], C, accuracies).rounds == (95, 100)
        assert read("last", [90, 91, 100], C, accuracies).rounds == (91, 100)
        assert read("last", [50, 75, 100], C, accuracies).rounds == (100,)

    def test_undefined_fairness_is_left_out_of_the_mean(self):
        cell = read("last", [1, 2], C, history([0.4, 0.4, 0.4], [0.3, 0.4, 0.6]))
        assert cell.fairness == pytest.approx(100)
        assert cell.max == pytest.approx(0.5)  # the accuracies of that round do count
        assert read("last", [1], C, history([0.4, 0.4, 0.4])).fairness is None

    def test_rates_are_averaged(self):
        # C needs more than 0.2, 0.3, 0.5: all three, then only the last
        accuracies = history([0.25, 0.35, 0.55], [0.15, 0.25, 0.55])
        assert read("last", [1, 2], C, accuracies).rate == pytest.approx(2 / 3)


class TestAllRules:
    @given(st.integers(0, 99), st.sampled_from(sorted(RULES)))
    @settings(deadline=None, max_examples=30)
    def test_one_round_reads_the_same_under_every_rule(self, seed, rule):
        a = np.random.default_rng(seed).random((1, 3))
        cell = read(rule, [7], C, a, a)
        assert cell.rounds == (7,)
        assert cell.fairness == pytest.approx(fairness(C, a[0]))
        assert (cell.max, cell.min) == (a.max(), a.min())

    @given(st.integers(0, 99), st.sampled_from(sorted(RULES)))
    @settings(deadline=None, max_examples=30)
    def test_nothing_reads_better_than_best(self, seed, rule):
        a, v = np.random.default_rng(seed).random((2, 15, 3))
        best, cell = read("best", range(15), C, a), read(rule, range(15), C, a, v)
        for name in ("fairness", "max", "mean", "min", "rate"):
            assert getattr(cell, name) <= getattr(best, name) + 1e-12

    def test_alpha_reaches_the_rate(self):
        a = history([0.5, 0.5, 0.6])
        assert read("best", [1], C, a, alpha=0.0).rate == pytest.approx(1 / 3)
        assert read("best", [1], C, a, alpha=1.0).rate == 1

    def test_refusals(self):
        with pytest.raises(UsageError, match="history is empty"):
            read("best", [], C, np.empty((0, 3)))
        with pytest.raises(UsageError, match="did you mean 'joint'"):
            read("jont", [1], C, history([0.1, 0.2, 0.3]))
        with pytest.raises(UsageError, match=r"it must be \(2, 3\)"):
            read("best", [1, 2], C, history([0.1, 0.2, 0.3]))
        with pytest.raises(UsageError, match="validation accuracies of shape"):
            read("joint", [1], C, history([0.1, 0.2, 0.3]), history([0.1, 0.2]))
