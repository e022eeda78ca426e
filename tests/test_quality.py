"""What judges models by their outputs: cases one can do by hand, and scikit-learn on many models at once."""

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sklearn.metrics import (
    balanced_accuracy_score,
    d2_absolute_error_score,
    d2_log_loss_score,
    f1_score,
    r2_score,
    roc_auc_score,
)

from cofair import metrics, quality
from cofair.errors import UsageError

OF_CLASSES = ("accuracy", "balanced_accuracy", "auroc", "f1", "log_loss")
OF_NUMBERS = ("r2", "mae", "c_index")


def outputs(n=200, classes=4, models=(3, 2), seed=0, distinct=None):
    """Logits with, if asked, only so many distinct rows a model, so that scores tie exactly."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(*models, distinct or n, classes, generator=generator, dtype=torch.float64)
    rows = torch.randint(logits.shape[-2], (n,), generator=generator) if distinct else torch.arange(n)
    targets = torch.randint(classes, (n,), generator=generator)
    return logits[..., rows, :] + 0.7 * torch.nn.functional.one_hot(targets, classes), targets


class TestQuality:
    def test_accuracy_by_hand(self):
        logits = torch.tensor([[2.0, 1.0], [0.0, 1.0], [3.0, 0.0]])
        assert metrics.accuracy(logits, torch.tensor([0, 1, 1])).item() == pytest.approx(2 / 3)
        # class 0: 1 of 1, class 1: 1 of 2
        assert metrics.balanced_accuracy(logits, torch.tensor([0, 1, 1])).item() == 0.75

    def test_auroc_by_hand(self):
        # scores (log-odds) 1, -1, 3 of class 0; the positives 1 and -1 against the negative 3 never win
        logits = torch.tensor([[1.0, 0.0], [0.0, 1.0], [3.0, 0.0]])
        assert metrics.auroc(logits, torch.tensor([0, 0, 1])).item() == 0
        assert metrics.auroc(logits, torch.tensor([0, 1, 0])).item() == 1
        assert metrics.auroc(torch.zeros(4, 2), torch.tensor([0, 1, 1, 1])).item() == 0.5

    def test_all_names_are_tested_here(self):
        assert set(metrics.METRICS) == {*OF_CLASSES, *OF_NUMBERS}

    @pytest.mark.parametrize("name", sorted(metrics.METRICS))
    @pytest.mark.parametrize("models", [(), (5,), (3, 2)])
    def test_many_models_are_each_model(self, name, models):
        logits, targets = outputs(models=models)
        if name in OF_NUMBERS:
            logits, targets = logits[..., :1], targets + logits.reshape(-1, 200, 4)[0, :, 1]
        quality = metrics.metric(name)
        together = quality(logits, targets)
        assert together.shape == models
        assert together.dtype == torch.float64
        alone = [quality(one, targets) for one in logits.reshape(-1, *logits.shape[-2:])]
        torch.testing.assert_close(together.reshape(-1), torch.stack(alone), rtol=0, atol=1e-12)

    def test_balanced_accuracy_is_sklearns(self):
        logits, targets = outputs(models=())
        targets[targets == 2] = 1  # class 2 does not occur, but models still answer it
        expected = np.mean([(logits.argmax(-1)[targets == k] == k).double().mean() for k in (0, 1, 3)])
        assert metrics.balanced_accuracy(logits, targets).item() == pytest.approx(expected)
        logits, targets = outputs(models=())
        assert metrics.balanced_accuracy(logits, targets).item() == pytest.approx(
            balanced_accuracy_score(targets, logits.argmax(-1))
        )

    @pytest.mark.parametrize("distinct", [None, 7])
    @pytest.mark.parametrize("seed", range(3))
    def test_auroc_is_sklearns_with_and_without_ties(self, distinct, seed):
        logits, targets = outputs(models=(), classes=4, seed=seed, distinct=distinct)
        if distinct:  # equal rows whatever the target: real ties between classes
            logits = logits - 0.7 * torch.nn.functional.one_hot(targets, 4)
            logits = torch.round(logits, decimals=6)
        expected = roc_auc_score(targets, logits.softmax(-1), multi_class="ovr", average="macro")
        assert metrics.auroc(logits, targets).item() == pytest.approx(expected, abs=1e-12)
        binary = (targets > 1).long()
        expected = roc_auc_score(binary, logits[:, 1] - logits[:, 0])
        assert metrics.auroc(logits[:, :2], binary).item() == pytest.approx(expected, abs=1e-12)

    def test_auroc_leaves_absent_classes_out(self):
        logits, targets = outputs(models=())
        targets[targets == 2] = 0
        probabilities = logits.softmax(-1)
        expected = np.mean([roc_auc_score(targets == k, probabilities[:, k]) for k in (0, 1, 3)])
        assert metrics.auroc(logits, targets).item() == pytest.approx(expected, abs=1e-12)

    def test_auroc_tells_saturated_probabilities_apart(self):
        logits = torch.tensor([[200.0, 0.0], [300.0, 0.0], [400.0, 0.0]])  # softmax gives 1.0 three times
        assert metrics.auroc(logits, torch.tensor([1, 0, 0])).item() == 1

    def test_auroc_of_a_diverged_model_is_nan_and_of_one_class_refused(self):
        logits = torch.stack([torch.full((4, 2), torch.nan), torch.tensor([[1.0, 0], [2, 0], [0, 1], [0, 2]])])
        got = metrics.auroc(logits, torch.tensor([0, 0, 1, 1]))
        assert got[0].isnan()
        assert got[1] == 1
        with pytest.raises(UsageError, match="all are of class 1"):
            metrics.auroc(logits, torch.ones(4, dtype=torch.int64))

    @given(st.integers(0, 200), st.floats(0.1, 5), st.floats(-5, 5))
    @settings(deadline=None)
    def test_qualities_lie_between_0_and_1_and_ignore_scale_and_offset(self, seed, scale, shift):
        logits, targets = outputs(30, 2, (2,), seed)
        assume(len(set(targets.tolist())) == 2)
        for judge in (metrics.accuracy, metrics.balanced_accuracy, metrics.auroc, metrics.f1):
            value = judge(logits, targets)
            assert ((value >= 0) & (value <= 1)).all()
            torch.testing.assert_close(judge(scale * logits + shift, targets), value)

    def test_a_users_function_judges_one_model_at_a_time(self):
        logits, targets = outputs()

        def recall_of_class_0(one, wanted):
            assert one.shape == (200, 4)
            return (one[wanted == 0].argmax(-1) == 0).float().mean()

        got = metrics.metric(recall_of_class_0)(logits, targets)
        expected = (logits.argmax(-1)[..., targets == 0] == 0).double().mean(-1)
        torch.testing.assert_close(got, expected, atol=1e-6, rtol=0)

    def test_our_own_functions_stay_batched(self):
        assert metrics.metric(metrics.auroc) is metrics.auroc is metrics.metric("auroc")

    def test_refusals(self):
        logits, targets = outputs()
        with pytest.raises(UsageError, match="did you mean 'accuracy'"):
            metrics.metric("acuracy")
        with pytest.raises(UsageError, match="<lambda> returned a Tensor"):
            metrics.metric(lambda one, wanted: one.argmax(-1) == wanted)(logits, targets)
        with pytest.raises(UsageError, match=r"and \(n,\) with n >= 1"):
            metrics.accuracy(logits, targets[:5])
        with pytest.raises(UsageError, match="targets are real numbers"):
            metrics.accuracy(logits, targets.double())


class TestSingleLogit:
    def test_it_is_judged_as_two_logits_of_which_one_is_0(self):
        logits, targets = outputs(models=(3,), classes=2)
        single = logits[..., 1:] - logits[..., :1]
        for name in OF_CLASSES:
            quality = metrics.metric(name)
            torch.testing.assert_close(quality(single, targets), quality(logits, targets), rtol=0, atol=1e-9)

    def test_accuracy_by_hand(self):
        logits = torch.tensor([[0.5], [-0.5], [0.0], [2.0]])  # answers 1, 0, 0, 1
        assert metrics.accuracy(logits, torch.tensor([1, 0, 1, 1])).item() == 0.75


class TestF1:
    def test_two_classes_count_class_1(self):
        logits, targets = outputs(models=(), classes=2)
        assert metrics.f1(logits, targets).item() == pytest.approx(f1_score(targets, logits.argmax(-1)))
        with pytest.raises(UsageError, match="no sample is of class 1"):
            metrics.f1(logits, torch.zeros_like(targets))

    def test_more_classes_are_averaged_over_those_that_occur_or_are_answered(self):
        logits, targets = outputs(models=(), classes=4)
        targets[targets == 2] = 0
        logits[:, 3] = -9
        targets[targets == 3] = 1  # class 2 is only answered, class 3 neither occurs nor is answered
        assert set(logits.argmax(-1).tolist()) == {0, 1, 2}
        expected = f1_score(targets, logits.argmax(-1), average="macro")
        assert metrics.f1(logits, targets).item() == pytest.approx(expected)


class TestErrorsRemoved:
    def test_r2_and_mae_are_sklearns(self):
        logits, _ = outputs(models=(), classes=2)
        wanted = logits + torch.randn(logits.shape, generator=torch.Generator().manual_seed(1))
        for columns in (slice(0, 1), slice(0, 2)):
            given = wanted[:, columns], logits[:, columns]
            assert metrics.r2(given[1], given[0]).item() == pytest.approx(r2_score(*given))
            assert metrics.mae(given[1], given[0]).item() == pytest.approx(d2_absolute_error_score(*given))

    def test_by_hand(self):
        wanted = torch.tensor([0.0, 1.0, 2.0, 5.0])  # mean 2, squares 4, 1, 0, 9; median 1 or 2, errors 1, 0, 1, 4
        found = torch.tensor([[0.0], [1.0], [2.0], [4.0]])
        assert metrics.r2(found, wanted).item() == pytest.approx(1 - 1 / 14)
        assert metrics.mae(found, wanted).item() == pytest.approx(1 - 1 / 6)
        assert metrics.r2(torch.full((4, 1), 2.0), wanted).item() == 0  # the mean knows nothing

    def test_a_column_is_not_spread_over_a_row(self):
        numbers = torch.arange(4.0)
        assert (
            metrics.r2(numbers[:, None], numbers).item() == metrics.r2(numbers[:, None], numbers[:, None]).item() == 1
        )
        with pytest.raises(UsageError, match=r"a model must return \(4, 1\)"):
            metrics.r2(torch.zeros(4, 4), numbers)

    @pytest.mark.parametrize("name", ["r2", "mae"])
    def test_targets_that_are_all_equal_cannot_be_judged(self, name):
        with pytest.raises(UsageError, match="all targets are equal"):
            metrics.metric(name)(torch.zeros(4, 1), torch.ones(4))

    def test_log_loss_is_sklearns(self):
        logits, targets = outputs(models=(), classes=4)
        expected = d2_log_loss_score(targets, logits.softmax(-1))
        assert metrics.log_loss(logits, targets).item() == pytest.approx(expected)
        with pytest.raises(UsageError, match="all are of class 0"):
            metrics.log_loss(logits, torch.zeros_like(targets))

    def test_what_the_best_constant_has_is_said(self):
        assert quality.note("mae", torch.tensor([0.0, 1, 2, 5])).endswith("an absolute error of (1 − v) × 1.5.")
        assert quality.note("log_loss", torch.tensor([0, 1])).endswith("a log loss of (1 − v) × 0.6931.")
        assert quality.note("accuracy", torch.tensor([0, 1])) is None


class TestConcordance:
    def test_by_hand(self):
        times = torch.tensor([1.0, 2.0, 3.0, 3.0])  # 5 pairs of different times
        scores = torch.tensor([[1.0], [3.0], [2.0], [3.0]])  # (1, ·) right three times, (2, 3) wrong, (2, 4) a tie
        assert metrics.c_index(scores, times).item() == pytest.approx(3.5 / 5)

    def test_a_pair_counts_only_if_the_earlier_was_seen(self):
        times = torch.tensor([[1.0, 0], [2.0, 1], [3.0, 0]])  # only (2, 3) counts
        assert metrics.c_index(torch.tensor([[9.0], [2.0], [3.0]]), times).item() == 1
        with pytest.raises(UsageError, match="the earlier of which was seen"):
            metrics.c_index(torch.zeros(3, 1), times * torch.tensor([1.0, 0]))

    def test_many_pairs_are_counted_part_by_part(self, monkeypatch):
        times, scores = torch.rand(50), torch.rand(3, 50, 1)
        whole = metrics.c_index(scores, times)
        monkeypatch.setattr("cofair.quality._PAIRS_AT_ONCE", 1)
        torch.testing.assert_close(metrics.c_index(scores, times), whole)
