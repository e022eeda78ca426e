"""What clients minimise: a loss gives one value per sample, its mean over a batch is the objective.

The value of a sample may depend on that sample only: batches of all clients are computed together, and padded. A torch
loss with class weights therefore counts as the plain mean of weighted values, not divided by the sum of weights.
"""

import copy
import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cofair.data.federation import Federation
from cofair.errors import UsageError, nearest

Loss = Callable[[Tensor, Tensor], Tensor]


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the cross entropy of each sample: the default loss."""
    return F.cross_entropy(outputs, targets, reduction="none")


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the squared error of each sample, summed over outputs; classes count as vectors of 0 and 1."""
    if not targets.is_floating_point():
        targets = F.one_hot(targets, outputs.shape[1]).to(outputs.dtype)
    return (outputs.flatten(1) - targets.reshape(len(targets), -1)).square().sum(1)


@dataclass(frozen=True, eq=False)
class NumberByNumber:
    """A loss that compares each output with a number; of several outputs per sample it is the mean.

    Labels (n,) belong to outputs (n, 1): they are never spread over (n, n).
    """

    name: str
    each: Callable[[Tensor, Tensor], Tensor]  # of outputs and labels of one shape, nothing reduced

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of each sample."""
        found, wanted = outputs.flatten(1), targets.reshape(len(targets), -1).to(outputs.dtype)
        if found.shape != wanted.shape:
            columns = wanted.shape[1]
            raise UsageError(
                f"The loss {self.name} compares outputs with labels number by number, but the model returns "
                f"{tuple(outputs.shape)} for labels {tuple(targets.shape)}: let it return ({len(targets)}, {columns}), "
                'or choose loss="cross_entropy" for classes.'
            )
        return self.each(found, wanted).mean(1)


class Binary(NumberByNumber):
    """The same of logits with labels 0 and 1."""


def bce(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the binary cross entropy of logits, one per element."""
    return F.binary_cross_entropy_with_logits(outputs, targets, reduction="none")


