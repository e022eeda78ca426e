"""From an experiment to everything a run needs: data and model on a device, an engine, a server."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from cofair import metrics, models, randomness
from cofair.config.experiment import Experiment
from cofair.data import datasets
from cofair.data.attackers import attackers, with_flipped_labels, with_identities
from cofair.data.build import Pool, federate
from cofair.data.federation import Federation
from cofair.engine import choose, losses
from cofair.engine.phases import ALONE
from cofair.engine.problem import Engine, Problem, first_line
from cofair.engine.protocol import ClientStates, Rewards, Uploads
from cofair.engine.vectorised import VectorisedEngine
from cofair.errors import CofairError, UsageError
from cofair.methods import Method, Server
from cofair.methods.rules.aggregation import Rule
from cofair.models.parameters import Layout
from cofair.neurons.map import NeuronMap
from cofair.results.table_cells import LAST_ROUNDS
from cofair.rounds.attacks import Attack, AttackedEngine
from cofair.rounds.participation import Participation
from cofair.runs.prepared import Prepared as Prepared
from cofair.runs.prepared import checked, measured_by
from cofair.scoring.scorer import Scorer

Model = nn.Module | Callable[[], nn.Module]


def prepare(
    experiment: Experiment, *, federation: Federation | None = None, model: Model | None = None,
    loss: losses.Loss | str | None = None, metric: Callable[[Tensor, Tensor], float | Tensor] | str | None = None,
    contributions: Tensor | None = None, methods: Sequence[Method[Any]] | None = None, measured: Tensor | None = None,
) -> Prepared:  # fmt: skip
    """Set up a run of the experiment's method, or of several methods, and measure what everybody brings.

    A federation, a model, a loss or a metric given here takes the place of the named one. `measured` is what everybody
    brings where that was measured before, by a run that was interrupted.
    """
    ready = set_up(experiment, federation=federation, model=model, loss=loss, metric=metric, methods=methods)
    if contributions is None:
        measure_contributions(ready, measured)
        return ready
    ready.server.contributions = checked(contributions, ready.server)
    brought = ready.server.contributions
    ready.server.brings_accuracies = bool(((brought >= 0) & (brought <= 1)).all())  # for all we know
    return replace(ready, given=ready.given | {"contributions"})


def measure_contributions(ready: Prepared, measured: Tensor | None = None) -> None:
    """Measure what everybody brings, as the experiment says, unless that was done before, and tell the server."""
    if measured is not None:
        ready.server.contributions = checked(measured, ready.server)
    else:
        ready.server.contributions = measured_by(ready.experiment, ready.server, ready.tester)


def set_up(
    experiment: Experiment, *, federation: Federation | None = None, model: Model | None = None,
    loss: losses.Loss | str | None = None, metric: Callable[[Tensor, Tensor], float | Tensor] | str | None = None,
    methods: Sequence[Method[Any]] | None = None, pool: Pool | None = None,
) -> Prepared:  # fmt: skip
    """Set up a run whose contributions are not known yet.

    With a pool its federation shares that copy of the data: it is one of several that train in lockstep.
    """
    run = experiment.run
    parts = {"federation": federation, "model": model, "loss": loss, "metric": metric}
    given = frozenset(name for name, part in parts.items() if part is not None)
    given |= {f"method.{name}" for name in experiment.method.unwritten()}
    dtype, device = choose.dtype(run.precision), choose.device(run.device)
    dataset = None
    if federation is None:
        own = experiment.federation
        dataset = datasets.load(own.data) if pool is None else pool.dataset
        federation = federate(
            pool or dataset, own.scene, clients=own.clients, samples=own.samples, alpha=own.alpha, noise=own.noise,
            validation=own.validation, resize=own.resize, seed=run.seed,
        )  # fmt: skip
    module = _module(experiment, federation, model, None if dataset is None else dataset.vocabulary_size or None)
    module = copy.deepcopy(module).to(device=device, dtype=dtype)  # the caller's own stays as it is
    layout = Layout(module)
    federation = federation.to(device, dtype)
    attack = experiment.attack
    cheats = attackers(attack.clients, federation.names, run.seed) if attack.on else ()
    if attack.name == "label_flip":
        federation = with_flipped_labels(federation, cheats, attack.force, run.seed)
    elif attack.name == "sybil":
        federation, cheats = with_identities(federation, cheats, int(attack.force), run.seed)
    neurons = NeuronMap.of(layout.prototype, layout, federation.test.x[:2])
    problem = Problem(
        layout, neurons, federation, run.seed,
        losses.loss(run.loss if loss is None else loss, device, dtype),
        _told(metrics.metric(run.metric if metric is None else metric)),
    )  # fmt: skip
    problem.try_model(layout.prototype)
    for method in [experiment.method] if methods is None else methods:
        _check_needs(experiment, method, federation)
    engine: Engine = VectorisedEngine(problem) if pool is not None else choose.engine(run.engine, problem)
    act = Attack(attack, problem, cheats) if attack.on else None
    if act is not None:
        engine = AttackedEngine(engine, act)
    work = experiment.training.work()
    initial = layout.row(module).to(device)

    alone = replace(work, steps=None, epochs=experiment.contribution.epochs, phase=ALONE)

    def train_alone() -> Uploads:
        return engine.train(Rewards(initial, alone), ClientStates(), 1)[0]

    def evaluates(t: int) -> bool:
        return t % run.evaluate_every == 0 or t > experiment.training.rounds - LAST_ROUNDS

    tester = Scorer(problem, problem.federation.test)
    server = Server(
        problem, initial, work, experiment.training.rounds, evaluates, train_alone,
        rule=Rule(experiment.defence.aggregate, experiment.defence.trim), forgives=attack.on,
        metric=run.metric if metric is None else metric if isinstance(metric, str) else "own",
        brings_accuracies=experiment.contribution.measure == "standalone",
    )  # fmt: skip
    participation = Participation(experiment.participation, federation.names, run.seed, device)
    return Prepared(experiment, problem, engine, tester, server, given, Rewards(initial, alone), participation, act)


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


def _told(metric: metrics.Metric) -> metrics.Metric:
    """Return a metric whose failures are sentences."""
    if metric is metrics.accuracy:  # which is never NaN, and a GPU would wait for the check
        return metric

    def told(outputs: Tensor, targets: Tensor) -> Tensor:
        try:
            values = metric(outputs, targets)
        except (torch.OutOfMemoryError, CofairError):
            raise
        except Exception as error:  # a user's metric may raise anything
            raise UsageError(f"The metric failed on the model's outputs: {first_line(error)}") from error
        if bool(values.isnan().any()) and bool(torch.isfinite(outputs).all()):
            raise UsageError("The metric is NaN although the model's outputs are finite: it must be a number.")
        return values

    return told
