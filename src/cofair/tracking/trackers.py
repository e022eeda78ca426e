"""The trackers: TensorBoard and MLflow, each in a local folder unless told otherwise."""

import importlib
import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from cofair.errors import RunError, UsageError
from cofair.results.columns import MEASURED
from cofair.storage.folder import explaining_write_errors
from cofair.tracking.base import FOLDER, Ending

_BATCH = 100  # what a server of MLflow takes at once


class TensorBoard:
    """Event files, a folder for each run: OUT/tensorboard/fedrac-seed0."""

    name = "tensorboard"

    def __init__(self, folder: Path | None) -> None:
        """Take a folder; without one, a new one in ./tracking, so that earlier runs stay."""
        self._writers = _package("torch.utils.tensorboard", "tensorboard")
        self._summaries = _package("torch.utils.tensorboard.summary", "tensorboard")
        root = (folder or FOLDER) / "tensorboard"
        self._folder = root if folder else _new(root)
        self.look = f"tensorboard --logdir {root}"

    def begin(self, name: str, settings: Mapping[str, Any]) -> "_TensorBoardRun":
        """Open a run; the events of an earlier one of that name go, as the rest of its run folder does."""
        own = self._folder / name
        for earlier in own.glob("events.out.tfevents.*"):
            earlier.unlink()
        writer = self._writers.SummaryWriter(str(own), flush_secs=10)
        known = {
            key: value if isinstance(value, bool | int | float) else _text(value) for key, value in settings.items()
        }
        shown = {column.tracked: 0.0 for column in MEASURED if column.tracked is not None}
        what, start, end = self._summaries.hparams(known, shown)
        # not add_hparams: it opens a second file, and only after the run
        for summary in (what, start):
            writer.file_writer.add_summary(summary)
        return _TensorBoardRun(writer, end)


class _TensorBoardRun:
    def __init__(self, writer: Any, end: Any) -> None:
        self._writer, self._end = writer, end

    def log(self, values: Mapping[str, float], t: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, t)

    def end(self, how: Ending) -> None:
        if how == "finished":
            self._writer.file_writer.add_summary(self._end)
        self._writer.close()


class MLflow:
    """A local store in OUT/mlflow, or the server that MLFLOW_TRACKING_URI names."""

    name = "mlflow"

    def __init__(self, folder: Path | None) -> None:
        """Take a folder; the experiment is called `cofair` unless MLFLOW_EXPERIMENT_NAME says otherwise."""
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # who trains what with whom is nobody else's business
        mlflow = _package("mlflow", "mlflow")
        self._entities = importlib.import_module("mlflow.entities")
        logging.getLogger("mlflow").setLevel(logging.WARNING)
        logging.getLogger("alembic").setLevel(logging.WARNING)
        self._mlflow, self._folder = mlflow, (folder or FOLDER) / "mlflow"
        self._server = os.environ.get("MLFLOW_TRACKING_URI")
        self.look = self._server or _local_store(self._folder)[2]
        self._opened: tuple[Any, str] | None = None
        if self._server:  # that it does not answer is told before anything is trained
            self._open()

    def begin(self, name: str, settings: Mapping[str, Any]) -> "_MLflowRun":
        """Open a run; earlier ones of that name stay, as is usual there."""
        client, experiment = self._open()
        run_id = client.create_run(experiment, run_name=name).info.run_id
        params = [self._entities.Param(key, _text(value)) for key, value in settings.items()]
        for batch in _batches(params):
            client.log_batch(run_id, params=batch)
        return _MLflowRun(client, run_id, self._entities.Metric)

    def _open(self) -> tuple[Any, str]:
        """Return the client and the experiment's id; a local store is made when the first run begins."""
        if self._opened is not None:
            return self._opened
        uri, artifacts = self._server, None
        if uri is None:
            with explaining_write_errors(self._folder):
                self._folder.mkdir(parents=True, exist_ok=True)
            uri, artifacts, _ = _local_store(self._folder)
        called = os.environ.get("MLFLOW_EXPERIMENT_NAME") or "cofair"
        try:
            client = self._mlflow.MlflowClient(tracking_uri=uri)
            found = client.get_experiment_by_name(called)
            experiment = found.experiment_id if found else client.create_experiment(called, artifacts)
        except self._mlflow.exceptions.MlflowException as error:
            first_line = str(error).strip().splitlines()[0].rstrip(".")
            raise RunError(f"Cannot track with mlflow at {uri}: {first_line}.") from None
        self._opened = client, experiment
        return self._opened


class _MLflowRun:
    def __init__(self, client: Any, run_id: str, metric: Any) -> None:
        self._client, self._run_id, self._metric = client, run_id, metric

    def log(self, values: Mapping[str, float], t: int) -> None:
        now = int(1000 * time.time())
        for batch in _batches([self._metric(name, float(value), now, t) for name, value in values.items()]):
            self._client.log_batch(self._run_id, metrics=batch)

    def end(self, how: Ending) -> None:
        self._client.set_terminated(self._run_id, how.upper())


def _local_store(folder: Path) -> tuple[str, str | None, str]:
    """Return the address of a local store, of its artifacts, and how one looks at it.

    A data base where the whole of mlflow is installed; mlflow-skinny has only files, which mlflow allows on request.
    """
    path = folder.absolute()
    if find_spec("sqlalchemy") and find_spec("alembic"):
        uri = f"sqlite:///{path / 'mlflow.db'}"
        return uri, (path / "artifacts").as_uri(), f"mlflow ui --backend-store-uri sqlite:///{folder / 'mlflow.db'}"
    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
    return path.as_uri(), None, f"MLFLOW_ALLOW_FILE_STORE=true mlflow ui --backend-store-uri {folder}"


def _package(module: str, tracker: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise UsageError(
            f"--track {tracker} needs a package that is not installed: pip install 'cofair[track]'"
        ) from None


def _new(root: Path) -> Path:
    """Make a folder that no earlier run has, named by the time."""
    now = datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    with explaining_write_errors(root):
        for name in (now, *(f"{now}-{k}" for k in range(2, 1000))):
            if not (root / name).exists():
                (root / name).mkdir(parents=True)
                return root / name
    raise RunError(f"{root} holds too many runs that began at {now}.")


def _text(value: Any) -> str:
    return "none" if value is None else str(value)


def _batches(values: Sequence[Any]) -> Iterator[Sequence[Any]]:
    return (values[k : k + _BATCH] for k in range(0, len(values), _BATCH))
