"""MLflow: a local store, or the server that MLFLOW_TRACKING_URI names."""

import importlib
import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from cofair.errors import RunError
from cofair.storage.folder import explaining_write_errors
from cofair.tracking.base import FOLDER, Ending, package, setting_text

_BATCH = 100  # what a server of MLflow takes at once


class MLflow:
    """A local store in OUT/mlflow, or the server that MLFLOW_TRACKING_URI names."""

    name = "mlflow"

    def __init__(self, folder: Path | None) -> None:
        """Take a folder; the experiment is called `cofair` unless MLFLOW_EXPERIMENT_NAME says otherwise."""
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # who trains what with whom is nobody else's business
        mlflow = package("mlflow", "mlflow")
        self._entities = importlib.import_module("mlflow.entities")
        logging.getLogger("mlflow").setLevel(logging.WARNING)
        logging.getLogger("alembic").setLevel(logging.WARNING)
        self._mlflow, self._folder = mlflow, (folder or FOLDER) / "mlflow"
        self._server = os.environ.get("MLFLOW_TRACKING_URI")
        self.look = self._server or _local_store(self._folder)[2]
        self._opened: tuple[Any, str] | None = None
        if self._server:  # if it does not answer, nothing is trained
            self._open()

    def begin(self, name: str, settings: Mapping[str, Any]) -> "_MLflowRun":
        """Open a run; earlier ones of that name stay, as MLflow users expect."""
        client, experiment = self._open()
        run_id = client.create_run(experiment, run_name=name).info.run_id
        params = [self._entities.Param(key, setting_text(value)) for key, value in settings.items()]
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
    """Return the address of a local store, of its artifacts, and how to look at it.

    A database where the whole of mlflow is installed; mlflow-skinny has only files, which mlflow allows on request.
    """
    path = folder.absolute()
    if find_spec("sqlalchemy") and find_spec("alembic"):
        uri = f"sqlite:///{path / 'mlflow.db'}"
        return uri, (path / "artifacts").as_uri(), f"mlflow ui --backend-store-uri sqlite:///{folder / 'mlflow.db'}"
    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
    return path.as_uri(), None, f"MLFLOW_ALLOW_FILE_STORE=true mlflow ui --backend-store-uri {folder}"


def _batches(values: Sequence[Any]) -> Iterator[Sequence[Any]]:
    return (values[k : k + _BATCH] for k in range(0, len(values), _BATCH))
