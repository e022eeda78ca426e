"""TensorBoard: event files, a folder for each run."""

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from cofair.errors import RunError
from cofair.results.columns import MEASURED
from cofair.storage.folder import explaining_write_errors
from cofair.tracking.base import FOLDER, Ending, package, setting_text


class TensorBoard:
    """Event files in OUT/tensorboard/fedrac-seed0 and the like."""

    name = "tensorboard"

    def __init__(self, folder: Path | None) -> None:
        """Take a folder; without one, a new one in ./tracking, so that earlier runs stay."""
        self._writers = package("torch.utils.tensorboard", "tensorboard")
        self._summaries = package("torch.utils.tensorboard.summary", "tensorboard")
        root = (folder or FOLDER) / "tensorboard"
        self._folder = root if folder else _new_folder(root)
        self.look = f"tensorboard --logdir {root}"

    def begin(self, name: str, settings: Mapping[str, Any]) -> "_TensorBoardRun":
        """Open a run; the events of an earlier one of that name go, as the rest of its run folder does."""
        own = self._folder / name
        for earlier in own.glob("events.out.tfevents.*"):
            earlier.unlink()
        writer = self._writers.SummaryWriter(str(own), flush_secs=10)
        known = {
            key: value if isinstance(value, bool | int | float) else setting_text(value)
            for key, value in settings.items()
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


def _new_folder(root: Path) -> Path:
    """Make a new folder, named after the time."""
    now = datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    with explaining_write_errors(root):
        for name in (now, *(f"{now}-{k}" for k in range(2, 1000))):
            if not (root / name).exists():
                (root / name).mkdir(parents=True)
                return root / name
    raise RunError(f"{root} holds too many runs that began at {now}.")