def squared(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the squared error of each element."""
    return F.mse_loss(outputs, targets, reduction="none")


def absolute(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the absolute error of each element."""
    return F.l1_loss(outputs, targets, reduction="none")


def huber(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the Huber loss of each element: half the squared error up to 1, from there on the absolute error − 1/2."""
    return F.huber_loss(outputs, targets, reduction="none")


LOSSES: dict[str, Loss] = {
    "cross_entropy": cross_entropy,
    "bce": Binary("bce", bce),
    "mse": NumberByNumber("mse", squared),
    "mae": NumberByNumber("mae", absolute),
    "huber": NumberByNumber("huber", huber),
    "squared_error": squared_error,
}
_FUNCTIONS: dict[Any, str] = {  # torch's own, which by themselves return a mean
    F.cross_entropy: "cross_entropy", F.binary_cross_entropy_with_logits: "bce", F.mse_loss: "mse", F.l1_loss: "mae",
    F.huber_loss: "huber",
}  # fmt: skip
_OF_LOGITS = (nn.BCEWithLogitsLoss,)
_OF_NUMBERS = (nn.MSELoss, nn.L1Loss, nn.HuberLoss, nn.SmoothL1Loss)


def loss(choice: str | Loss, device: torch.device | None = None, dtype: torch.dtype | None = None) -> Loss:
    """Resolve a loss: a name, a torch loss module (a copy, moved, its reduction set to none), or any callable."""
    if isinstance(choice, str):
        if choice not in LOSSES:
            raise UsageError(f"Unknown loss {choice!r}: {nearest(choice, LOSSES)}")
        return LOSSES[choice]
    if not callable(choice):
        raise UsageError(f"loss must be a name or a callable, but is {choice!r}.")
    if isinstance(choice, type):
        raise UsageError(f"loss is the class {choice.__name__}: make one of it, {choice.__name__}(...).")
    if choice is F.binary_cross_entropy or isinstance(choice, nn.BCELoss):
        raise UsageError(
            'BCELoss takes probabilities, and metrics read logits: write loss="bce" (or nn.BCEWithLogitsLoss()) and '
            "leave the last sigmoid out of the model."
        )
    if isinstance(choice, Hashable) and choice in _FUNCTIONS:
        return LOSSES[_FUNCTIONS[choice]]
    if not isinstance(choice, nn.Module):
        return choice
    module = copy.deepcopy(choice).to(device=device, dtype=dtype)
    if hasattr(module, "reduction"):
        module.reduction = "none"  # type: ignore[assignment]
    if isinstance(module, _OF_LOGITS):
        return Binary(type(module).__name__, module)
    return NumberByNumber(type(module).__name__, module) if isinstance(module, _OF_NUMBERS) else module


@dataclass(frozen=True, eq=False)
class Weighted:
    """A loss of which each sample's value counts as much as its class weighs."""

    loss: Loss
    weights: Tensor  # (classes,)

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the weighted loss of each sample."""
        values = self.loss(outputs, targets)
        return values * self.weights[targets].to(values.dtype)


def weighted(own: Loss, weights: Literal["balanced"] | Sequence[float], federation: Federation) -> Weighted:
    """Return a loss with class weights: numbers, or such that all classes of the validation set weigh the same.

    Only the server's own labels are counted, so that no client has to tell how its classes are spread.
    """
    classes, validation = federation.classes, federation.validation
    if classes is None:
        raise UsageError("class_weights weigh classes, but the labels are real numbers: leave class_weights out.")
    if getattr(own, "weight", None) is not None:
        raise UsageError("The loss has class weights of its own: leave out these or class_weights.")
    if isinstance(weights, str):
        counts = torch.zeros(classes) if validation is None else torch.bincount(validation.y, minlength=classes)
        if not bool(counts.all()):
            missing = f"has no sample of class {int((counts == 0).nonzero()[0])}" if validation else "does not exist"
            raise UsageError(
                f'class_weights = "balanced" counts the classes of the server\'s validation set, which {missing}: give '
                f"{classes} numbers instead."
            )
        weights = (counts.sum() / (classes * counts)).tolist()
    if len(weights) != classes or not all(math.isfinite(weight) and weight >= 0 for weight in weights):
        raise UsageError(f"class_weights must be {classes} numbers of at least 0, one per class, not {list(weights)}.")
    return Weighted(own, torch.tensor(weights, device=federation.device))


def of_classes(own: Loss) -> bool:
    """Say whether a loss is a cross entropy, of an output for each class."""
    return own is cross_entropy or isinstance(own, nn.CrossEntropyLoss)


def usual_metric(own: Loss, classes: int | None) -> str:
    """Return the metric that goes with a loss, where none is named: R² of real numbers, accuracy of classes."""
    if isinstance(own, Binary) or of_classes(own):
        return "accuracy"
    return "r2" if classes is None or isinstance(own, NumberByNumber) else "accuracy"


def check_fit(own: Loss, outputs: Tensor, federation: Federation) -> None:
    """Refuse outputs (n, ...) that a loss cannot compare with a federation's labels, and say what to write instead."""
    if isinstance(own, Weighted):
        own = own.loss
    classes, labels, shape = federation.classes, federation.labels, tuple(outputs.shape)
    if outputs.dim() < 2:
        raise UsageError(f"The model returns {shape} for two samples: let it return (2, 1), without a last squeeze.")
    if of_classes(own) and classes is not None and (outputs.dim() != 2 or outputs.shape[1] < classes):
        single = ', or choose loss="bce" for a single logit' if classes == 2 and shape == (2, 1) else ""
        raise UsageError(
            f"The model returns outputs of shape {shape} for two samples, but the federation has {classes} classes: it "
            f"must return (2, {classes}) or more{single}."
        )
    if of_classes(own) and classes is None and labels.shape[1:] != outputs.shape[1:]:
        whole = labels.dim() == 1 and bool((labels == labels.round()).all())
        remedy = (
            "give classes as integers, y.long() or y.astype(int)" if whole else 'choose another loss, such as "mse"'
        )
        raise UsageError(f"The labels are real numbers, which cross entropy does not take: {remedy}.")
    if isinstance(own, Binary) and classes is not None and classes > 2:
        raise UsageError(f'The loss {own.name} is for labels 0 and 1, not {classes} classes: loss="cross_entropy".')
    if isinstance(own, Binary) and classes is None and bool(((labels < 0) | (labels > 1)).any()):
        raise UsageError(f'The loss {own.name} is for labels from 0 to 1, but some are not: choose loss="mse".')


def check_loss(values: object, batch: int) -> None:
    """Refuse a loss that does not give one value per sample: padding could not be left out."""
    if isinstance(values, Tensor) and tuple(values.shape) == (batch,):
        return
    got = f"shape {tuple(values.shape)}" if isinstance(values, Tensor) else type(values).__name__
    several = isinstance(values, Tensor) and values.dim() > 1 and len(values) == batch
    remedy = "add .flatten(1).mean(1)" if several else "use reduction='none'"
    raise UsageError(
        f"The loss must return one value per sample, shape ({batch},) for a batch of {batch}, but returned {got}: "
        f"{remedy}."
    )
