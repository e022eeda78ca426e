"""The one loop: rewards out, local training, uploads in. `Run` holds what it changes; drivers supply the training."""

from collections.abc import Generator
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from cofair import metrics, settings
from cofair.engine.protocol import ClientStates, Delivered, Rewards, Trained, Training, Uploads
from cofair.errors import DivergedError, RunError
from cofair.methods import Method
from cofair.results.record import Baseline, Record
from cofair.results.tested_round import TestedRound
from cofair.rounds import upload_checks
from cofair.rounds.defences import defended
from cofair.rounds.participation import had_no_effect
from cofair.runs import holding, measurement
from cofair.runs.training_alone import training_alone
from cofair.scoring.scorer import Scorer

if TYPE_CHECKING:
    from cofair.runs.run import Run


def rounds(run: "Run") -> Generator[Training, Trained, None]:
    """Run a method from the round after the run's own to its last; whoever drives it sends what each training gave."""
    try:
        yield from _rounds(run)
    except DivergedError as error:
        raise RunError(f"{error}; {remedy(run.experiment.method)}.") from None


def remedy(method: Method[Any]) -> str:
    """Say what may help where training diverged: first what was changed of the method's own settings."""
    defaults = {own.name: own.default for own in settings.describe(type(method))}
    changed = [
        f"method.{name} = {value!r}, by default {defaults[name]!r}"
        for name, value in settings.values(method).items()
        if value != defaults[name]
    ]
    if changed:
        return f"the cause may be {' or '.join(changed)}; if not, lower training.lr or set training.clip"
    own = f", or look at the settings of '{method.name}' ('cofair methods')" if defaults else ""
    return f"lower training.lr or set training.clip{own}"


def _rounds(run: "Run") -> Generator[Training, Trained, None]:
    method = run.experiment.method
    for t in range(run.round + 1, run.last_round + 1):
        run.admit_newcomers(t)
        yield from measure_again(run, t)
        for phase in method.phases(run.server, t):
            wanted = method.rewards(run.server, run.state.method, t, phase).during(phase)
            rewards = hand_out(run, wanted, t)
            run.change(status=run.state.status.after_handing(rewards, run.server.neurons))
            trained = yield Training(rewards, run.state.clients, t)
            keep(run, rewards, t)
            uploads = receive(run, rewards, trained, t)
            learned = method.learn(run.server, run.state.method, rewards, uploads, t, phase)
            run.change(method=learned, tally=run.state.tally.after(run.server, rewards, uploads, t))
            fade_absent(run, wanted, rewards, uploads, t)
        if run.server.evaluates(t) or t == run.last_round:
            test(run, t)
        run.complete(t)


def measure_again(run: "Run", t: int) -> Generator[Training, Trained, None]:
    """Let clients train alone again and measure what they bring, where the experiment asks for that before round t."""
    if not measurement.is_due(run.setup, t):
        return
    asked = hand_out(run, Rewards(run.setup.initial, run.server.work), t).participants
    remembered = ClientStates(attackers=run.state.clients.attackers)
    alone = yield from training_alone(run.setup, asked, again_in=t, states=remembered)
    delivered = run.experiment.method.delivered(run.server, run.state.method)
    status, refused = measurement.measured_again(run.setup, run.state.status, alone, delivered.parameters)
    run.change(status=status, tally=run.state.tally.refusing(refused, t))


def hand_out(run: "Run", rewards: Rewards, t: int) -> Rewards:
    """Return a method's rewards, handed only to clients that take part in the round and were not removed."""
    removes = run.experiment.defence.threshold is not None
    return run.setup.participation.limited(rewards, t, run.state.status.members if removes else None)


def keep(run: "Run", rewards: Rewards, t: int) -> None:
    """Keep what clients were handed, where what they hold in the end is measured."""
    if (kept := run.state.kept) is not None:
        run.change(kept=kept.after(rewards, run.server.initial, run.problem.neurons, t))


def receive(run: "Run", rewards: Rewards, trained: Trained, t: int) -> Uploads:
    """Return the uploads that the method may learn from: those that pass the checks, as defences leave them."""
    uploads, remembered = run.setup.acted(Training(rewards, run.state.clients, t), trained)
    if rewards.keeps_memory:
        run.change(clients=remembered)
    uploads = upload_checks.admitted(rewards, uploads, run.problem.layout)
    status = run.state.status.after(uploads, run.server, t)
    if rewards.work.phase.uploads:
        delivered = partial(run.experiment.method.delivered, run.server, run.state.method)
        uploads, status = defended(run.experiment.defence, uploads, status, delivered, t)
    run.change(status=status)
    return uploads


def fade_absent(run: "Run", wanted: Rewards, rewards: Rewards, uploads: Uploads, t: int) -> None:
    """Let clients that missed a training lose a share of their standing, where the experiment asks for that."""
    if not run.fade or not rewards.work.phase.uploads:
        return
    came = uploads.present & ~had_no_effect(rewards, uploads)
    missed = run.problem.federation.present(wanted.participants) & ~came
    missed &= run.setup.participation.sampled(t)  # a client that was not asked misses nothing
    run.change(
        status=run.state.status.after_missing(missed, came),
        method=run.experiment.method.faded(run.state.method, torch.where(missed, 1 - run.fade, 1.0)),
    )


def test(run: "Run", t: int) -> None:
    """Test the models delivered in round t, and hand the result to the run's journal and listener."""
    method, server, status, tally = (
        run.experiment.method,
        run.server,
        run.state.status,
        run.state.tally.counted(run.server),
    )
    delivered, reputation = status.kept(method.delivered(server, run.state.method)), method.reputation(run.state.method)
    accuracies, seconds = _scores(run.setup.tester, delivered, server.clients, t), run.seconds()
    kept = run.state.kept if t == run.last_round else None
    held = None if kept is None else holding.held(run.setup, kept, delivered, status.brought)
    record = Record(
        round=t,
        fairness=metrics.fairness(status.brought, accuracies),
        accuracies=accuracies,
        validation=_scores(server.validation, delivered, server.clients, t) if run.experiment.run.joint else None,
        reputation=None if reputation is None else _list(reputation),
        download=_list(tally.downloaded / t),
        seconds=seconds,
        last=t == run.last_round,
        allocation=tally.allocation(),
        refused=tally.reasons(server.names),
        promised=None if delivered.promised is None else _list(delivered.promised),
        validated=None if delivered.validated is None else _list(delivered.validated),
        contributions=None if status.as_brought else _list(status.contributions),
        **({} if held is None else held.of_record()),
        baseline=Baseline(tuple(_list(status.brought)), run.contributions_are_accuracies),
    )
    took_part = tally.took_part(server.clients)
    run.tested(
        TestedRound(record, delivered, server.names, status.contributions, took_part, tally.refused, server.neurons)
    )
    run.change(tally=tally.tested())


def _scores(scorer: Scorer, delivered: Delivered, clients: int, t: int) -> list[float]:
    """Return the accuracy of every client's reward."""
    scores = scorer.score(delivered.parameters, delivered.neuron_masks)
    if not bool(torch.isfinite(scores.loss).all()):
        which = "" if len(scores.loss) == 1 else f" (client {int((~torch.isfinite(scores.loss)).nonzero()[0])} first)"
        raise DivergedError(f"Training diverged by round {t}: a reward gives losses that are not finite{which}")
    return _list(scores.metric.expand(clients))


def _list(values: Tensor) -> list[float]:
    return [float(value) for value in values.detach().cpu().double()]
