"""From an experiment to everything that training needs: data and model on a device, an engine, scorers."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from cofair import metrics, models, randomness
from cofair.config.experiment import Experiment
from cofair.data import datasets
from cofair.data.attackers import attackers, with_flipped_labels, with_identities
from cofair.data.build import Pool, federate
from cofair.data.federation import Federation
from cofair.data.tables import is_table
from cofair.engine import choose, losses
from cofair.engine.problem import Engine, Problem, first_line
from cofair.engine.protocol import Trained, Training
from cofair.engine.vectorised import VectorisedEngine
from cofair.errors import CofairError, UsageError
from cofair.methods import Method
from cofair.models.parameters import Layout
from cofair.neurons.map import NeuronMap
from cofair.results.table_cells import LAST_ROUNDS
from cofair.rounds.attacks import Attack
from cofair.rounds.participation import Participation
from cofair.scoring.scorer import Scorer

Model = nn.Module | Callable[[], nn.Module]


@dataclass(frozen=True)
class Parts:
    """What a user gives in Python instead of naming it in the experiment."""

    federation: Federation | None = None
    model: Model | None = None
    loss: losses.Loss | None = None
    metric: Callable[[Tensor, Tensor], float | Tensor] | None = None
    contributions: Tensor | None = None

    @property
    def names(self) -> frozenset[str]:
        """Return which parts were given."""
        return frozenset(name for name, part in vars(self).items() if part is not None)


@dataclass(frozen=True)
class Setup:
    """What the runs of one seed share, whatever their method: the problem, who trains, who tests, where they begin."""

    experiment: Experiment  # of which the method does not matter
    problem: Problem
    engine: Engine
    initial: Tensor  # (D,)
    participation: Participation
    attack: Attack | None
    given: frozenset[str]  # what did not come from the experiment's settings

    @cached_property
    def tester(self) -> Scorer:
        """Return the scorer on the test set."""
        return Scorer(self.problem, self.problem.federation.test)

    @cached_property
    def validation(self) -> Scorer | None:
        """Return the scorer on the server's validation set, if it has one."""
        samples = self.problem.federation.validation
        return None if samples is None else Scorer(self.problem, samples)

    def acted(self, asked: Training, trained: Trained) -> Trained:
        """Return what comes back from a training: attackers, if there are any, have changed their uploads."""
        return trained if self.attack is None else self.attack.act(asked.rewards, asked.clients, asked.t, trained)

    def evaluates(self, t: int) -> bool:
        """Say whether the rewards of round t are tested."""
        every, rounds = self.experiment.run.evaluate_every, self.experiment.training.rounds
        return t % every == 0 or t > rounds - LAST_ROUNDS


def set_up(
    experiment: Experiment, parts: Parts | None = None, *, methods: Sequence[Method[Any]] | None = None,
    pool: Pool | None = None,
) -> Setup:  # fmt: skip
    """Set up runs of the experiment's method, or of several methods.

    `parts` take the place of what the experiment names. With a pool the federation shares that copy of the data: it is
    one of several that train in lockstep.
    """
    parts = parts or Parts()
    run = experiment.run
    dtype, device = choose.dtype(run.precision), choose.device(run.device)
    federation, dataset = parts.federation, None
    if federation is None:
        own = experiment.federation
        if not is_table(own.data):
            dataset = datasets.load(own.data) if pool is None else pool.dataset
        federation = federate(
            pool or dataset or own.data, own.scene, clients=own.clients, samples=own.samples, alpha=own.alpha,
            noise=own.noise, validation=own.validation, resize=own.resize, label=own.label, by=own.by,
            leave_out=own.leave_out, test=own.test, seed=run.seed,
        )  # fmt: skip
    module = _module(experiment, federation, parts.model, None if dataset is None else dataset.vocabulary_size or None)
    module = copy.deepcopy(module).to(device=device, dtype=dtype)  # the caller's own stays as it is
    layout = Layout(module)
    loss = losses.loss(parts.loss or run.loss, device, dtype)
    federation = federation.to(device, dtype)
    if isinstance(loss, losses.Binary):
        federation = federation.with_classes()
    if run.class_weights is not None:
        loss = losses.weighted(loss, run.class_weights, federation)
    attack = experiment.attack
    cheats = attackers(attack.clients, federation.names, run.seed) if attack.on else ()
    if attack.name == "label_flip":
        federation = with_flipped_labels(federation, cheats, attack.force, run.seed)
    elif attack.name == "sybil":
        federation, cheats = with_identities(federation, cheats, int(attack.force), run.seed)
    problem = Problem(
        layout, NeuronMap.of(layout.prototype, layout, federation.test.x[:2]), federation, run.seed, loss,
        _explained(metrics.metric(parts.metric or run.metric)),
    )  # fmt: skip
    problem.try_model(layout.prototype)
    for method in [experiment.method] if methods is None else methods:
        _check_needs(experiment, method, federation)
    setup = Setup(
        experiment, problem, VectorisedEngine(problem) if pool is not None else choose.engine(run.engine, problem),
        layout.row(module).to(device), Participation(experiment.participation, federation.names, run.seed, device),
        Attack(attack, problem, cheats) if attack.on else None, parts.names,
    )  # fmt: skip
    _try_metric(setup)
    return setup


