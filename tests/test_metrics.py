"""Fairness on cases one can do by hand, and against numpy."""

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from cofair import metrics
from cofair.errors import UsageError

values = st.lists(st.integers(0, 1000).map(lambda k: k / 1000), min_size=2, max_size=12)
pairs = st.integers(2, 12).flatmap(
    lambda n: st.tuples(*[st.lists(st.integers(0, 1000), min_size=n, max_size=n) for _ in "ca"])
)


class TestFairness:
    def test_the_example_of_the_fedsac_paper(self):
        # c - mean = (-6, 2, 4), a - mean = (-1/6, 1/30, 2/15): r = 1.6 / sqrt(56 * 7/150) = 0.98974
        gamma = metrics.fairness([1, 9, 11], [99, 99.2, 99.3])
        assert gamma == pytest.approx(98.97, abs=0.005)
        assert gamma == pytest.approx(160 / np.sqrt(56 * 7 / 150), abs=1e-9)

    def test_perfectly_fair_and_perfectly_unfair(self):
        assert metrics.fairness([0.1, 0.2, 0.4], [0.5, 0.6, 0.8]) == pytest.approx(100)
        assert metrics.fairness([0.1, 0.2], [0.6, 0.5]) == pytest.approx(-100)

    @given(pairs)
    @settings(deadline=None)
    def test_it_is_numpys_correlation(self, pair):
        c, a = pair
        assume(len(set(c)) > 1 and len(set(a)) > 1)
        assert metrics.fairness(c, a) == pytest.approx(100 * np.corrcoef(c, a)[0, 1], abs=1e-7)

    @given(pairs, st.floats(0.01, 100), st.floats(-10, 10), st.floats(-100, -0.01))
    @settings(deadline=None)
    def test_units_and_offsets_do_not_matter(self, pair, scale, shift, negative):
        c, a = np.array(pair, dtype=float) / 1000
        assume(np.ptp(c) > 0 and np.ptp(a) > 0)
        gamma = metrics.fairness(c, a)
        assert metrics.fairness(scale * c + shift, a) == pytest.approx(gamma, abs=1e-4)
        assert metrics.fairness(c, negative * a + shift) == pytest.approx(-gamma, abs=1e-4)

    def test_sizes_from_tiny_to_huge_neither_underflow_nor_overflow(self):
        for scale in (1e-200, 1e200):
            assert metrics.fairness([1 * scale, 9 * scale, 11 * scale], [99, 99.2, 99.3]) == pytest.approx(
                98.974, abs=1e-3
            )

    @pytest.mark.parametrize(
        ("c", "a"),
        [
            ([], []),
            ([0.5], [0.5]),
            ([0.3, 0.3, 0.3], [0.1, 0.2, 0.3]),
            ([0.1, 0.2, 0.3], [0.7, 0.7, 0.7]),
            ([0.1, 0.2, 0.3], [0.3, 0.1 + 0.2, 0.3]),
            ([0.1, 0.2], np.array([0.7, np.nextafter(np.float32(0.7), 1)], dtype=np.float32)),
            ([0.0, 0.0], [0.1, 0.2]),
            ([0.1, float("nan")], [0.1, 0.2]),
            ([0.1, 0.2], [0.1, float("inf")]),
        ],
    )
    def test_undefined(self, c, a):
        assert metrics.fairness(c, a) is None

    def test_lists_arrays_and_tensors_are_one(self):
        c, a = [0.1, 0.3, 0.2], [0.5, 0.6, 0.7]
        expected = metrics.fairness(c, a)
        assert metrics.fairness(np.array(c), np.array(a)) == expected
        assert metrics.fairness(torch.tensor(c, dtype=torch.float64), torch.tensor(a).double().requires_grad_()) == (
            pytest.approx(expected, abs=1e-4)
        )

    def test_wrong_lengths_are_refused(self):
        for a in ([0.1], [[0.1, 0.2]]):
            with pytest.raises(UsageError, match="shape"):
                metrics.fairness([0.1, 0.2], a)

    def test_by_round_is_one_value_a_row(self):
        c = [0.1, 0.2, 0.4]
        a = [[0.5, 0.6, 0.8], [0.5, 0.5, 0.5], [0.8, 0.7, 0.1]]
        got = metrics.fairness_by_round(c, a)
        assert got[0] == pytest.approx(100)
        assert np.isnan(got[1])
        assert got[2] == pytest.approx(metrics.fairness(c, a[2]))


