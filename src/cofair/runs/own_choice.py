"""How clients judge models to choose among them: by samples of their own that they hold back, never by the test set."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

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

    @classmethod
    def worst(cls, clients: int, device: torch.device) -> "Judged":
        """Return what everything beats that can be judged at all."""
        lowest = torch.full((clients,), -torch.inf, dtype=torch.float64, device=device)
        return cls(lowest, -lowest)

    def beats(self, other: "Judged") -> Tensor:
        """Return where these models are better than others (N,): by the metric, where that is equal by the loss."""
        return (self.metric > other.metric) | ((self.metric == other.metric) & (self.loss < other.loss))

    def where(self, better: Tensor, other: "Judged") -> "Judged":
        """Return these where they are better (N,), and others elsewhere."""
        return Judged(torch.where(better, self.metric, other.metric), torch.where(better, self.loss, other.loss))


class OwnSamples:
    """Judges each client's model on the samples that the client holds back; whoever has none cannot judge."""

    def __init__(self, problem: Problem, own: Divided) -> None:
        """Take what every client holds back."""
        forgiving = replace(problem, metric=_where_defined(problem.metric))
        whole = Scorer(forgiving, own.samples) if len(own.samples) else None
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
        return Judged(*torch.stack(found).unbind(1))


def by_validation(scorer: Scorer, clients: int) -> Judge:
    """Return a judge that finds every client's model as good as it is on the server's validation set."""

    def judge(models: Delivered) -> Judged:
        scores = scorer.score(models.parameters, models.neuron_masks)
        return Judged(scores.metric.double().expand(clients), scores.loss.double().expand(clients))

    return judge


def choice(models: Mapping[str, Delivered], judge: Judge) -> list[str]:
    """Return the name of each client's choice: the first of the best; the first of all where it cannot judge."""
    names = list(models)
    best = judge(models[names[0]])
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