def _module(experiment: Experiment, federation: Federation, model: Model | None, vocabulary: int | None) -> nn.Module:
    """Return the model to start from; its random initialisation is addressed by the seed."""
    if isinstance(model, nn.Module):
        return model
    if model is not None and not callable(model):
        raise UsageError(f"model must be an nn.Module or a function that makes one, but is {model!r}.")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(randomness.address(experiment.run.seed, "model") & 0x7FFF_FFFF)
        if model is not None:
            try:
                made = model()
            except TypeError as error:
                raise UsageError(f"The model factory must take no arguments: {error}") from error
            if not isinstance(made, nn.Module):
                raise UsageError(f"The model factory must return an nn.Module, but returned {type(made).__name__}.")
            return made
        own = experiment.model
        if federation.encoding is not None and federation.classes is None:
            raise UsageError(
                f"The column {experiment.federation.label!r} has numbers, not classes: to predict them, give "
                "cofair.run a model of one's own and a loss."
            )
        if federation.classes is None:
            raise UsageError("A federation without classes needs a model of one's own: pass model=.")
        name = own.name
        if name == "auto":
            name = "mlp" if federation.inputs.is_floating_point() else "textcnn"
        known = models.model_settings(name)
        settings = {key: value for key, value in vars(own).items() if key in known}
        return models.build(name, federation.input_shape, federation.classes, vocabulary=vocabulary, **settings)


def _check_needs(experiment: Experiment, method: Method[Any], federation: Federation) -> None:
    if experiment.defence.aggregate != "mean" and not method.averages:
        raise UsageError(
            f"defence.aggregate = '{experiment.defence.aggregate}' needs a method that averages updates, such as "
            f"fedavg, fedsac or fedrac: '{method.name}' joins them in a way of its own."
        )
    if federation.validation is not None:
        return
    wanting = None
    if method.validates():
        wanting = f"The method '{method.name}'"
    elif experiment.contribution.on == "validation":
        wanting = "contribution.on = 'validation'"
    elif experiment.run.joint:
        wanting = "run.joint = true"
    if wanting:
        without = method.without_validation if method.validates() else ""
        raise UsageError(
            f"{wanting} needs a validation set at the server, and the federation has none. {without}".rstrip()
        )


def _try_metric(setup: Setup) -> None:
    """Judge the initial model, so that a metric that cannot be used is reported before anything is trained."""
    metric = setup.problem.metric
    if metric is metrics.accuracy and setup.problem.federation.classes is not None:
        return  # it cannot fail
    for name, scorer in (("test", setup.tester), ("validation", setup.validation)):
        try:
            _ = scorer and scorer.score(setup.initial[None])
        except UsageError as error:
            raise UsageError(f"The metric cannot be taken on the {name} set. {error}") from error


def _explained(metric: metrics.Metric) -> metrics.Metric:
    """Return a metric whose failures are sentences."""
    if metric is metrics.accuracy:  # which is never NaN, and a GPU would wait for the check
        return metric

    def explained(outputs: Tensor, targets: Tensor) -> Tensor:
        try:
            values = metric(outputs, targets)
        except (torch.OutOfMemoryError, CofairError):
            raise
        except Exception as error:  # a user's metric may raise anything
            raise UsageError(f"The metric failed on the model's outputs: {first_line(error)}") from error
        if bool(values.isnan().any()) and bool(torch.isfinite(outputs).all()):
            raise UsageError("The metric is NaN although the model's outputs are finite: it must be a number.")
        return values

    return explained
