"""Weights & Biases: runs in a local folder, or on the server where WANDB_MODE=online."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cofair.storage.folder import explaining_write_errors
from cofair.tracking.base import FOLDER, Ending, package


class WeightsAndBiases:
    """Offline runs in OUT/wandb, which `wandb sync` uploads; with WANDB_MODE=online they are uploaded as they run."""

    name = "wandb"

    def __init__(self, folder: Path | None) -> None:
        """Take a folder; the project is called `cofair` unless WANDB_PROJECT says otherwise."""
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # who trains what is nobody else's business
        self._wandb = package("wandb", self.name)
        self._folder, self._mode = folder or FOLDER, os.environ.get("WANDB_MODE", "offline")
        self._project = os.environ.get("WANDB_PROJECT") or "cofair"
        offline = f"wandb sync {self._folder / 'wandb'}/offline-run-*"
        self.look = f"wandb, project {self._project}" if self._mode == "online" else offline

    def begin(self, name: str, settings: Mapping[str, Any]) -> "_WandbRun":
        """Open a run next to those that are open; earlier ones of that name stay, as W&B users expect."""
        with explaining_write_errors(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
        quiet = self._wandb.Settings(silent=True, console="off", disable_git=True, disable_code=True)
        return _WandbRun(
            self._wandb.init(
                project=self._project, name=name, config=dict(settings), dir=str(self._folder), mode=self._mode,
                reinit="create_new", settings=quiet,
            )
        )  # fmt: skip


class _WandbRun:
    def __init__(self, run: Any) -> None:
        self._run = run

    def log(self, values: Mapping[str, float], t: int) -> None:
        self._run.log(dict(values), step=t)

    def end(self, how: Ending) -> None:
        self._run.finish(exit_code=0 if how == "finished" else 1)
