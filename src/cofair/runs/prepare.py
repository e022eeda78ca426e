"""From an experiment to everything a run needs: data and model on a device, an engine, a server."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from cofair import metrics, models, randomness
from cofair.contributions import measure
from cofair.engine import choose, losses
from cofair.engine.exchange import ClientStates, Rewards
from cofair.engine.layout import Layout
from cofair.engine.problem import Engine, Problem
from cofair.engine.scoring import Scorer
from cofair.errors import UsageError
from cofair.federation import datasets
from cofair.federation.build import federate
from cofair.federation.federation import Federation
from cofair.methods import Method, Server
from cofair.neurons.map import NeuronMap
from cofair.runs.cells import LAST_ROUNDS
from cofair.runs.experiment import Experiment

Model = nn.Module | Callable[[], nn.Module]


@dataclass(frozen=True)
class Prepared:
    """What all methods of one seed share: the problem, who trains, who tests, what everybody brings."""

    experiment: Experiment
    problem: Problem
    engine: Engine
    tester: Scorer
    server: Server


def prepare(
    experiment: Experiment, *, federation: Federation | None = None, model: Model | None = None,
    loss: losses.Loss | str | None = None, metric: Callable[[Tensor, Tensor], float | Tensor] | str | None = None,
    contributions: Tensor | None = None, methods: Sequence[Method[Any]] | None = None,
) -> Prepared:  # fmt: skip
    """Set up a run of the experiment's method, or of several methods.

    A federation, a model, a loss or a metric given here takes the place of the named one.
    """
    run = experiment.run
    dtype, device = choose.dtype(run.precision), choose.device(run.device)
    dataset = None
    if federation is None:
        own = experiment.federation
        dataset = datasets.load(own.data)
        federation = federate(
            dataset, own.scene, clients=own.clients, samples=own.samples, alpha=own.alpha, noise=own.noise,
            validation=own.validation, seed=run.seed,
        )  # fmt: skip
    module = _module(experiment, federation, model, None if dataset is None else dataset.vocabulary_size or None)
    module = module.to(device=device, dtype=dtype)
    layout = Layout(module)
    problem = Problem(
        layout, NeuronMap.of(layout.prototype, layout), federation.to(device, dtype), run.seed,
        losses.loss(loss or run.loss), metrics.metric(metric or run.metric),
    )  # fmt: skip
    problem.try_model(layout.prototype)
    for method in [experiment.method] if methods is None else methods:
        _check_needs(experiment, method, federation)
    engine = choose.engine(run.engine, problem)
    work = experiment.training.work()
    initial = layout.row(module).to(device)

    def train_alone() -> Tensor:
        alone = replace(work, steps=None, epochs=experiment.contribution.epochs, phase="alone")
        uploads, _ = engine.train(Rewards(initial, alone), ClientStates(), 1)
        return uploads.updates.add_(initial)

    def evaluates(t: int) -> bool:
        return t % run.evaluate_every == 0 or t > experiment.training.rounds - LAST_ROUNDS

    tester = Scorer(problem, problem.federation.test)
    server = Server(problem, initial, work, experiment.training.rounds, evaluates, train_alone)
    if contributions is None:
        wanted = experiment.contribution
        contributions = measure(wanted.measure, wanted.on, server, tester, wanted.permutations)
    server.contributions = _checked(contributions, len(federation)).to(device=device, dtype=torch.float64)
    return Prepared(experiment, problem, engine, tester, server)


def _module(experiment: Experiment, federation: Federation, model: Model | None, vocabulary: int | None) -> nn.Module:
    """Return the model to start from; its random initialisation is addressed by the seed."""
    if isinstance(model, nn.Module):
        return model
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(randomness.address(experiment.run.seed, "model") & 0x7FFF_FFFF)
        if model is not None:
            made = model()
            if not isinstance(made, nn.Module):
                raise UsageError(f"The model factory must return an nn.Module, but returned {type(made).__name__}.")
            return made
        own = experiment.model
        if federation.classes is None:
            raise UsageError("A federation without classes needs a model of one's own: pass model=.")
        name = own.name
        if name == "auto":
            name = "mlp" if federation.inputs.is_floating_point() else "textcnn"
        settings: dict[str, Any] = {}
        if name == "mlp":
            settings = {"hidden": own.hidden}
        elif name == "resnet18":
            settings = {"variant": own.variant}
        return models.build(name, federation.input_shape, federation.classes, vocabulary=vocabulary, **settings)


def _check_needs(experiment: Experiment, method: Method[Any], federation: Federation) -> None:
    if federation.validation is not None:
        return
    wanting = None
    if method.needs_validation:
        wanting = f"The method '{method.name}'"
    elif experiment.contribution.on == "validation":
        wanting = "contribution.on = 'validation'"
    elif experiment.run.joint:
        wanting = "run.joint = true"
    if wanting:
        raise UsageError(f"{wanting} needs a validation set at the server, and the federation has none.")


def _checked(contributions: Tensor, clients: int) -> Tensor:
    if contributions.shape != (clients,) or not bool(torch.isfinite(contributions).all()):
        raise UsageError(f"Contributions must be {clients} finite numbers, one a client.")
    return contributions