class TestBounds:
    def test_bcf_by_hand(self):
        # max a = 0.8: upper bounds 0.5, 0.55, 0.6 and none for the best client
        c, a = [0.2, 0.3, 0.4, 0.5], [0.45, 0.55, 0.39, 0.8]
        lower, upper = metrics.bounds(c, a)
        assert lower.tolist() == c
        assert upper == pytest.approx([0.5, 0.55, 0.6, np.inf])
        assert metrics.bounded(c, a).tolist() == [True, False, False, True]

    def test_bcf_still_asks_the_best_client_to_gain(self):
        assert metrics.bounded([0.2, 0.9], [0.4, 0.8]).tolist() == [True, False]

    def test_bcf_of_equal_rewards_exempts_only_the_best_contributor(self):
        assert metrics.bounded([0.2, 0.5, 0.3], [0.8, 0.8, 0.8]).tolist() == [False, True, False]

    def test_alpha_bound_by_hand(self):
        # alpha 0.5, max c = 0.4, max a = 0.8: upper = (0.5 c / 0.4 + 0.5) 0.8 = c + 0.4
        c, a = [0.1, 0.2, 0.25, 0.4], [0.5, 0.61, 0.25, 0.8]
        lower, upper = metrics.alpha_bounds(c, a)
        assert lower.tolist() == c
        assert upper == pytest.approx([0.5, 0.6, 0.65, 0.8])
        assert metrics.within_alpha_bound([0.125, 0.2, 0.25, 0.5], [0.5, 0.61, 0.25, 0.8]).tolist() == [
            True, False, False, True
        ]  # fmt: skip
        assert metrics.rate([0.125, 0.2, 0.25, 0.5], [0.5, 0.61, 0.25, 0.8]) == 0.5

    def test_the_upper_bound_is_closed_and_the_lower_open(self):
        # max c = 0.5, max a = 0.75: client 0 may have exactly (0.5 * 0.5 + 0.5) 0.75 = 0.5625
        assert metrics.within_alpha_bound([0.25, 0.5], [0.5625, 0.75]).tolist() == [True, True]
        assert metrics.within_alpha_bound([0.25, 0.5], [0.25, 0.75]).tolist() == [False, True]

    def test_a_client_below_its_contribution_costs_one_share_not_ten(self):
        assert metrics.rate([0.5, 0.4, 0.3, 0.2], [0.6, 0.5, 0.2, 0.3]) == 0.75

    @given(pairs, st.floats(0, 1), st.randoms(use_true_random=False))
    @settings(deadline=None)
    def test_rate_ignores_the_order_of_clients_and_grows_with_alpha(self, pair, alpha, random):
        c, a = np.array(pair, dtype=float) / 1000
        order = random.sample(range(len(c)), len(c))
        assert metrics.rate(c[order], a[order], alpha) == metrics.rate(c, a, alpha)
        assert metrics.rate(c, a, alpha) <= metrics.rate(c, a, 1.0) == np.mean(a > c)

    @given(values, st.floats(0, 1), st.floats(0.001, 1))
    @settings(deadline=None)
    def test_no_rounding_puts_the_best_contributor_outside(self, c, alpha, gain):
        a = np.array(c) + gain
        assert metrics.within_alpha_bound(c, a, alpha)[np.argmax(c)]

    def test_a_client_without_a_value_spoils_nobody_else(self):
        assert metrics.within_alpha_bound([0.2, 0.3, 0.4], [0.3, np.nan, 0.8]).tolist() == [True, False, True]
        assert metrics.within_alpha_bound([0.2, np.inf, 0.4], [0.3, 0.5, 0.8], 1.0).tolist() == [True, False, True]
        assert metrics.bounded([0.2, 0.3, 0.4], [0.3, np.nan, 0.8]).tolist() == [True, False, True]
        assert metrics.rate([0.2, 0.3], [np.nan, np.nan]) == 0

    def test_where_nobody_brings_anything_all_may_have_the_best(self):
        assert metrics.rate([0.0, 0.0], [0.5, 0.7]) == 1

    def test_refusals(self):
        with pytest.raises(UsageError, match="between 0 and 1"):
            metrics.rate([0.1], [0.2], alpha=1.5)
        with pytest.raises(UsageError, match="no clients"):
            metrics.rate([], [])


