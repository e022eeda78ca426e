"""The organiser's side: a ServerApp around an experiment file."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from torch import Tensor

from cofair.config.experiment import Experiment
from cofair.data.federation import Arrays, Federation
from cofair.engine import choose
from cofair.engine.losses import Loss
from cofair.engine.protocol import ClientStates
from cofair.flower.asks import asked_by
from cofair.flower.deploy.bounds import allow
from cofair.flower.enrolment import Question, gather
from cofair.flower.flower_settings import Waiting, experiment_of, organiser_folder, server_settings
from cofair.flower.grid_engine import GridEngine
from cofair.flower.local_training import fingerprint
from cofair.flower.newcomers import NEEDS_NO_TRAINING, Newcomers
from cofair.flower.remote_federation import Member, RemoteFederation, read_members, write_members
from cofair.flower.traffic import Traffic
from cofair.flower.upload_collector import largest_upload
from cofair.results.record import Listener, Record
from cofair.results.result import Result
from cofair.runs.run import carry_out
from cofair.runs.setup import Model, Prepared, measure_contributions, set_up
from cofair.storage.folder import RunFolder
from cofair.storage.journal import Journal, opened

LOG = logging.getLogger("flwr.cofair")
FADE = 0.2  # of a reputation, for each training that a client misses: after ten of them a tenth is left
Data = Callable[[Context], tuple[Arrays, Arrays | None] | None]


def server_app(
    experiment: Path | Experiment, model: Model | None = None, data: Data | None = None, *, loss: Loss | None = None
) -> ServerApp:
    """Return a ServerApp that runs an experiment with whoever joins, as the organiser's server.toml says.

    `data(context)` returns the test set and the validation set (None for none). Without data, or where it returns None,
    they are those of the experiment file: for trials on data that everybody has.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        settings = server_settings(context.run_config)
        out, organiser = settings.out_folder, organiser_folder()
        test, validation = (data and data(context)) or (None, None)
        result = serve(
            grid, experiment_of(experiment), model, test=test, validation=validation, loss=loss, wait=settings,
            folder=None if out is None else RunFolder(out, resume=True),
            allow=None if organiser is None else partial(allow, organiser, context.run_id),
        )  # fmt: skip
        LOG.info("%r", result)

    return app


def serve(
    grid: Grid, experiment: Experiment, model: Model | None = None, *, test: Arrays | None = None,
    validation: Arrays | None = None, loss: Loss | None = None, wait: Waiting | None = None,
    folder: RunFolder | None = None, listener: Listener | None = None, allow: Callable[[int], None] | None = None,
) -> Result:  # fmt: skip
    """Run an experiment with the nodes of a grid; what happened is kept after every round, unless it says otherwise.

    `allow(size)` is told how many bytes an upload may have, before anybody is asked for one.
    """
    wait, experiment = wait or Waiting(), deployed(experiment)
    with choose.arithmetic(experiment.run.precision), opened(folder, experiment, keeps_rewards=True) as journal:
        own = _own_side(experiment, model, test, validation, loss)
        if allow is not None:
            allow(largest_upload(own.problem))
        traffic = Traffic(folder.path if folder is not None and folder.resume else None)
        engine = GridEngine(own.problem, grid, (), wait, traffic)
        given = own.given - {"federation"} if test is None else own.given | {"federation", "model"}
        served = _Served(experiment, own, given, loss, engine, folder, journal)
        asks, classes = asked_by(experiment), own.problem.federation.classes
        question = Question(experiment.method.name, asks, classes, fingerprint(own.problem))
        everybody = served.earlier() or gather(grid, question, wait.clients or experiment.federation.clients, wait)
        members = everybody if served.measured is None else everybody[: len(served.measured)]
        ready = served.begun(members)
        served.write(everybody)
        arrivals = Newcomers(grid, list(members), everybody, question, wait, engine, served.prepared_for, served.joined)
        ready = replace(ready, arrivals=arrivals)
        return carry_out(experiment, ready, journal, served.listening(listener))


def deployed(experiment: Experiment) -> Experiment:
    """Return an experiment with the defaults of deployments: real clients stay away, and processes are killed."""
    participation = experiment.participation
    if participation.fade is None:
        experiment = replace(experiment, participation=replace(participation, fade=FADE))
    return experiment.with_run(checkpoint_every=1) if experiment.run.checkpoint_every is None else experiment


@dataclass
class _Served:
    """A run between the network and its folder."""

    experiment: Experiment
    own: Prepared  # what the server has by itself
    given: frozenset[str]
    loss: Loss | None
    engine: GridEngine
    folder: RunFolder | None
    journal: Journal | None

    @property
    def measured(self) -> Tensor | None:
        """Return what the first clients brought, where the run goes on."""
        return None if self.journal is None else self.journal.contributions

    def earlier(self) -> list[Member] | None:
        """Return everybody who took part before the server was restarted."""
        return None if self.folder is None or self.measured is None else read_members(self.folder.path)

    def begun(self, members: Sequence[Member]) -> Prepared:
        """Return the run of those it begins with, and what they bring."""
        journal = self.journal
        ready = self.prepared_for(members)
        self.engine.enlarge(ready.problem, [member.identity for member in members])
        self.engine.trainings = lambda t: len(self.experiment.method.phases(ready.server, t))
        _measure(ready, self.measured)
        if journal is not None:
            self.engine.head = lambda: journal.head
        return ready

    def prepared_for(self, members: Sequence[Member]) -> Prepared:
        """Set up the run for some members."""
        here = self.own.problem.federation
        remote = RemoteFederation(members, here.test, here.validation, here.classes)
        there = self.experiment.with_run(engine="loop")  # it never trains, so that any will do
        ready = set_up(there, federation=remote, model=self.own.problem.layout.prototype, loss=self.loss)
        return replace(ready, experiment=self.experiment, engine=self.engine, given=self.given)

    def joined(self, prepared: Prepared, members: Sequence[Member], t: int | None) -> None:
        """Write who has joined before round t, or who is there when a run goes on."""
        self.write(members)
        if self.journal is not None and t is not None:
            self.journal.joined(prepared, t)
        elif self.journal is not None:
            self.journal.tell_clients(prepared)

    def write(self, members: Sequence[Member]) -> None:
        """Write who takes part, so that a restarted server knows everybody's place."""
        if self.folder is not None:
            self.folder.path.mkdir(parents=True, exist_ok=True)
            write_members(self.folder.path, members)

    def listening(self, listener: Listener | None) -> Listener:
        """Return a listener that keeps the bytes which have travelled as well."""

        def heard(method: str, seed: int, record: Record | None) -> None:
            if self.folder is not None:
                self.engine.traffic.write(self.folder.path, self.engine.problem.federation.names)
            if listener is not None:
                listener(method, seed, record)

        return heard


def _measure(ready: Prepared, known: Tensor | None) -> None:
    """Find out what everybody brings: clients train alone, and the server scores the result; or it is known already."""
    experiment, server = ready.experiment, ready.server
    needs = experiment.contribution.measure not in NEEDS_NO_TRAINING
    if experiment.method.name == "standalone" or (known is None and needs):
        server.take_alone(ready.engine.train(ready.alone, ClientStates(), 1)[0])
    measure_contributions(ready, known)


def _own_side(
    experiment: Experiment, model: Model | None, test: Arrays | None, validation: Arrays | None, loss: Loss | None
) -> Prepared:
    """Set up what the server has before anybody joins."""
    if test is None:
        return set_up(experiment, model=model, loss=loss)
    alone = Federation([test], test=test, validation=validation)  # stands in for those who will join
    return set_up(experiment, federation=alone, model=model, loss=loss)
