"""The organiser's side: a ServerApp around an experiment file."""

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from torch import Tensor

from cofair.engine import choose
from cofair.engine.exchange import ClientStates
from cofair.engine.losses import Loss
from cofair.federation.federation import Arrays, Federation
from cofair.flower.asks import asked_by
from cofair.flower.engine import GridEngine
from cofair.flower.federation import RemoteFederation, read_members, write_members
from cofair.flower.joining import gather
from cofair.flower.local import fingerprint
from cofair.flower.settings import Waiting, configured, waiting
from cofair.flower.traffic import Traffic
from cofair.runs.experiment import Experiment
from cofair.runs.folder import RunFolder
from cofair.runs.journal import opened
from cofair.runs.prepare import Model, Prepared, measure_contributions, set_up
from cofair.runs.result import Result
from cofair.runs.run import Listener, carry_out

LOG = logging.getLogger("flwr.cofair")
Data = Callable[[Context], tuple[Arrays, Arrays | None] | None]
_NEED_NO_TRAINING = ("size", "diversity", "entropy")


def server_app(
    experiment: Path | Experiment, model: Model | None = None, data: Data | None = None, *, loss: Loss | None = None
) -> ServerApp:
    """Return a ServerApp that runs an experiment with whoever joins; the run's setting `out` names a run folder.

    `data(context)` returns the test set and the validation set (None for none). Without data, or where it returns None,
    they are those of the experiment file: for trials on data that everybody has.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        chosen = configured(experiment, context.run_config)
        out = str(context.run_config.get("out", ""))
        resume = bool(context.run_config.get("resume", False))
        folder = RunFolder(Path(out), resume=resume) if out else None
        test, validation = (data and data(context)) or (None, None)
        result = serve(
            grid, chosen, model, test=test, validation=validation, loss=loss,
            wait=waiting(context.run_config), folder=folder,
        )  # fmt: skip
        LOG.info("%r", result)

    return app


def serve(
    grid: Grid, experiment: Experiment, model: Model | None = None, *, test: Arrays | None = None,
    validation: Arrays | None = None, loss: Loss | None = None, wait: Waiting | None = None,
    folder: RunFolder | None = None, listener: Listener | None = None,
) -> Result:  # fmt: skip
    """Run an experiment with the nodes of a grid."""
    wait = wait or Waiting()
    with choose.arithmetic(experiment.run.precision):
        asks = asked_by(experiment)
        own = _own_side(experiment, model, test, validation, loss)
        federation, clients = own.problem.federation, wait.clients or experiment.federation.clients
        model = own.problem.layout.prototype
        members = None if folder is None or not folder.resume else read_members(folder.path)
        if members is None:
            model_here = fingerprint(own.problem)
            members = gather(grid, experiment.method.name, asks, federation.classes, clients, model_here, wait)
        remote = RemoteFederation(members, federation.test, federation.validation, federation.classes)
        there = experiment.with_run(engine="loop")  # it never trains, so that any will do
        ready = set_up(there, federation=remote, model=model, loss=loss)
        traffic = Traffic(remote.names)
        engine = GridEngine(ready.problem, grid, [member.identity for member in members], wait, traffic)
        given = ready.given - ({"federation", "model"} if test is None else set())
        ready = replace(ready, experiment=experiment, engine=engine, given=given)
        with opened(folder, experiment, keeps_rewards=True) as journal:
            _measured(ready, None if journal is None else journal.contributions)
            if folder is not None:
                folder.path.mkdir(parents=True, exist_ok=True)
                write_members(folder.path, members)
            result = carry_out(experiment, ready, journal, listener)
        if folder is not None:
            traffic.write(folder.path)
        return result


def _measured(ready: Prepared, known: Tensor | None) -> None:
    """Find out what everybody brings: clients train alone, and the server scores the result; or it is known already."""
    experiment, server = ready.experiment, ready.server
    needs = experiment.contribution.measure not in _NEED_NO_TRAINING
    if experiment.method.name == "standalone" or (known is None and needs):
        server.take_alone(ready.engine.train(ready.alone, ClientStates(), 1)[0])
    if known is None:
        measure_contributions(ready)
    else:
        server.contributions = known.to(server.initial.device)


def _own_side(
    experiment: Experiment, model: Model | None, test: Arrays | None, validation: Arrays | None, loss: Loss | None
) -> Prepared:
    """Set up what the server has before anybody joins."""
    if test is None:
        return set_up(experiment, model=model, loss=loss)
    alone = Federation([test], test=test, validation=validation)  # stands in for those who will join
    return set_up(experiment, federation=alone, model=model, loss=loss)
