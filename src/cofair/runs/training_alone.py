"""Training alone: every client by itself, from the common initial model, until its model stops rising.

A fixed number of epochs measures steps as much as data: who repeats its samples takes more of them. So clients train in
stages, all with equally many steps, and the server scores their models on its validation set after each; who has not
risen for some stages is done, and its best model counts. Neither more steps nor copies of samples make that better.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor

from cofair.engine.phases import ALONE
from cofair.engine.protocol import ClientStates, Rewards, Trained, Training, Uploads
from cofair.engine.work import Work
from cofair.runs.setup import Setup

WITHOUT_VALIDATION = 30  # epochs, where nothing says when a model stops rising
Found = TypeVar("Found")


@dataclass(frozen=True)
class Alone:
    """What clients became by themselves: models (N, D), the initial one of those that diverged or sent nothing."""

    models: Tensor
    diverged: Tensor  # (N,)
    answered: Tensor  # (N,)


def fixed_epochs(setup: Setup) -> int | None:
    """Return for how many epochs clients train alone, if that does not depend on what they reach."""
    epochs = setup.experiment.contribution.epochs
    return WITHOUT_VALIDATION if epochs is None and setup.validation is None else epochs


def training_alone(
    setup: Setup, asked: Tensor | None = None, again_in: int | None = None, states: ClientStates | None = None
) -> Generator[Training, Trained, Alone]:
    """Let the clients that are asked (N,), by default all, train alone, again if it is before a later round.

    Whoever drives it sends what each training gave. A client that does not answer any more keeps its best model.
    `states` is what attackers remember.
    """
    phase, states = ALONE.again_in(again_in), states or ClientStates()
    epochs = fixed_epochs(setup)
    if epochs is not None:
        work = replace(setup.experiment.training.work(), steps=None, epochs=epochs, phase=phase)
        uploads = yield from _answers(setup, Rewards(setup.initial, work, participants=asked), states)
        models, finite = _finite(uploads.updates + setup.initial, setup)
        return Alone(models, ~finite, uploads.present)
    own, validation = setup.experiment.contribution, setup.validation
    assert validation is not None  # without one, epochs are fixed
    rows, rising, stage, done = setup.initial, asked, 0, 0
    best = torch.full((len(setup.problem.federation),), -torch.inf, dtype=torch.float64, device=setup.initial.device)
    waited, diverged, answered = torch.zeros_like(best), best.isnan(), best.isnan()
    models = setup.initial.expand(len(best), -1)
    while done < own.steps and (rising is None or bool(rising.any())):
        work = _of_steps(setup.experiment.training.work(), min(own.stage, own.steps - done))
        rewards = Rewards(rows, replace(work, phase=replace(phase, stage=stage)), participants=rising)
        uploads = yield from _answers(setup, rewards, states)
        rows, finite = _finite(rows + uploads.updates, setup)
        stage, done = stage + 1, done + own.stage
        diverged, answered = diverged | ~finite, answered | uploads.present
        rising = uploads.present & finite
        reached = torch.full_like(best, -torch.inf)
        if bool(rising.any()):
            reached[rising] = validation.score(rows[rising]).metric.double().nan_to_num(-torch.inf)
        # of equally good models the later one: on few samples many are equal, and early ones vary more
        models = torch.where((rising & (reached >= best))[:, None], rows, models)
        waited = torch.where(reached > best, 0, waited + 1)
        best = best.maximum(reached)
        rising = rising & (waited < own.patience)
    return Alone(torch.where(diverged[:, None], setup.initial, models), diverged, answered)


def driven(asking: Generator[Training, Trained, Found], train: Callable[[Training], Trained]) -> Found:
    """Return what a measurement finds, with somebody who does the trainings that it asks for."""
    try:
        training = next(asking)
        while True:
            training = asking.send(train(training))
    except StopIteration as done:
        found: Found = done.value
        return found


def _answers(setup: Setup, rewards: Rewards, states: ClientStates) -> Generator[Training, Trained, Uploads]:
    asked = Training(rewards, states, 1)
    return setup.acted(asked, (yield asked))[0]


def _of_steps(work: Work, steps: int) -> Work:
    """Return work of so many steps, all at the learning rate of the first."""
    return replace(work, steps=steps, epochs=None, decay=1.0, decay_every="round")


def _finite(models: Tensor, setup: Setup) -> tuple[Tensor, Tensor]:
    """Return models with the initial one for those that are not finite, and which are (N,)."""
    finite = torch.isfinite(models).all(1)
    return (models if bool(finite.all()) else torch.where(finite[:, None], models, setup.initial)), finite
