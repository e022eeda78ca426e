"""How clients judge models to choose among them: by samples of their own that they hold back, never by the test set.

A client knows that rewards are judged by all classes alike, and that few samples tell little: it counts the classes
that it has alike, and leaves what is delivered only for what is better by more than the noise of its samples.
"""

import math
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
from cofair.scoring.scorer import Scorer

Judge = Callable[[Delivered], "Judged"]


@dataclass(frozen=True)
class Judged:
    """How good each client finds its model: metric and loss (N,), NaN where it has nothing to judge by."""

    metric: Tensor
    loss: Tensor
    noise: Tensor | None = None  # a standard deviation of the metric on so few samples (N,), where it is known

    @classmethod
    def worst(cls, clients: int, device: torch.device) -> "Judged":
        """Return what everything beats that can be judged at all."""
        lowest = torch.full((clients,), -torch.inf, dtype=torch.float64, device=device)
        return cls(lowest, -lowest)

    def beats(self, other: "Judged") -> Tensor:
        """Return where these models are better than others (N,): by the metric, where that is equal by the loss."""
        return (self.metric > other.metric) | ((self.metric == other.metric) & (self.loss < other.loss))

    def beyond_noise(self) -> "Judged":
        """Return what only models beat that are better by more than the noise."""
        if self.noise is None:
            return self
        return Judged(self.metric + self.noise, torch.where(self.noise > 0, -torch.inf, self.loss))

    def where(self, better: Tensor, other: "Judged") -> "Judged":
        """Return these where they are better (N,), and others elsewhere."""
        return Judged(torch.where(better, self.metric, other.metric), torch.where(better, self.loss, other.loss))


class OwnSamples:
    """Judges each client's model on the samples that the client holds back; whoever has none cannot judge."""

    def __init__(self, problem: Problem, own: Divided) -> None:
        """Take what every client holds back."""
        plain = problem.metric is metrics.accuracy and own.samples.y.dim() == 1
        metric = metrics.balanced_accuracy if plain else problem.metric
        forgiving = replace(problem, metric=_where_defined(metric))
        whole = Scorer(forgiving, own.samples) if len(own.samples) else None
        self._tells = [worth(own.samples.y[places]) if plain and len(places) else math.nan for places in own.places]
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
        return Judged(metric, loss, deviation(metric, metric.new_tensor(self._tells)).nan_to_num(0))


def deviation(accuracies: Tensor, samples: Tensor) -> Tensor:
    """Return the standard deviation (N,) of accuracies on so many samples (N,), of which one at least is in doubt."""
    doubt = 1 / (samples + 1)
    kept = torch.minimum(torch.maximum(accuracies, doubt), 1 - doubt)
    return (kept * (1 - kept) / samples).sqrt()


def worth(labels: Tensor) -> float:
    """Return of how many samples of evenly spread classes the mean over classes would be as noisy."""
    counts = torch.unique(labels, return_counts=True)[1].double()
    return float(len(counts) ** 2 / (1 / counts).sum())


def by_samples(scorer: Scorer, clients: int) -> Judge:
    """Return a judge that finds every client's model as good as it is on the same samples for all."""

    def judge(models: Delivered) -> Judged:
        scores = scorer.score(models.parameters, models.neuron_masks)
        return Judged(scores.metric.double().expand(clients), scores.loss.double().expand(clients))

    return judge


def choice(models: Mapping[str, Delivered], judge: Judge) -> list[str]:
    """Return the name of each client's choice: the first, unless others are better beyond noise; then the best."""
    names = list(models)
    best = judge(models[names[0]]).beyond_noise()
    chosen = torch.zeros(len(best.metric), dtype=torch.int64, device=best.metric.device)
    for k, name in enumerate(names[1:], start=1):
        judged = judge(models[name])
        better = judged.beats(best)
        best, chosen = judged.where(better, best), chosen.masked_fill(better, k)
    return [names[k] for k in chosen.tolist()]


def _where_defined(metric: Metric) -> Metric:
    """Return a metric that is 0 for all models where it is undefined, as AUROC of one class: then losses decide."""

    def defined(outputs: Tensor, targets: Tensor) -> Tensor:
        try:
            return metric(outputs, targets)
        except UsageError:
            return torch.zeros(len(outputs), dtype=torch.float64, device=outputs.device)

    return defined
