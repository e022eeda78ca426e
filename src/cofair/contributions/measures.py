"""Contributions by name, measured before training: any of them for any method.

Measures that judge updates take those of the models that clients train alone, Δ_i = alone_i - initial, as one round
of a federation: they exist for every method and are trained once. Clients weigh by their samples, as in the
first iteration of CGSV. Methods that judge the uploads of every round call the functions behind these themselves.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from cofair import randomness
from cofair.contributions import alone, cosine, divergence, diversity, index, leave_one_out, size
from cofair.engine.problem import Problem
from cofair.engine.statistics import LOOK
from cofair.errors import RunError, UsageError, nearest
from cofair.scoring.scorer import Scorer


@dataclass(frozen=True)
class Evidence:
    """What a measure looks at: the clients, the models they trained alone, and the samples that score models."""

    problem: Problem
    initial: Tensor  # (D,)
    scorer: Scorer
    models: Tensor | None = None  # (N, D) trained alone; only for measures that need training
    permutations: int = 150  # random orders that sampled Shapley values take

    @property
    def alone(self) -> Tensor:
        """Return the models (N, D) that clients trained alone."""
        assert self.models is not None, "the measure says that it needs no training"
        return self.models

    @property
    def updates(self) -> Tensor:
        """Return Δ_i (N, D) of the models trained alone."""
        return self.alone - self.initial

    @property
    def sizes(self) -> Tensor:
        """Return n_i (N,)."""
        return self.problem.federation.sizes.to(self.problem.device)

    @property
    def weights(self) -> Tensor:
        """Return n_i / n (N,)."""
        sizes = self.sizes.to(torch.float64)
        return sizes / sizes.sum()

    @property
    def present(self) -> Tensor:
        """Return who has data (N,)."""
        return self.sizes > 0

    @property
    def class_counts(self) -> Tensor:
        """Return how many samples of each class each client has (N, C)."""
        return self.problem.federation.class_counts()

    @property
    def places(self) -> Tensor:
        """Return each client's place (N,) in the order of names."""
        return self.problem.federation.places()

    @property
    def generator(self) -> torch.Generator:
        """Return the randomness of a measure."""
        return randomness.generator(self.problem.seed, "server", 0, "contributions")


@dataclass(frozen=True)
class Measure:
    """A named contribution: how it is measured, and what that takes."""

    contributions: Callable[[Evidence], Tensor]
    needs_validation: bool = False  # at the server
    needs_training: bool = True  # of every client, alone
    independent: bool = False  # a client's contribution does not depend on the other clients


def _index(given: Evidence) -> Tensor:
    return index.coalition_shapley(
        given.scorer, given.initial, given.updates, given.sizes, given.present, given.generator, given.permutations,
        given.places,
    )  # fmt: skip


def _cosine_sampled(given: Evidence) -> Tensor:
    return cosine.sampled(
        given.updates, given.weights, given.generator, given.permutations, given.present, given.places
    )


def _leave_one_out(given: Evidence) -> Tensor:
    return leave_one_out.leave_one_out(given.scorer, given.initial, given.updates, given.sizes, given.present)


def _divergence(given: Evidence) -> Tensor:
    problem, models = given.problem, given.alone
    found = []
    for i, model in enumerate(models):
        own = problem.federation.client(i)
        if not len(own):
            found.append(models.new_tensor(torch.inf, dtype=torch.float64))
            continue
        lists, random = [], given.generator  # started again for each client, so that their order does not matter
        for scorer in (Scorer(problem, own), given.scorer):
            losses = scorer.score(model, per_sample=True).losses
            assert losses is not None  # asked for
            mixed = losses[..., torch.randperm(losses.shape[-1], generator=random).to(losses.device)]
            lists.append(divergence.batch_means(mixed, LOOK.batch_size))
        found.append(divergence.divergences(*lists)[0])
    return divergence.closeness(torch.stack(found))


MEASURES: dict[str, Measure] = {
    # the metric of the model trained alone
    "standalone": Measure(lambda given: alone.scores(given.scorer, given.alone), independent=True),
    # cosine of the update with the sum of all (CGSV, Eq. 3), and the Shapley value it approximates (Eq. 2)
    "cosine": Measure(lambda given: cosine.approximate(given.updates, given.weights, given.present)),
    "cosine-exact": Measure(lambda given: cosine.exact(given.updates, given.weights, given.present)),
    "cosine-sampled": Measure(_cosine_sampled),
    # Shapley value of the metric of coalitions' models (ECI)
    "index": Measure(_index, needs_validation=True),
    # what the average model loses without the client
    "leave-one-out": Measure(_leave_one_out, needs_validation=True),
    # samples, relative to the largest client
    "size": Measure(lambda given: size.relative_sizes(given.sizes), needs_training=False, independent=True),
    # share of all classes that a client holds, and the entropy of its labels
    "diversity": Measure(
        lambda given: diversity.classes_held(given.class_counts), needs_training=False, independent=True
    ),
    "entropy": Measure(
        lambda given: diversity.label_entropy(given.class_counts), needs_training=False, independent=True
    ),
    # closeness of the losses to those on the validation set (FedAVE)
    "divergence": Measure(_divergence, needs_validation=True),
}


def find(name: str) -> Measure:
    """Return a measure by its name."""
    if name not in MEASURES:
        raise UsageError(f"Unknown measure of contribution {name!r}: {nearest(name, MEASURES)}")
    return MEASURES[name]


def measure(
    name: str, on: str, problem: Problem, initial: Tensor, tester: Scorer, validation: Scorer | None,
    models: Tensor | None = None, permutations: int = 150,
) -> Tensor:  # fmt: skip
    """Return the contributions (N,) by a named measure, finite float64.

    `on` is the samples, test or validation, that models are scored on; measures that need a validation set use that.
    `models` are those that clients trained alone.
    """
    chosen, scorer = find(name), tester
    if chosen.needs_validation or on == "validation":
        if validation is None:
            raise UsageError(f"The contribution {name!r} needs a validation set at the server, and there is none.")
        scorer = validation
    found = chosen.contributions(Evidence(problem, initial, scorer, models, permutations)).to(torch.float64)
    if not bool(torch.isfinite(found).all()):
        raise RunError(f"The contribution {name!r} of some client is not a finite number.")
    return found
