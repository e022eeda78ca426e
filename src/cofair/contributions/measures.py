"""Contributions by name, measured before training: any of them for any method.

Measures that judge updates take those of the models that clients train alone, Δ_i = alone_i - initial, as one round
of a federation: they exist for every method and are trained once. Clients weigh by their samples, as in the
first iteration of CGSV. Methods that judge the uploads of every round call the functions behind these themselves.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from cofair.contributions import alone, cosine, divergence, diversity, index, leave_one_out, size
from cofair.engine.statistics import LOOK
from cofair.errors import RunError, UsageError, nearest
from cofair.scoring.scorer import Scorer

if TYPE_CHECKING:  # methods judge uploads with these measures, so importing them here would be a circle
    from cofair.methods import Server


@dataclass(frozen=True)
class Evidence:
    """What a measure looks at: the server, the samples that score models, how many random orders a sample takes."""

    server: "Server"
    scorer: Scorer
    permutations: int

    @property
    def updates(self) -> Tensor:
        """Return Δ_i (N, D) of the models trained alone."""
        return self.server.alone() - self.server.initial

    @property
    def weights(self) -> Tensor:
        """Return n_i / n (N,)."""
        sizes = self.server.sizes.to(torch.float64)
        return sizes / sizes.sum()

    @property
    def present(self) -> Tensor:
        """Return who has data (N,)."""
        return self.server.sizes > 0

    @property
    def class_counts(self) -> Tensor:
        """Return how many samples of each class each client has (N, C)."""
        return self.server.class_counts()

    @property
    def generator(self) -> torch.Generator:
        """Return the randomness of a measure."""
        return self.server.random(0, "contributions")


@dataclass(frozen=True)
class Measure:
    """A named contribution: what it is, whether the server must have a validation set, how it is measured."""

    text: str
    contributions: Callable[[Evidence], Tensor]
    needs_validation: bool = False


def _index(given: Evidence) -> Tensor:
    initial, sizes, present = given.server.initial, given.server.sizes, given.present
    return index.coalition_shapley(
        given.scorer, initial, given.updates, sizes, present, given.generator, given.permutations, given.server.places()
    )


def _cosine_sampled(given: Evidence) -> Tensor:
    return cosine.sampled(
        given.updates, given.weights, given.generator, given.permutations, given.present, given.server.places()
    )


def _leave_one_out(given: Evidence) -> Tensor:
    server = given.server
    return leave_one_out.leave_one_out(given.scorer, server.initial, given.updates, server.sizes, given.present)


def _divergence(given: Evidence) -> Tensor:
    problem, models = given.scorer.problem, given.server.alone()
    found = []
    for i, model in enumerate(models):
        own = problem.federation.client(i)
        if not len(own):
            found.append(models.new_tensor(torch.inf, dtype=torch.float64))
            continue
        lists, random = [], given.generator  # begun anew for each client, so that their order does not matter
        for scorer in (Scorer(problem, own), given.scorer):
            losses = scorer.score(model, per_sample=True).losses
            assert losses is not None  # asked for
            mixed = losses[..., torch.randperm(losses.shape[-1], generator=random).to(losses.device)]
            lists.append(divergence.batch_means(mixed, LOOK.batch_size))
        found.append(divergence.divergences(*lists)[0])
    return divergence.closeness(torch.stack(found))


MEASURES: dict[str, Measure] = {
    "standalone": Measure(
        "metric of the model trained alone", lambda given: alone.standalone(given.scorer, given.server.alone())
    ),
    "cosine": Measure(
        "cosine of the update with everybody's (CGSV, Eq. 3)",
        lambda given: cosine.approximate(given.updates, given.weights, given.present),
    ),
    "cosine-exact": Measure(
        "Shapley value of such cosines over all coalitions (CGSV, Eq. 2)",
        lambda given: cosine.exact(given.updates, given.weights, given.present),
    ),
    "cosine-sampled": Measure(
        "the same over random orders", _cosine_sampled
    ),
    "index": Measure("Shapley value of the metric of coalitions' models (ECI)", _index, needs_validation=True),
    "leave-one-out": Measure("what the average model loses without the client", _leave_one_out, needs_validation=True),
    "size": Measure("samples, of the largest number of samples", lambda given: size.relative_sizes(given.server.sizes)),
    "diversity": Measure("classes held, of all classes", lambda given: diversity.classes_held(given.class_counts)),
    "entropy": Measure("entropy of the labels", lambda given: diversity.label_entropy(given.class_counts)),
    "divergence": Measure("closeness of the losses to those on validation", _divergence, needs_validation=True),
}  # fmt: skip


def measure(name: str, on: str, server: "Server", tester: Scorer, permutations: int = 150) -> Tensor:
    """Return the contributions (N,) by a named measure, finite float64.

    `on` is the samples, test or validation, that models are scored on; measures that need a validation set use that.
    """
    if name not in MEASURES:
        raise UsageError(f"Unknown measure of contribution {name!r}: {nearest(name, MEASURES)}")
    chosen = MEASURES[name]
    if chosen.needs_validation and not server.has_validation:
        raise UsageError(f"The contribution {name!r} needs a validation set at the server, and there is none.")
    scorer = server.validation if chosen.needs_validation or on == "validation" else tester
    found = chosen.contributions(Evidence(server, scorer, permutations)).to(torch.float64)
    if not bool(torch.isfinite(found).all()):
        raise RunError(f"The contribution {name!r} of some client is not a finite number.")
    return found