class TestCollaborationGain:
    def test_by_hand(self):
        alone, rewards = [0.2, 0.4, 0.6], [[0.3, 0.6, 0.9], [0.3, 0.5, 0.7]]  # gains 10, 20, 30 points, then all 10
        assert metrics.mean_collaboration_gain(alone, rewards) == pytest.approx([0.2, 0.1])
        assert metrics.collaboration_gain_spread(alone, rewards) == pytest.approx([(0.02 / 3) ** 0.5, 0.0])

    def test_a_client_that_has_no_accuracy_leaves_them_undefined(self):
        assert np.isnan(metrics.mean_collaboration_gain([0.2, 0.4], [0.3, np.nan]))
        assert np.isnan(metrics.collaboration_gain_spread([0.2, 0.4], [0.3, np.nan]))

    def test_there_must_be_clients(self):
        for metric in (metrics.mean_collaboration_gain, metrics.collaboration_gain_spread):
            with pytest.raises(UsageError, match="no clients"):
                metric([], [])


class TestBootstrap:
    c = np.linspace(0.2, 0.5, 12)

    def test_it_holds_the_estimate_and_narrows_with_the_level(self):
        a = self.c + 0.02 * np.cos(7 * np.arange(12))
        low, high = metrics.bootstrap_interval(self.c, a)
        assert low < metrics.fairness(self.c, a) < high <= 100
        inner = metrics.bootstrap_interval(self.c, a, level=0.5)
        assert low < inner[0] < inner[1] < high

    def test_it_is_the_percentile_of_resampled_correlations(self):
        a = self.c + 0.1 * np.cos(7 * np.arange(12))
        rng = np.random.default_rng(5)
        chosen = rng.integers(0, 12, (300, 12))
        slow = [100 * np.corrcoef(self.c[k], a[k])[0, 1] for k in chosen]
        got = metrics.bootstrap_interval(self.c, a, level=0.9, draws=300, seed=5)
        assert got == pytest.approx(np.quantile(slow, [0.05, 0.95]))

    def test_a_perfect_line_has_no_width(self):
        assert metrics.bootstrap_interval(self.c, 2 * self.c) == pytest.approx((100, 100))

    def test_a_round_without_a_fairness_is_left_out_as_the_table_cell_leaves_it_out(self):
        a = self.c + 0.1 * np.cos(7 * np.arange(12))
        equal = np.full(12, 0.5)
        alone = metrics.bootstrap_interval(self.c, a)
        assert metrics.bootstrap_interval(self.c, np.stack([a, equal])) == pytest.approx(alone)
        assert metrics.bootstrap_interval(self.c, np.stack([equal, equal])) is None

    def test_nothing_to_say(self):
        assert metrics.bootstrap_interval(self.c[:7], self.c[:7] ** 2) is None
        assert metrics.bootstrap_interval(self.c, np.full(12, 0.5)) is None
        lonely = np.zeros(12)
        lonely[3] = 1  # (11/12)^12 = 35 % of the resamples miss the only client that differs
        assert metrics.bootstrap_interval(self.c, lonely) is None

    def test_refusals(self):
        with pytest.raises(UsageError, match="level"):
            metrics.bootstrap_interval(self.c, self.c, level=95)
