"""Every scene hands out what its definition says, and always raw indices with their own labels."""

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cofair.data.scenes import LEAST, POWER, SCENES, Share, corrupt, hold_out, power_law_sizes, split
from cofair.errors import UsageError


def world(n=4000, classes=10, seed=0):
    """Raw labels of n samples, and a pool that is a scattered part of them."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, n)
    return labels, hold_out(n, 0.1, rng)[1]


def spread(scene, clients=10, samples=None, seed=0, labels=None, pool=None, classes=10, **settings):
    if labels is None:
        labels, pool = world(classes=classes)
    rng = np.random.default_rng(seed)
    return split(scene, labels[pool], pool, classes, clients, samples, rng, **settings)


def sizes(shares: list[Share]) -> list[int]:
    return [len(share) for share in shares]


def mixture(share: Share, classes=10) -> np.ndarray:
    return np.bincount(share.labels, minlength=classes) / len(share)


class TestHoldOut:
    @pytest.mark.parametrize(("n", "held"), [(50_000, 5_000), (73_257, 7_325), (60_000, 6_000), (697_932, 69_793)])
    def test_a_tenth_of_the_published_training_sets(self, n, held):
        validation, rest = hold_out(n, 0.1, np.random.default_rng(0))
        assert len(validation) == held
        assert np.array_equal(np.sort(np.concatenate([validation, rest])), np.arange(n))

    def test_a_fraction_that_rounds_badly_in_binary_is_not_one_short(self):
        assert len(hold_out(100, 0.29, np.random.default_rng(0))[0]) == 29

    def test_it_is_random_and_repeatable(self):
        first = hold_out(1000, 0.1, np.random.default_rng(0))[0]
        assert np.array_equal(first, hold_out(1000, 0.1, np.random.default_rng(0))[0])
        assert not np.array_equal(first, hold_out(1000, 0.1, np.random.default_rng(1))[0])
        assert first.max() > 500

    @pytest.mark.parametrize("fraction", [-0.1, 1.0, float("nan")])
    def test_a_fraction_outside_is_refused(self, fraction):
        with pytest.raises(UsageError, match="fraction"):
            hold_out(100, fraction, np.random.default_rng(0))


class TestEveryScene:
    @pytest.mark.parametrize("scene", SCENES)
    @pytest.mark.parametrize("clients", [3, 10])
    def test_indices_are_raw_indices_of_the_pool(self, scene, clients):
        labels, pool = world()
        shares = spread(scene, clients, labels=labels, pool=pool)
        assert len(shares) == clients
        for i, share in enumerate(shares):
            assert share.indices.dtype == share.labels.dtype == np.int64
            assert np.isin(share.indices, pool).all()
            if scene != "noisy" or i >= 3:
                assert np.array_equal(share.labels, labels[share.indices])

    @pytest.mark.parametrize("scene", sorted(set(SCENES) - {"cla"}))
    def test_no_sample_goes_to_two_clients(self, scene):
        everything = np.concatenate([share.indices for share in spread(scene)])
        assert len(np.unique(everything)) == len(everything)

    @pytest.mark.parametrize("scene", SCENES)
    def test_equal_generators_give_equal_shares(self, scene):
        for one, two in zip(spread(scene, seed=3), spread(scene, seed=3), strict=True):
            assert np.array_equal(one.indices, two.indices)
            assert np.array_equal(one.labels, two.labels)
        other = spread(scene, seed=4)[0].indices
        assert not np.array_equal(spread(scene, seed=3)[0].indices, other)

    @given(
        scene=st.sampled_from(sorted(SCENES)),
        clients=st.integers(1, 12),
        samples=st.one_of(st.none(), st.integers(20, 60)),
        seed=st.integers(0, 1000),
    )
    @settings(max_examples=60, deadline=None)
    def test_every_client_gets_samples_of_the_pool(self, scene, clients, samples, seed):
        labels, pool = world(900, classes=5, seed=seed)
        shares = spread(scene, clients, samples, seed, labels, pool, classes=5, noise=(0.5,), alpha=2.0)
        assert all(len(share.indices) == len(share.labels) > 0 for share in shares)
        assert np.isin(np.concatenate([share.indices for share in shares]), pool).all()


class TestSizes:
    def test_pow_sizes_of_the_papers(self):
        assert power_law_sizes(10, 2000)[:9] == [236, 628, 1020, 1412, 1804, 2197, 2589, 2981, 3373]
        labels, pool = world(30_000)
        published = {2000: [236, 628, 1020, 1412, 1804, 2197, 2589, 2981, 3373, 3760],
                     600: [71, 189, 306, 424, 542, 659, 777, 895, 1012, 1125]}  # fmt: skip
        for samples, expected in published.items():
            assert sizes(spread("pow", samples=samples, labels=labels, pool=pool)) == expected

    def test_pow_cuts_the_largest_client_by_the_rounding_of_the_others_only(self):
        labels, pool = np.zeros(20_000, dtype=int), np.arange(20_000)
        own = power_law_sizes(10, 2000)
        assert sizes(spread("pow", samples=2000, labels=labels, pool=pool)) == [*own[:9], 3760]
        assert 0 < own[9] - 3760 == sum(own) - 20_000 < 10

    @pytest.mark.parametrize("n", [19_999, 16_240])
    def test_pow_refuses_more_samples_than_the_pool_has_instead_of_starving_the_largest_client(self, n):
        labels, pool = np.zeros(n, dtype=int), np.arange(n)
        with pytest.raises(UsageError, match=rf"the pool has {n}: ask for at most {n // 10} per client"):
            spread("pow", samples=2000, labels=labels, pool=pool)
        assert sizes(spread("pow", samples=n // 10, labels=labels, pool=pool))[-1] > n * 0.18

    def test_pow_refuses_so_many_clients_that_rounding_leaves_one_with_nothing(self):
        labels, pool = np.zeros(1290, dtype=int), np.arange(1290)
        with pytest.raises(UsageError, match="without a sample"):
            spread("pow", clients=100, samples=12, labels=labels, pool=pool)

    def test_pow_takes_a_random_part_of_the_pool(self):
        labels, pool = np.zeros(10_000, dtype=int), np.arange(10_000)
        everything = np.concatenate([s.indices for s in spread("pow", 5, 100, labels=labels, pool=pool)])
        assert everything.max() > 5000

    def test_uni_and_noisy_are_equal_slices(self):
        for scene in ("uni", "noisy"):
            assert sizes(spread(scene, 7, 100)) == [100] * 7
            assert sizes(spread(scene, 7)) == [3600 // 7] * 7

    def test_one_client_can_have_everything(self):
        for scene in ("uni", "pow", "dir", "dir-class"):
            assert sizes(spread(scene, 1)) == [3600]


class TestCla:
    def test_client_i_owns_the_first_classes(self):
        for clients, owned in [(5, [1, 3, 5, 7, 10]), (10, range(1, 11))]:
            for share, count in zip(spread("cla", clients, 600), owned, strict=True):
                assert sorted(set(share.labels)) == list(range(count))
                assert len(share) == 600

    def test_62_classes_over_10_clients(self):
        labels, pool = world(20_000, classes=62)
        shares = spread("cla", 10, 620, labels=labels, pool=pool, classes=62)
        assert [len(set(s.labels)) for s in shares] == [1, 7, 14, 21, 28, 34, 41, 48, 55, 62]

    def test_the_remainder_comes_from_the_last_class(self):
        share = spread("cla", 4, 605)[2]  # 7 classes: 86 of each, and 3 more
        assert np.bincount(share.labels).tolist() == [86] * 6 + [89]

    def test_draws_are_with_replacement(self):
        share = spread("cla", 5, 3600)[0]  # one class, about 360 different samples
        assert len(share) == 3600
        assert len(np.unique(share.indices)) < 400

    def test_an_absent_class_or_too_few_samples_are_refused(self):
        with pytest.raises(UsageError, match="none of class 3"):
            spread("cla", 2, 50, labels=np.array([0, 1, 2] * 20), pool=np.arange(60), classes=4)
        with pytest.raises(UsageError, match="not 9"):
            spread("cla", 3, 9)


class TestDir:
    def test_the_whole_pool_is_used_in_nearly_equal_sizes(self):
        labels, pool = world(50_000)
        shares = spread("dir", labels=labels, pool=pool, alpha=3.0)
        assert np.array_equal(np.sort(np.concatenate([s.indices for s in shares])), pool)
        assert max(abs(size / 4500 - 1) for size in sizes(shares)) < 0.1

    def test_the_mixture_of_a_client_has_concentration_alpha_over_all_classes(self):
        # Dir(alpha p): E sum_k q_k^2 = (1 + alpha sum_k p_k^2) / (1 + alpha), here (1 + 0.3) / 4 = 0.325
        labels, pool = world(20_000)
        squares = [
            (mixture(share) ** 2).sum()
            for seed in range(6)
            for share in spread("dir", 20, seed=seed, labels=labels, pool=pool, alpha=3.0)
        ]
        assert np.mean(squares) == pytest.approx(0.325, abs=0.03)

    def test_dir_class_is_far_milder_at_the_same_alpha(self):
        def skew(scene):
            return np.mean([(mixture(share) ** 2).sum() for share in spread(scene, alpha=3.0)])

        assert skew("dir-class") < 0.16 < 0.25 < skew("dir")

    def test_samples_takes_a_part_of_the_pool(self):
        for scene in ("dir", "dir-class"):
            assert sum(sizes(spread(scene, 10, 100))) == 1000

    def test_unequal_and_absent_classes(self):
        labels = np.repeat([0, 2, 3], [3000, 900, 100])  # class 1 does not occur
        shares = spread("dir", 8, labels=labels, pool=np.arange(4000), classes=4, alpha=5.0)
        assert sum(sizes(shares)) == 4000
        assert max(abs(size / 500 - 1) for size in sizes(shares)) < 0.25

    @pytest.mark.parametrize("alpha", [1e-3, 1e3])
    @pytest.mark.parametrize("clients", [10, 100])
    def test_it_is_fast_at_full_size(self, clients, alpha):
        labels, pool = world(50_000)
        start = time.process_time()
        shares = spread("dir", clients, labels=labels, pool=pool, alpha=alpha)
        assert time.process_time() - start < 1
        assert min(sizes(shares)) > 0


class TestDirClass:
    @pytest.mark.parametrize("clients", [10, 100])
    def test_every_client_has_enough_and_all_is_used(self, clients):
        labels, pool = world(50_000)
        shares = spread("dir-class", clients, labels=labels, pool=pool, alpha=0.1)
        assert min(sizes(shares)) >= LEAST
        assert np.array_equal(np.sort(np.concatenate([s.indices for s in shares])), pool)

    def test_nobody_above_its_even_share_gets_another_class(self):
        # a client may pass n/N only with the last class it receives
        for clients, alpha in [(10, 0.3), (4, 1e-4)]:  # at 1e-4 a class wants to go to one client alone
            for seed in range(5):
                for share in spread("dir-class", clients, alpha=alpha, seed=seed):
                    counts = np.bincount(share.labels, minlength=10)
                    last = np.flatnonzero(counts).max()
                    assert counts[:last].sum() < 3600 / clients

    def test_an_impossible_request_says_so(self):
        with pytest.raises(UsageError, match="raise alpha"):
            spread("dir-class", 10, 9)


class TestNoisy:
    def test_the_first_clients_have_the_stated_share_of_wrong_labels(self):
        labels, pool = world(8000)
        shares = spread("noisy", 5, 600, labels=labels, pool=pool)
        wrong = [int((share.labels != labels[share.indices]).sum()) for share in shares]
        assert wrong == [120, 240, 360, 0, 0]

    @given(st.lists(st.integers(0, 6), min_size=1, max_size=60), st.floats(0, 1), st.integers(0, 99))
    @settings(deadline=None)
    def test_a_corrupted_label_is_another_class(self, labels, fraction, seed):
        labels = np.array(labels)
        seen = corrupt(labels, fraction, 7, np.random.default_rng(seed))
        assert (seen != labels).sum() == round(fraction * len(labels))
        assert seen.min() >= 0
        assert seen.max() < 7

    def test_wrong_labels_are_uniform_over_the_other_classes(self):
        seen = corrupt(np.full(9000, 4), 1.0, 10, np.random.default_rng(0))
        counts = np.bincount(seen, minlength=10)
        assert counts[4] == 0
        assert np.delete(counts, 4).min() > 900
        assert np.delete(counts, 4).max() < 1100


class TestRefusals:
    @pytest.mark.parametrize(
        ("wrong", "sentence"),
        [
            ({"scene": "pwo"}, "did you mean 'pow'"),
            ({"clients": 0}, "at least 1"),
            ({"samples": 0}, "at least 1"),
            ({"alpha": 0.0}, "above 0"),
            ({"alpha": float("nan")}, "above 0"),
            ({"scene": "noisy", "noise": (0.1, 1.5)}, "between 0 and 1"),
            ({"scene": "noisy", "clients": 2}, "3 noise fractions for 2 clients"),
            ({"samples": 361}, "at most 360 per client"),
            ({"classes": 9, "labels": np.array([0, 9]), "pool": np.array([0, 1])}, "0 to 8"),
            ({"clients": 4, "labels": np.zeros(3, dtype=int), "pool": np.arange(3)}, "without a sample"),
        ],
    )
    def test_a_wrong_request_is_one_sentence(self, wrong, sentence):
        with pytest.raises(UsageError, match=sentence):
            spread(**{"scene": "uni", **wrong})

    def test_labels_of_another_length_are_refused(self):
        labels, pool = world()
        with pytest.raises(UsageError, match="in the pool's order"):
            split("uni", labels, pool, 10, 5, None, np.random.default_rng(0))


def test_power_law_sizes_are_those_of_scipys_distribution():
    from scipy.stats import powerlaw

    b = np.linspace(powerlaw.ppf(0.01, POWER), powerlaw.ppf(0.99, POWER), 7)
    assert power_law_sizes(7, 300) == [int(np.ceil(size)) for size in b / b.sum() * 300 * 7]
