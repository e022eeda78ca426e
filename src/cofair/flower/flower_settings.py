"""Settings of a federation on Flower: whom the server waits for and how long, and what only the server knows.

Flower sends the settings of a run (`run_config`) to every participant. They therefore hold only the name of a file in
the organiser's folder. Paths and the number of participants are in that file, which is sent to nobody.
"""

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cofair.config.experiment import Experiment
from cofair.errors import UsageError
from cofair.flower.deploy.names import ORGANISER
from cofair.settings import read, setting

SETTINGS = "settings"  # the run's setting that names a file of that folder
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")


@dataclass(frozen=True)
class Waiting:
    """Whom the server waits for, and how long; nothing waits forever."""

    clients: int | None = setting(None, "participants to start with; none: as many as the experiment has", minimum=1)
    minimum: int | None = setting(None, "fewest participants to start with; none: all of them", minimum=1)
    join_seconds: float = setting(300.0, "how long the server waits for participants before it starts", above=0)
    round_seconds: float = setting(
        600.0, "time for a round, shared by its trainings; a late participant counts as absent", above=0
    )
    poll_seconds: float = setting(1.0, "seconds between two checks for answers", above=0)
    newcomers: bool = setting(True, "late participants take part from the next round on; false: from the next run")
    newcomer_seconds: float = setting(
        60.0, "how long a newcomer has to say who it is, at most a quarter of a round", above=0
    )
    tries: int = setting(3, "how often a training is tried before the run ends because nobody answers", minimum=1)


@dataclass(frozen=True)
class ServerSettings(Waiting):
    """What only the server knows."""

    out: str = setting("", "the run folder; a run that was interrupted there is resumed")
    data: str = setting("", "a .npz file of the server's test and validation set; none: the experiment's own data")
    folder: Path = Path()  # of the settings file; paths are relative to it

    @property
    def out_folder(self) -> Path | None:
        """Return the run folder, if there is to be one."""
        return self.folder / self.out if self.out else None

    @property
    def data_file(self) -> Path | None:
        """Return the file of the server's data, if it has one."""
        return self.folder / self.data if self.data else None


def experiment_of(given: Path | Experiment) -> Experiment:
    """Return the experiment of an app."""
    return Experiment.from_file(given) if isinstance(given, Path) else given


def organiser_folder() -> Path | None:
    """Return the organiser's folder, if this process belongs to the server of a deployment."""
    return Path(os.environ[ORGANISER]) if os.environ.get(ORGANISER) else None


def server_settings(run_config: Mapping[str, Any]) -> ServerSettings:
    """Return the settings of the server's own file, by default server.toml; the run's `settings` may name another.

    Without an organiser's folder, as in Flower's simulation, everything has its default.
    """
    name, folder = str(run_config.get(SETTINGS, "server")), organiser_folder()
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"The run's setting 'settings' must be the name of a file without its extension, but is {name!r}."
        )
    if folder is None:
        return ServerSettings()
    path = folder / f"{name}.toml"
    try:
        given = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"Cannot read the server's settings {path}: {error}") from None
    return replace(read(ServerSettings, given, path.name), folder=folder)
