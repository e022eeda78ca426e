"""How clients judge models to choose among them: by samples of their own that they hold back, never by the test set.

A client knows that rewards are judged by all classes alike, and that it knows little of a class of which it has few
samples: it counts classes alike as far as it has samples of them, and takes a model that it trains on its own data to
forget half of what it knew of the rest. docs/held.md compares this rule with others.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from cofair import metrics
from cofair.data.held_back import Divided
from cofair.engine.problem import Problem
from cofair.engine.protocol import Delivered, rows_of
from cofair.errors import UsageError
from cofair.metrics import Metric
from cofair.quality import decisions
from cofair.scoring.scorer import Scorer

Judge = Callable[[Delivered], "Judged"]
FORGOTTEN = 0.5  # share of what a model knows of the classes that a client lacks
DOUBT = 2.0  # samples of a class that count as much as what is expected of it without any


@dataclass(frozen=True)
class Judged:
    """How good each client finds its model: metric and loss (N,), NaN where it has nothing to judge by."""

    metric: Tensor
    loss: Tensor

    @classmethod
    def worst(cls, clients: int, device: torch.device) -> "Judged":
        """Return what everything beats that can be judged at all."""
        lowest = torch.full((clients,), -torch.inf, dtype=torch.float64, device=device)
        return cls(lowest, -lowest)

    def beats(self, other: "Judged") -> Tensor:
        """Return where these models are better than others (N,): by the metric, where that is equal by the loss."""
        return (self.metric > other.metric) | ((self.metric == other.metric) & (self.loss < other.loss))

    def less(self, cost: Tensor) -> "Judged":
        """Return these with a metric that is lower by a cost (N,)."""
        return Judged(self.metric - cost, self.loss)

    def where(self, better: Tensor, other: "Judged") -> "Judged":
        """Return these where they are better (N,), and others elsewhere."""
        return Judged(torch.where(better, self.metric, other.metric), torch.where(better, self.loss, other.loss))


class OwnSamples:
    """Judges each client's model on the samples that the client holds back; whoever has none cannot judge."""

    def __init__(self, problem: Problem, own: Divided, doubt: float = DOUBT) -> None:
        """Take what every client holds back."""
        plain = problem.metric is metrics.accuracy and own.samples.y.dim() == 1
        metric = _doubting(doubt) if plain else problem.metric
        forgiving = replace(problem, metric=_where_defined(metric))
        whole = Scorer(forgiving, own.samples) if len(own.samples) else None
        classes = problem.federation.classes or 0 if plain else 0
        known = [_known(own.samples.y[places], classes, doubt) for places in own.places]
        lacks = [(1 - share) / share if share else 0.0 for share in known]
        self._lacks = torch.tensor(lacks, dtype=torch.float64, device=problem.device)
        self._scorers = [whole.on(places) if whole is not None and len(places) else None for places in own.places]

    def __call__(self, models: Delivered) -> Judged:
        """Return how good each client finds its model."""
        masks = models.neuron_masks
        nothing = torch.full((2,), torch.nan, dtype=torch.float64, device=models.parameters.device)
        found = []
        for i, scorer in enumerate(self._scorers):
            if scorer is None:
                found.append(nothing)
                continue
            row = rows_of(models.parameters, slice(i, i + 1))
            scores = scorer.score(row, None if masks is None else masks[i : i + 1])
            found.append(torch.stack([scores.metric[0].to(nothing), scores.loss[0].to(nothing)]))
        metric, loss = torch.stack(found).unbind(1)
        return Judged(metric, loss)

    def forgetting(self, before: Judged) -> Tensor:
        """Return what it costs each client (N,) if training makes a model forget what the client cannot see.

        Where its samples tell a share s of all classes, an accuracy of b on the rest is worth b (1 − s) / s on them.
        """
        return before.metric * self._lacks


def by_samples(scorer: Scorer, clients: int) -> Judge:
    """Return a judge that finds every client's model as good as it is on the same samples for all."""

    def judge(models: Delivered) -> Judged:
        scores = scorer.score(models.parameters, models.neuron_masks)
        return Judged(scores.metric.double().expand(clients), scores.loss.double().expand(clients))

    return judge


def choice(judged: Mapping[str, Judged]) -> list[str]:
    """Return the name of each client's choice: the best that it finds, the first of equals or where it cannot judge."""
    (first, best), *others = judged.items()
    names = [first]
    chosen = torch.zeros(len(best.metric), dtype=torch.int64, device=best.metric.device)
    for k, (name, own) in enumerate(others, start=1):
        better = own.beats(best)
        best, chosen = own.where(better, best), chosen.masked_fill(better, k)
        names.append(name)
    return [names[k] for k in chosen.tolist()]


def _known(labels: Tensor, classes: int, doubt: float) -> float:
    """Return which share of all classes samples tell: m of m + `doubt` of a class of which there are m."""
    if not classes:
        return 0.0
    counts = torch.bincount(labels, minlength=classes).double()
    return float((counts / (counts + doubt).clamp(min=1)).mean())


def _doubting(doubt: float) -> Metric:
    """Return the accuracy that counts classes alike, but less those of which there are few samples."""

    def accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
        weights = 1 / (torch.bincount(targets)[targets].double() + doubt)
        return (decisions(outputs) == targets).double() @ (weights / weights.sum())

    return accuracy


def _where_defined(metric: Metric) -> Metric:
    """Return a metric that is 0 for all models where it is undefined, as AUROC of one class: then losses decide."""

    def defined(outputs: Tensor, targets: Tensor) -> Tensor:
        try:
            return metric(outputs, targets)
        except UsageError:
            return torch.zeros(len(outputs), dtype=torch.float64, device=outputs.device)

    return defined
