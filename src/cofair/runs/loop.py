"""The one loop: rewards out, local training, uploads in."""

import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from cofair import metrics
from cofair.engine.protocol import ClientStates, Delivered, Rewards, Uploads
from cofair.errors import RunError
from cofair.methods import Method
from cofair.rounds.client_status import Standing
from cofair.rounds.participation import came_to_nothing
from cofair.runs.setup import Prepared
from cofair.runs.state import Position, Stopwatch, Tally
from cofair.scoring.scorer import Scorer
from cofair.storage.history import Record


@dataclass(frozen=True)
class Training:
    """A local training that a run waits for: what is handed out, what the clients remember, the round."""

    rewards: Rewards
    clients: ClientStates
    t: int


@dataclass(frozen=True)
class Tested:
    """A tested round: what was measured, the models delivered, what was counted since the test before.

    `contributions` (N,) are those that the method goes by, measured anew where the experiment asks for that.
    `prepared` is the run's, with all clients that have joined by then.
    """

    record: Record
    delivered: Delivered
    tally: Tally
    contributions: Tensor
    prepared: Prepared


Trained = tuple[Uploads, ClientStates]
Keep = Callable[[Position], None]


def rounds(method: Method[Any], prepared: Prepared) -> Iterator[tuple[Record, Delivered]]:
    """Run a method and yield, for each round that is tested, what was measured and the models delivered."""
    for tested in driven(method, prepared):
        yield tested.record, tested.delivered


def driven(
    method: Method[Any], prepared: Prepared, begun: Position | None = None, keep: Keep | None = None
) -> Iterator[Tested]:
    """Run a method with its own engine, from its start or from where it stands, and yield its tested rounds."""
    run = going(method, prepared, begun=begun, keep=keep)
    event = next(run, None)
    while event is not None:
        if isinstance(event, Tested):
            yield event
            event = next(run, None)
        else:
            event = _sent(run, prepared.engine.train(event.rewards, event.clients, event.t))


def going(
    method: Method[Any], prepared: Prepared, clock: Callable[[], float] = time.perf_counter, *,
    begun: Position | None = None, keep: Keep | None = None,
) -> Generator[Training | Tested, Trained | None, None]:  # fmt: skip
    """Run a method; whoever drives it sends what each training gave. Runs in lockstep are trained together.

    The run goes on from `begun`, if it was begun before; `keep` is shown where it stands after every round.
    """
    if begun is not None and prepared.arrivals is not None:
        prepared = prepared.arrivals.restored(prepared, begun.standing.brought)
    server, fade = prepared.server, prepared.participation.settings.fade or 0.0
    at = begun or Position(0, method.start(server), ClientStates(), Tally.empty(server), 0.0, Standing.at_first(server))
    watch = Stopwatch(clock, at.seconds)
    state, clients, tally, standing = at.state, at.clients, at.tally, at.standing
    last = method.rounds(server)
    for t in range(at.t + 1, last + 1):
        joined = prepared.arrivals.before(prepared, t) if prepared.arrivals is not None and t > 1 else None
        if joined is not None:
            prepared = joined
            standing, tally = standing.with_newcomers(joined.server), tally.with_newcomers(joined.server.clients)
            state = method.welcome(joined.server.told(standing.believed(fade)), state, t)
        if prepared.measures_again(t):
            trained = yield Training(prepared.alone_again(standing, t), ClientStates(), 1)
            assert trained is not None
            standing = prepared.measured_again(standing, trained[0])
        for phase in method.phases(server, t):
            server = prepared.server.told(standing.believed(fade))
            wanted = method.rewards(server, state, t, phase).during(phase)
            rewards = prepared.handed(wanted, standing, t)
            trained = yield Training(rewards, clients, t)
            assert trained is not None
            uploads, remembered = trained
            clients = remembered if rewards.keeps_memory else clients
            uploads, standing = prepared.received(
                rewards, uploads, standing, partial(method.delivered, server, state), t
            )
            server = prepared.server.told(standing.believed(fade))
            state = method.learn(server, state, rewards, uploads, t, phase)
            tally = tally.after(server, rewards, uploads, t)
            if fade and phase.uploads:
                came = uploads.present & ~came_to_nothing(rewards, uploads)
                missed = prepared.problem.federation.present(wanted.participants) & ~came
                missed &= prepared.participation.sampled(t)  # who was not asked misses nothing
                standing = standing.after_missing(missed, came)
                state = method.faded(state, torch.where(missed, 1 - fade, 1.0))
        if server.evaluates(t) or t == last:
            delivered, tally = standing.kept(method.delivered(server, state)), tally.counted(server)
            reputation = method.reputation(state)
            accuracies = _tested(prepared.tester, delivered, server.clients, t)
            record = Record(
                round=t,
                fairness=metrics.fairness(standing.brought, accuracies),
                accuracies=accuracies,
                validation=(
                    _tested(server.validation, delivered, server.clients, t) if prepared.experiment.run.joint else None
                ),
                reputation=None if reputation is None else _list(reputation),
                download=_list(tally.downloaded / t),
                seconds=watch.seconds(),
                last=t == last,
                allocation=tally.allocation(),
                refused=tally.reasons(server.names),
                promised=None if delivered.promised is None else _list(delivered.promised),
                validated=None if delivered.validated is None else _list(delivered.validated),
                contributions=None if standing.as_brought else _list(standing.contributions),
            )
            yield Tested(record, delivered, tally, standing.contributions, prepared)
            tally = tally.tested()
        if keep is not None:
            keep(Position(t, state, clients, tally, watch.seconds(), standing, t == last))


def _sent(run: Generator[Training | Tested, Trained | None, None], trained: Trained) -> Training | Tested | None:
    """Send a run what its training gave; None where that was its end."""
    try:
        return run.send(trained)
    except StopIteration:
        return None


def _tested(scorer: Scorer, delivered: Delivered, clients: int, t: int) -> list[float]:
    """Return the accuracy of every client's reward."""
    scores = scorer.score(delivered.parameters, delivered.neuron_masks)
    if not bool(torch.isfinite(scores.loss).all()):
        which = "" if len(scores.loss) == 1 else f" (client {int((~torch.isfinite(scores.loss)).nonzero()[0])} first)"
        raise RunError(
            f"Training diverged by round {t}: a reward gives losses that are not finite{which}; "
            "lower training.lr or set training.clip."
        )
    return _list(scores.metric.expand(clients))


def _list(values: Tensor) -> list[float]:
    return [float(value) for value in values.detach().cpu().double()]
