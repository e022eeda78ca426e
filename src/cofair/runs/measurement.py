"""What everybody brings: clients train alone, before a run or again during it, and the server scores the result."""

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from cofair import contributions, quality
from cofair.engine.protocol import Trained, Training
from cofair.errors import RunError, UsageError
from cofair.methods import Method, Server
from cofair.methods.rules.aggregation import Aggregation
from cofair.results.record import are_accuracies
from cofair.rounds import upload_checks
from cofair.rounds.client_status import ClientStatus
from cofair.runs.setup import Setup
from cofair.runs.training_alone import WITHOUT_VALIDATION, Alone, driven, training_alone


@dataclass(frozen=True)
class Brought:
    """What everybody brings (N,), and the models trained alone (N, D) where they were needed to find out."""

    contributions: Tensor
    alone: Tensor | None = None
    accuracies: bool = True  # contributions are values of the metric that models are judged by


def measuring(
    setup: Setup, methods: Sequence[Method[Any]], known: Tensor | None = None, *, given: bool = False,
    remembered: bool = False,
) -> Generator[Training, Trained, Brought]:  # fmt: skip
    """Find out what everybody brings; or take what is `known` already, by an earlier process.

    Whoever drives it sends what each training gave. Contributions `given` by the user may be of any kind. The models of
    clients may be `remembered` by a checkpoint, so that only methods that ask for them need them.
    """
    needed = known is None and contributions.find(setup.experiment.contribution.measure).needs_training
    compared_later = repeats(setup) and not remembered
    alone = None
    if needed or compared_later or any(method.needs_alone for method in methods):
        alone = yield from training_alone(setup)
    return brought_by(setup, alone, known, given=given)


def brought_by(
    setup: Setup, alone: Alone | None, known: Tensor | None = None, *, forgiving: bool | None = None,
    given: bool = False,
) -> Brought:  # fmt: skip
    """Return what everybody brings, measured from what clients became alone where it is not `known`.

    `forgiving` takes a client that diverged alone for one that brings least, instead of ending the run; by default only
    where clients may attack.
    """
    if alone is not None and not (setup.attack is not None if forgiving is None else forgiving):
        _refuse_diverged(setup, alone)
    accuracies = are_accuracies(setup.experiment.contribution.measure, ())
    if known is None:
        known = _measure(setup, alone)
    known = _checked(known, setup)
    if given:
        accuracies = bool(((known >= 0) & (known <= 1)).all())  # for all we know
    return Brought(known, None if alone is None else alone.models, accuracies)


def measured(
    setup: Setup, methods: Sequence[Method[Any]], known: Tensor | None = None, *, given: bool = False,
    remembered: bool = False,
) -> Brought:  # fmt: skip
    """Return what everybody brings, with the set-up's own engine to train alone."""
    asking = measuring(setup, methods, known, given=given, remembered=remembered)
    return driven(asking, lambda asked: setup.engine.train(asked.rewards, asked.clients, asked.t))


def notes(setup: Setup) -> list[str]:
    """Say what is to be known of how models are judged and contributions measured, in sentences."""
    name = "own" if "metric" in setup.given else setup.experiment.run.metric
    said = quality.note(name, setup.problem.federation.test.y)
    return [*([] if said is None else [said]), *_of_contributions(setup)]


def _of_contributions(setup: Setup) -> list[str]:
    own = setup.experiment.contribution
    trained = "contributions" not in setup.given and contributions.find(own.measure).needs_training
    if own.epochs is not None or not trained or setup.validation is not None:
        return []
    return [
        f"Contributions are measured after {WITHOUT_VALIDATION} epochs alone, because there is no validation set that "
        "would tell when a model stops rising: a client that trains longer or repeats its samples brings more."
    ]


def repeats(setup: Setup) -> bool:
    """Say whether clients train alone again during a run."""
    own = setup.experiment.contribution
    return own.every is not None and contributions.find(own.measure).needs_training


def is_due(setup: Setup, t: int) -> bool:
    """Say whether contributions are measured again before round t."""
    every = setup.experiment.contribution.every
    return repeats(setup) and every is not None and t > 1 and (t - 1) % every == 0


def measured_again(
    setup: Setup, status: ClientStatus, alone: Alone, whole: Tensor
) -> tuple[ClientStatus, dict[int, str]]:
    """Return the clients' status after they trained alone again, and whose models are refused, and why.

    Without an answer a contribution stays; so it does where a model that would raise it is rather one that was handed
    out: the `whole` one, or rows of it (N, D), or what the client can put together from what it was handed.
    """
    fresh = _checked(_measure(setup, alone), setup)
    asked, refused = alone.answered & status.members, torch.zeros_like(alone.answered)
    if status.alone is not None and status.handed is not None:
        resent = upload_checks.resent(alone.models, status.alone, status.handed, whole)
        refused = asked & ~alone.diverged & resent & (fresh > status.contributions)
    if status.alone is not None and bool(refused.any()):  # nor may others be measured against what is refused
        own = torch.where(refused[:, None], status.alone, alone.models)
        fresh = _checked(_measure(setup, replace(alone, models=own)), setup)
    status = replace(status, contributions=torch.where(asked & ~refused, fresh, status.contributions))
    return status, dict.fromkeys(refused.nonzero().flatten().tolist(), upload_checks.RESENT)


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


def _refuse_diverged(setup: Setup, alone: Alone) -> None:
    for client in alone.diverged.nonzero().flatten().tolist():
        raise RunError(
            f"Client {setup.problem.federation.names[client]!r} diverged when it trained alone, so what it brings "
            "cannot be measured: lower training.lr or set training.clip."
        )


def _measure(setup: Setup, alone: Alone | None) -> Tensor:
    wanted = setup.experiment.contribution
    found = contributions.measure(
        wanted.measure, wanted.on, setup.problem, setup.initial, setup.tester, setup.validation,
        None if alone is None else alone.models, wanted.permutations,
    )  # fmt: skip
    found = _checked(found, setup)
    return found if alone is None else torch.where(alone.diverged, found.min(), found)  # who diverged brings least


def _checked(contributions: Tensor, setup: Setup) -> Tensor:
    """Return contributions as methods read them, or say what is wrong with them."""
    clients = len(setup.problem.federation)
    if contributions.shape != (clients,) or not bool(torch.isfinite(contributions).all()):
        raise UsageError(f"Contributions must be {clients} finite numbers, one per client.")
    return contributions.to(device=setup.initial.device, dtype=torch.float64)
