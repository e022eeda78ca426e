"""How good models are, judged by their outputs (..., n, C), many models at once; higher is always better.

Outputs of classes are logits: one for each class, or a single one, which says how much class 1 is to be preferred to
class 0. Errors have no place on such a scale, so they are counted by how much of them a model removes: 1 − error /
error of the best constant. Then 1 is a perfect model, 0 one that knows nothing, and a worse one is below 0.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from cofair.errors import UsageError, nearest

Metric = Callable[[Tensor, Tensor], Tensor]

_PAIRS_AT_ONCE = 2**24


def accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the share of samples whose largest output is the target; of a single output, whether it is above 0."""
    _check(outputs, targets)
    return (decisions(outputs) == targets).double().mean(-1)


def balanced_accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the share of each class's samples that are recognised, averaged over the classes that occur."""
    outputs = _logits(outputs, targets)
    members = F.one_hot(targets, outputs.shape[-1]).double()
    counts = members.sum(0)
    hits = (outputs.argmax(-1) == targets).double() @ members
    return (hits[..., counts > 0] / counts[counts > 0]).mean(-1)


def f1(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return F1 of class 1 where there are two classes, of more the mean over those that occur or are answered."""
    outputs = _logits(outputs, targets)
    classes = outputs.shape[-1]
    if classes == 2 and not bool((targets == 1).any()):
        raise UsageError("F1 is that of class 1, but no sample is of class 1.")
    members = F.one_hot(targets, classes).double()
    answers = F.one_hot(outputs.argmax(-1), classes).double()
    hits, counts = (answers * members).sum(-2), answers.sum(-2) + members.sum(0)
    each = 2 * hits / counts.clamp(min=1)
    return each[..., 1] if classes == 2 else each.sum(-1) / (counts > 0).sum(-1)


def auroc(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the area under the ROC curve of each class against the rest, averaged over the classes that occur.

    With two classes this is the ordinary area. Samples are ranked by the log-odds of the class, which order
    them as its softmax probability does but do not saturate; ties get mid-ranks. NaN outputs give NaN.
    """
    outputs = _logits(outputs, targets)
    classes = _several(targets, "AUROC").tolist()
    outputs = outputs.double()
    areas = []
    for k in classes:
        others = torch.cat([outputs[..., :k], outputs[..., k + 1 :]], -1)
        odds = outputs[..., k] - others.logsumexp(-1)
        ordered = odds.sort(-1).values
        ranks = (torch.searchsorted(ordered, odds) + torch.searchsorted(ordered, odds, right=True) + 1) / 2
        own = (targets == k).double()
        positive, negative = own.sum(), (1 - own).sum()
        above = (ranks.double() * own).sum(-1) - positive * (positive + 1) / 2
        areas.append(torch.where(odds.isnan().any(-1), torch.nan, above / (positive * negative)))
    return torch.stack(areas).mean(0)


def log_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return how much of the log loss a model removes that the shares of the classes alone would have."""
    outputs = _logits(outputs, targets)
    _several(targets, "Log loss")
    where = targets.expand(outputs.shape[:-1])[..., None]
    loss = -outputs.double().log_softmax(-1).gather(-1, where).mean((-2, -1))
    shares = torch.bincount(targets).double() / len(targets)
    known: Tensor = torch.special.entr(shares).sum()
    return 1 - loss / known


def r2(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return R²: how much of the squared error a model removes that the mean would have; averaged over columns."""
    outputs, targets = _numbers(outputs, targets)
    return _removed((outputs - targets).square(), (targets - targets.mean(0)).square(), "R²")


def mae(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return how much of the absolute error a model removes that the median would have; averaged over columns."""
    outputs, targets = _numbers(outputs, targets)
    return _removed((outputs - targets).abs(), (targets - targets.median(0).values).abs(), "The absolute error")


def c_index(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the share of pairs of samples that a single output puts in order, equal outputs counting half.

    Targets (n, 2) are a time and whether the event was seen then (1) or the sample was censored (0): a pair counts if
    the earlier of the two was seen (Harrell's C). Outputs must be larger the longer the time.
    """
    if outputs.dim() < 2 or outputs.shape[-1] != 1 or targets.shape[0] != outputs.shape[-2]:
        raise UsageError(f"The C-index judges a single output (n, 1) per sample, not {tuple(outputs.shape[-2:])}.")
    columns = targets.reshape(len(targets), -1).double()
    if columns.shape[1] > 2:
        raise UsageError(f"The C-index needs times (n,), or times and events (n, 2), not {tuple(targets.shape)}.")
    times, scores = columns[:, 0], outputs[..., 0].double()
    seen = columns[:, 1] > 0 if columns.shape[1] == 2 else torch.ones_like(times, dtype=torch.bool)
    right, pairs = torch.zeros(scores.shape[:-1], dtype=torch.float64, device=scores.device), 0
    at_once = max(1, _PAIRS_AT_ONCE // max(1, scores.numel()))
    for rows in torch.split(torch.arange(len(times), device=times.device), at_once):
        counts = (times[rows, None] < times) & seen[rows, None]
        ahead, behind = scores[..., rows, None], scores[..., None, :]
        right += (((ahead < behind).double() + (ahead == behind).double() / 2) * counts).sum((-2, -1))
        pairs += int(counts.sum())
    if not pairs:
        raise UsageError("The C-index needs two samples of different times, the earlier of which was seen.")
    return torch.where(scores.isnan().any(-1), torch.nan, right / pairs)


METRICS: dict[str, Metric] = {
    "accuracy": accuracy,
    "balanced_accuracy": balanced_accuracy,
    "auroc": auroc,
    "f1": f1,
    "log_loss": log_loss,
    "r2": r2,
    "mae": mae,
    "c_index": c_index,
}
_TITLES = {
    "auroc": "AUROC", "f1": "F1", "log_loss": "log loss removed", "r2": "R²",
    "mae": "absolute error removed", "c_index": "C-index",
}  # fmt: skip


def title(name: str) -> str:
    """Return the name of a metric as people read it."""
    return _TITLES.get(name, name.replace("_", " "))


def note(name: str, targets: Tensor) -> str | None:
    """Return how to read an error off a metric that says how much of it a model removes; None for other metrics."""
    if name == "log_loss":
        shares = torch.bincount(targets).double() / len(targets)
        known, error, constant = float(torch.special.entr(shares).sum()), "a log loss", "the classes' shares"
    elif name == "mae" and targets.numel() == len(targets):
        numbers = targets.flatten().double()
        known, error, constant = float((numbers - numbers.median()).abs().mean()), "an absolute error", "the median"
    else:
        return None
    return (
        f"metric = '{name}' is what a model removes of the error that {constant} alone would have: a value v on the "
        f"test set is {error} of (1 − v) × {known:.4g}."
    )


def metric(chosen: str | Callable[[Tensor, Tensor], float | Tensor]) -> Metric:
    """Return a metric for models (..., n, C), by name or from a function of one model's outputs (n, C)."""
    if isinstance(chosen, str):
        if chosen not in METRICS:
            raise UsageError(f"Unknown metric {chosen!r}: {nearest(chosen, METRICS)}")
        return METRICS[chosen]
    for own in METRICS.values():
        if chosen is own:
            return own

    def each(outputs: Tensor, targets: Tensor) -> Tensor:
        models = outputs.reshape(-1, *outputs.shape[-2:])
        values = [_number(chosen(one, targets), chosen) for one in models]
        return torch.tensor(values, dtype=torch.float64, device=outputs.device).view(outputs.shape[:-2])

    return each


def decisions(outputs: Tensor) -> Tensor:
    """Return the class (..., n) that a model's outputs (..., n, C) answer; a single output above 0 answers class 1."""
    return outputs.argmax(-1) if outputs.shape[-1] > 1 else (outputs[..., 0] > 0).long()


def _number(value: object, source: object) -> float:
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, RuntimeError):
        name = getattr(source, "__name__", type(source).__name__)
        raise UsageError(
            f"The metric {name} returned a {type(value).__name__} that is not a single number: it must return the "
            "quality of one model as a float."
        ) from None


def _check(outputs: Tensor, targets: Tensor) -> None:
    if targets.is_floating_point():
        raise UsageError(
            "The metric counts classes, but the targets are real numbers: give classes as integers, or choose a metric "
            'of real numbers: "r2", "mae" or "c_index".'
        )
    if outputs.dim() < 2 or targets.shape != outputs.shape[-2:-1] or not len(targets) or not outputs.shape[-1]:
        raise UsageError(
            f"The metric got outputs of shape {tuple(outputs.shape)} and targets of shape {tuple(targets.shape)}: it "
            "needs (..., n, C), of two classes also (..., n, 1), and (n,) with n >= 1."
        )


def _logits(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the logit of each class: where there is a single one, that of class 0 is 0."""
    _check(outputs, targets)
    return outputs if outputs.shape[-1] > 1 else torch.cat([torch.zeros_like(outputs), outputs], -1)


def _several(targets: Tensor, what: str) -> Tensor:
    classes: Tensor = torch.unique(targets)
    if len(classes) < 2:
        raise UsageError(f"{what} needs samples of at least two classes, but all are of class {int(classes[0])}.")
    return classes


def _numbers(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return outputs (..., n, k) and targets (n, k); (n,) are (n, 1), which nothing may spread over (n, n)."""
    columns = targets.reshape(len(targets), -1).double()
    if outputs.dim() < 2 or outputs.shape[-2:] != columns.shape:
        raise UsageError(
            f"The metric got outputs of shape {tuple(outputs.shape)} and targets of shape {tuple(targets.shape)}: "
            f"it compares them number by number, so a model must return {tuple(columns.shape)}."
        )
    return outputs.double(), columns


def _removed(errors: Tensor, of_constant: Tensor, what: str) -> Tensor:
    known: Tensor = of_constant.mean(0)
    if bool((known == 0).any()):
        raise UsageError(f"{what} cannot be judged where all targets are equal.")
    each: Tensor = 1 - errors.mean(-2) / known
    return each.mean(-1)
