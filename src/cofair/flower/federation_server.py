"""The organiser's side: a ServerApp around an experiment file."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from cofair.config.experiment import Experiment
from cofair.config.job import Job
from cofair.data.federation import Arrays, Federation
from cofair.engine import choose
from cofair.engine.losses import Loss
from cofair.errors import UsageError
from cofair.flower.asks import asked_by
from cofair.flower.deploy.bounds import allow
from cofair.flower.enrolment import Question, gather
from cofair.flower.flower_settings import Waiting, experiment_of, organiser_folder, server_settings
from cofair.flower.grid_engine import GridEngine
from cofair.flower.local_training import fingerprint
from cofair.flower.newcomers import Newcomers
from cofair.flower.remote_setup import RemoteSetups
from cofair.flower.traffic import Traffic
from cofair.flower.upload_collector import largest_upload
from cofair.results.listener import Callback, Listener, Listeners, as_listener
from cofair.results.record import Record
from cofair.results.result import Result
from cofair.runs.measurement import measured
from cofair.runs.run import Run, drive
from cofair.runs.setup import Model, Parts, Setup, set_up
from cofair.storage.folder import RunFolder
from cofair.storage.journal import open_journal

LOG = logging.getLogger("flwr.cofair")
FADE = 0.2  # share of its reputation that a client loses with each training it misses: a tenth is left after ten
Data = Callable[[Context], tuple[Arrays, Arrays | None] | None]


def server_app(
    experiment: Path | Experiment, model: Model | None = None, data: Data | None = None, *, loss: Loss | None = None
) -> ServerApp:
    """Return a ServerApp that runs an experiment with the nodes that join, as the organiser's server.toml says.

    `data(context)` returns the test set and the validation set (None for none). Without data, or if it returns None,
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
    folder: RunFolder | None = None, listener: Listener | Callback | None = None,
    allow: Callable[[int], None] | None = None,
) -> Result:  # fmt: skip
    """Run an experiment with the nodes of a grid; it has a checkpoint after every round unless its settings differ.

    `allow(size)` is called with the largest size of an upload in bytes, before anybody is asked for one.
    """
    wait, experiment = wait or Waiting(), with_deployment_defaults(experiment)
    path = None if folder is None else folder.path
    with choose.arithmetic(experiment.run.precision), open_journal(folder, experiment, keeps_rewards=True) as journal:
        own = _own_side(experiment, model, test, validation, loss)
        if allow is not None:
            allow(largest_upload(own.problem))
        traffic = Traffic(path if folder is not None and folder.resume else None)
        engine = GridEngine(own.problem, grid, (), wait, traffic)
        given = own.given - {"federation"} if test is None else own.given | {"federation", "model"}
        remote = RemoteSetups(experiment, own, given, loss, engine, path)
        asks, classes = asked_by(experiment), own.problem.federation.classes
        question = Question(experiment.method.name, asks, classes, fingerprint(own.problem))
        known = journal.contributions  # of the clients at the start, if the run resumes
        everybody = remote.members() if known is not None else None
        everybody = everybody or gather(grid, question, wait.clients or experiment.federation.clients, wait)
        members = everybody if known is None else everybody[: len(known)]
        setup = remote.of(members)
        engine.enlarge(setup.problem, [member.identity for member in members])
        brought = measured(setup, [experiment.method], known, remembered=journal.has_state)
        remote.write(everybody)
        newcomers = Newcomers(grid, list(members), everybody, question, wait, engine, remote)
        heard = as_listener(listener)
        counting = Listeners(_TrafficListener(engine, path), *([] if heard is None else [heard]))
        run = Run(Job(experiment, path), setup, brought, journal=journal, listener=counting, newcomers=newcomers)
        engine.trainings = lambda t: len(experiment.method.phases(run.server, t))
        engine.head = lambda: journal.head
        return drive(run).result()


def with_deployment_defaults(experiment: Experiment) -> Experiment:
    """Return an experiment with the defaults of deployments, where clients stay away and processes are killed."""
    if experiment.attack.on:
        raise UsageError("The table 'attack' is for simulations: leave it out of an experiment with real clients.")
    participation = experiment.participation
    if participation.fade is None:
        experiment = replace(experiment, participation=replace(participation, fade=FADE))
    return experiment.with_run(checkpoint_every=1) if experiment.run.checkpoint_every is None else experiment


@dataclass(frozen=True)
class _TrafficListener(Listener):
    """Writes after every tested round how many bytes were sent."""

    engine: GridEngine
    folder: Path | None

    def tested(self, job: Job, record: Record) -> None:
        """Write the bytes."""
        if self.folder is not None:
            self.engine.traffic.write(self.folder, self.engine.problem.federation.names)


def _own_side(
    experiment: Experiment, model: Model | None, test: Arrays | None, validation: Arrays | None, loss: Loss | None
) -> Setup:
    """Set up what the server has before anybody joins."""
    if test is None:
        return set_up(experiment, Parts(model=model, loss=loss))
    alone = Federation([test], test=test, validation=validation)  # stands in for the clients that will join
    return set_up(experiment, Parts(alone, model, loss))
