"""Losses give one value per sample, by name, from torch's modules and functions; nothing is spread over a batch."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from cofair.data.federation import Federation
from cofair.engine import losses
from cofair.errors import UsageError

OUTPUTS = torch.tensor([[0.5], [-1.0], [3.0]])
NUMBERS = torch.tensor([1.0, -1.0, 0.0])


@pytest.mark.parametrize(
    ("name", "expected"),
    [("mse", [0.25, 0, 9]), ("mae", [0.5, 0, 3]), ("huber", [0.125, 0, 2.5]), ("squared_error", [0.25, 0, 9])],
)
def test_losses_of_numbers_by_hand(name, expected):
    for targets in (NUMBERS, NUMBERS[:, None]):
        assert losses.loss(name)(OUTPUTS, targets).tolist() == pytest.approx(expected)


def test_several_numbers_of_a_sample_count_as_their_mean():
    assert losses.loss("mse")(torch.tensor([[1.0, 3.0]]), torch.tensor([[0.0, 0.0]])).tolist() == [5]


def test_the_binary_loss_of_one_logit_is_the_cross_entropy_of_two():
    labels = torch.tensor([1, 0, 1])
    two = torch.cat([torch.zeros_like(OUTPUTS), OUTPUTS], 1)
    for targets in (labels, labels.float(), labels.float()[:, None]):
        torch.testing.assert_close(losses.loss("bce")(OUTPUTS, targets), losses.cross_entropy(two, labels))


@pytest.mark.parametrize(
    ("module", "targets"),
    [
        (nn.MSELoss(), NUMBERS), (nn.L1Loss(), NUMBERS), (nn.HuberLoss(delta=2.0), NUMBERS),
        (nn.SmoothL1Loss(beta=0.5), NUMBERS), (nn.BCEWithLogitsLoss(pos_weight=torch.tensor([3.0])), NUMBERS.abs()),
    ],
)  # fmt: skip
def test_torchs_modules_are_what_they_are_in_torch(module, targets):
    values = losses.loss(module)(OUTPUTS, targets)
    assert values.shape == (3,)
    torch.testing.assert_close(values.mean(), module(OUTPUTS, targets[:, None]))
    assert module.reduction == "mean"  # the caller's own stays as it is


def test_torchs_functions_are_taken_for_the_losses_of_these_names():
    for function, name in ((F.cross_entropy, "cross_entropy"), (F.mse_loss, "mse"), (F.l1_loss, "mae")):
        assert losses.loss(function) is losses.LOSSES[name]


def test_nothing_is_spread_over_a_batch():
    with pytest.raises(UsageError, match=r"returns \(3, 3\) for labels \(3,\): let it return \(3, 1\)"):
        losses.loss("mse")(torch.zeros(3, 3), NUMBERS)


@pytest.mark.parametrize(
    ("choice", "sentence"),
    [
        (nn.BCELoss(), 'write loss="bce"'),
        (F.binary_cross_entropy, 'write loss="bce"'),
        (nn.MSELoss, r"the class MSELoss: make one of it, MSELoss\(...\)"),
        ("msee", "did you mean .mse."),
        ("mse_loss", "choose one of cross_entropy"),
    ],
)
def test_what_cannot_be_taken_says_what_to_write_instead(choice, sentence):
    with pytest.raises(UsageError, match=sentence):
        losses.loss(choice)


def test_values_of_wrong_shape_say_how_to_mend_them():
    with pytest.raises(UsageError, match=r"add \.flatten\(1\)\.mean\(1\)"):
        losses.check_loss(torch.zeros(4, 2), 4)
    with pytest.raises(UsageError, match="use reduction='none'"):
        losses.check_loss(torch.zeros(()), 4)


def federation(labels, **settings):
    return Federation([(torch.zeros(len(labels), 1), labels)], test=(torch.zeros(len(labels), 1), labels), **settings)


@pytest.mark.parametrize(
    ("loss", "columns", "labels", "sentence"),
    [
        ("cross_entropy", 1, torch.tensor([0, 1]), r'must return \(2, 2\) or more, or choose loss="bce"'),
        (nn.CrossEntropyLoss(), 1, torch.tensor([0, 1]), r"must return \(2, 2\) or more"),
        ("cross_entropy", 2, torch.tensor([0.3, 1.2]), 'as "mse"'),
        ("bce", 1, torch.tensor([0, 2]), 'not 3 classes: loss="cross_entropy"'),
        ("bce", 1, torch.tensor([0.0, 2.0]), 'choose loss="mse"'),
    ],
)
def test_a_misfit_of_loss_and_labels_says_what_to_write(loss, columns, labels, sentence):
    with pytest.raises(UsageError, match=sentence):
        losses.check_fit(losses.loss(loss), torch.zeros(2, columns), federation(labels))


def test_outputs_without_columns_are_refused():
    with pytest.raises(UsageError, match="without a last squeeze"):
        losses.check_fit(losses.loss("mse"), torch.zeros(2), federation(NUMBERS))


@pytest.mark.parametrize(
    ("loss", "classes", "metric"),
    [
        ("cross_entropy", 3, "accuracy"), ("bce", 2, "accuracy"), ("bce", None, "accuracy"), ("mae", None, "r2"),
        ("mse", 5, "r2"), ("squared_error", 5, "accuracy"), ("squared_error", None, "r2"), (nn.L1Loss(), None, "r2"),
    ],
)  # fmt: skip
def test_a_loss_has_its_usual_metric(loss, classes, metric):
    assert losses.usual_metric(losses.loss(loss), classes) == metric


def test_real_labels_0_and_1_can_be_read_as_classes():
    for labels in (torch.tensor([0.0, 1.0, 1.0]), torch.tensor([[0.0], [1.0], [1.0]])):
        whole = federation(labels).with_classes()
        assert (whole.labels.tolist(), whole.classes, whole.test.y.dtype) == ([0, 1, 1], 2, torch.int64)
    others = federation(torch.tensor([0.0, 0.5, 1.0]))
    assert others.with_classes() is others


def imbalanced(**settings):
    labels = torch.tensor([0, 0, 0, 1])
    return Federation([(torch.zeros(4, 1), labels)], test=(torch.zeros(4, 1), labels), **settings)


def test_class_weights_multiply_the_loss_of_their_classes():
    outputs, targets = torch.randn(3, 2), torch.tensor([0, 1, 1])
    plain = losses.cross_entropy(outputs, targets)
    own = losses.weighted(losses.cross_entropy, [1.0, 3.0], imbalanced())
    torch.testing.assert_close(own(outputs, targets), plain * torch.tensor([1.0, 3, 3]))


def test_balanced_weights_are_those_of_the_validation_set():
    seen = torch.tensor([0, 0, 0, 0, 1])  # not the 3 : 1 of the clients
    own = losses.weighted(losses.loss("bce"), "balanced", imbalanced(validation=(torch.zeros(5, 1), seen)))
    assert own.weights.tolist() == pytest.approx([5 / 8, 5 / 2])


@pytest.mark.parametrize(
    ("loss", "weights", "validation", "sentence"),
    [
        ("bce", "balanced", None, "which does not exist: give 2 numbers"),
        ("bce", "balanced", (torch.zeros(2, 1), torch.tensor([1, 1])), "which has no sample of class 0"),
        ("bce", [1.0], None, "must be 2 numbers"),
        (nn.CrossEntropyLoss(weight=torch.ones(2)), [1.0, 1.0], None, "class weights of its own"),
    ],
)
def test_class_weights_that_cannot_be_are_refused(loss, weights, validation, sentence):
    with pytest.raises(UsageError, match=sentence):
        losses.weighted(losses.loss(loss), weights, imbalanced(validation=validation))


def test_real_numbers_have_no_class_weights():
    with pytest.raises(UsageError, match="labels are real numbers: leave class_weights out"):
        losses.weighted(losses.loss("mse"), [1.0, 1.0], federation(NUMBERS))
