"""What everybody brings: clients train alone, before a run or again during it, and the server scores the result."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from cofair import contributions
from cofair.engine.protocol import ClientStates, Rewards, Trained, Training, Uploads
from cofair.errors import RunError, UsageError
from cofair.methods import Method, Server
from cofair.methods.rules.aggregation import Aggregation
from cofair.results.record import are_accuracies
from cofair.rounds.client_status import ClientStatus
from cofair.runs.setup import Setup


@dataclass(frozen=True)
class Brought:
    """What everybody brings (N,), and the models trained alone (N, D) where they were needed to find out."""

    contributions: Tensor
    alone: Tensor | None = None
    accuracies: bool = True  # contributions are values of the metric that models are judged by


def training_alone(setup: Setup, methods: Sequence[Method[Any]], known: Tensor | None = None) -> Training | None:
    """Return the training alone that runs of these methods need first; None where they need none."""
    measured = known is None and contributions.find(setup.experiment.contribution.measure).needs_training
    needed = measured or any(method.needs_alone for method in methods)
    return Training(setup.alone_rewards, ClientStates(), 1) if needed else None


def measure_brought(
    setup: Setup, trained: tuple[Training, Trained] | None = None, known: Tensor | None = None, *,
    forgiving: bool | None = None, given: bool = False,
) -> Brought:  # fmt: skip
    """Return what everybody brings, measured from what training alone gave; or `known` already, by an earlier process.

    `forgiving` takes a client that diverged alone for one that brings least, instead of ending the run; by default only
    where clients may attack. Contributions `given` by the user may be of any kind.
    """
    alone = diverged = None
    if trained is not None:
        uploads = act(setup, *trained)[0]
        alone, diverged = _models(setup, uploads, setup.attack is not None if forgiving is None else forgiving)
    accuracies = are_accuracies(setup.experiment.contribution.measure, ())
    if known is None:
        known = _measure(setup, alone, diverged)
    known = _checked(known, setup)
    if given:
        accuracies = bool(((known >= 0) & (known <= 1)).all())  # for all we know
    return Brought(known, alone, accuracies)


def measured(
    setup: Setup, methods: Sequence[Method[Any]], known: Tensor | None = None, *, given: bool = False
) -> Brought:
    """Return what everybody brings, with the set-up's own engine to train alone."""
    asked = training_alone(setup, methods, known)
    trained = None if asked is None else (asked, setup.engine.train(asked.rewards, asked.clients, asked.t))
    return measure_brought(setup, trained, known, given=given)


def act(setup: Setup, asked: Training, trained: Trained) -> Trained:
    """Return what comes back from a training: attackers, if there are any, have changed their uploads."""
    return trained if setup.attack is None else setup.attack.act(asked.rewards, asked.clients, asked.t, trained)


def is_due(setup: Setup, t: int) -> bool:
    """Say whether contributions are measured again before round t."""
    every = setup.experiment.contribution.every
    return every is not None and t > 1 and (t - 1) % every == 0


def handed_again(setup: Setup, t: int) -> Rewards:
    """Return what clients are handed to train alone again before round t."""
    alone = setup.alone_rewards
    return replace(alone, work=alone.work.again_in(t))


def measured_again(setup: Setup, status: ClientStatus, uploads: Uploads) -> ClientStatus:
    """Return the clients' status after they trained alone again; without an answer a contribution stays."""
    alone, diverged = _models(setup, uploads, forgiving=True)  # one that diverges does not end a run under way
    fresh = _checked(_measure(setup, alone, diverged), setup)
    asked = uploads.present & status.members
    return replace(status, contributions=torch.where(asked, fresh, status.contributions))


def server_of(setup: Setup, brought: Brought) -> Server:
    """Return the server of a run, which knows what everybody brings."""
    experiment = setup.experiment
    metric = "own" if "metric" in setup.given else experiment.run.metric
    return Server(
        setup.problem, setup.initial, experiment.training.work(), experiment.training.rounds, brought.contributions,
        alone=brought.alone, evaluates=setup.evaluates, validation=setup.validation,
        aggregation=Aggregation(experiment.defence.aggregate, experiment.defence.trim), metric=metric,
        brings_accuracies=brought.accuracies,
    )  # fmt: skip


def _models(setup: Setup, uploads: Uploads, forgiving: bool) -> tuple[Tensor, Tensor]:
    """Return the models trained alone (N, D), and who diverged (N,) and counts as not having trained."""
    models = uploads.updates + setup.initial
    diverged = ~torch.isfinite(models).all(1)
    first = diverged.nonzero().flatten().tolist()[:1]
    if first and not forgiving:
        raise RunError(
            f"Client {setup.problem.federation.names[first[0]]!r} diverged when it trained alone, so what it brings "
            "cannot be measured: lower training.lr or set training.clip."
        )
    return torch.where(diverged[:, None], setup.initial, models) if first else models, diverged


def _measure(setup: Setup, alone: Tensor | None, diverged: Tensor | None) -> Tensor:
    wanted = setup.experiment.contribution
    found = contributions.measure(
        wanted.measure, wanted.on, setup.problem, setup.initial, setup.tester, setup.validation, alone,
        wanted.permutations,
    )  # fmt: skip
    found = _checked(found, setup)
    return found if diverged is None else torch.where(diverged, found.min(), found)  # who diverged brings least


def _checked(contributions: Tensor, setup: Setup) -> Tensor:
    """Return contributions as methods read them, or say what is wrong with them."""
    clients = len(setup.problem.federation)
    if contributions.shape != (clients,) or not bool(torch.isfinite(contributions).all()):
        raise UsageError(f"Contributions must be {clients} finite numbers, one per client.")
    return contributions.to(device=setup.initial.device, dtype=torch.float64)
