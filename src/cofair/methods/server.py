"""What the server of a run knows and can do. A method sees the world only through it."""

import copy
from collections.abc import Callable

import torch
from torch import Tensor

from cofair import randomness
from cofair.engine.problem import Problem
from cofair.engine.work import Work
from cofair.errors import UsageError
from cofair.methods.rules.aggregation import Aggregation
from cofair.scoring.scorer import Scorer, Scores


class Server:
    """What the server of a run knows and can do. A method sees the world only through it."""

    def __init__(
        self, problem: Problem, initial: Tensor, work: Work, rounds: int, contributions: Tensor, *,
        alone: Tensor | None = None, evaluates: Callable[[int], bool] = lambda t: True,
        validation: Scorer | None = None, aggregation: Aggregation | None = None, metric: str = "accuracy",
        brings_accuracies: bool = True,
    ) -> None:  # fmt: skip
        """Make the server of a run in which each client's contribution (N,) has been measured.

        `alone` (N, D) are the models that clients trained alone, for methods that declare `needs_alone`.
        `evaluates(t)` says whether the rewards of round t are tested. `aggregation` is how methods that average join
        updates. `metric` names what models are judged by; `brings_accuracies` says whether contributions are values of
        it.
        """
        self.initial = initial
        self.work = work
        self.rounds = rounds
        self.contributions = contributions
        self.layout = problem.layout
        self.neurons = problem.neurons
        self.sizes = problem.federation.sizes.to(problem.device)
        self.classes = problem.federation.classes
        self.names = problem.federation.names
        self.class_counts = problem.federation.class_counts  # how many samples of each class each client has (N, C)
        self.places = problem.federation.places  # each client's place (N,) in the order of names
        self.seed = problem.seed
        self.metric = metric
        self.brings_accuracies = brings_accuracies
        self.tested_on = len(problem.federation.test)  # samples that test rewards; a method never sees them
        self.evaluates = evaluates
        self.aggregation = aggregation
        self._alone = alone
        self._scorer = validation

    @property
    def clients(self) -> int:
        """Return N."""
        return len(self.sizes)

    @property
    def validation(self) -> Scorer:
        """Return the scorer of candidate models on the server's validation set."""
        if self._scorer is None:
            raise UsageError("This needs a validation set at the server, and the federation has none.")
        return self._scorer

    @property
    def has_validation(self) -> bool:
        """Say whether the server has a validation set."""
        return self._scorer is not None

    def score(
        self, parameters: Tensor, neuron_masks: Tensor | None = None, *, per_sample: bool = False,
        among: Tensor | None = None,
    ) -> Scores:  # fmt: skip
        """Score candidates on the validation set: rows (C, D), or one base (D,) under neuron masks (C, K).

        `among` names the places of the samples that count, in order; without it all of them do.
        """
        scorer = self.validation if among is None else self.validation.on(among)
        return scorer.score(parameters, neuron_masks, per_sample=per_sample)

    def alone(self) -> Tensor:
        """Return the models (N, D) that clients trained alone, before the first round."""
        if self._alone is None:
            raise UsageError("Clients train alone before a run only for methods that declare `needs_alone = True`.")
        return self._alone

    def with_contributions(self, contributions: Tensor) -> "Server":
        """Return this server with other contributions; everything else is shared."""
        if contributions is self.contributions:
            return self
        other = copy.copy(self)
        other.contributions = contributions
        return other

    def random(self, t: int, purpose: str) -> torch.Generator:
        """Return the server's randomness for a purpose in round t."""
        return randomness.generator(self.seed, "server", t, purpose)
