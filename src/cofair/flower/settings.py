"""Settings of a federation on Flower: the experiment, and how long the server waits for whom."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cofair.errors import UsageError
from cofair.runs.experiment import Experiment
from cofair.settings import read, setting


@dataclass(frozen=True)
class Waiting:
    """Whom the server waits for, and how long; nothing waits for ever."""

    clients: int | None = setting(None, "participants to start with; none: as many as the experiment has", minimum=1)
    minimum: int | None = setting(None, "participants without whom it does not start; none: all of them", minimum=1)
    join_seconds: float = setting(300.0, "how long the server waits for participants before it starts", above=0)
    round_seconds: float = setting(600.0, "deadline of a training: who has not answered by then is absent", above=0)
    poll_seconds: float = setting(1.0, "seconds between two looks for answers", above=0)
    newcomers: bool = setting(True, "whoever comes later takes part from the next round on; false: from the next run")
    newcomer_seconds: float = setting(60.0, "how long a round waits for a newcomer to say who it is", above=0)
    tries: int = setting(3, "how often a training is asked for before a run ends in which nobody answers", minimum=1)


def configured(experiment: Path | Experiment, run_config: Mapping[str, Any]) -> Experiment:
    """Return the experiment of an app, with the `overrides` of a run such as "training.lr=0.1 run.seed=2"."""
    overrides = str(run_config.get("overrides", "")).split()
    if isinstance(experiment, Path):
        return Experiment.from_file(experiment, overrides)
    if overrides:
        raise UsageError("overrides change an experiment that is a file, and this one is given in Python.")
    return experiment


def waiting(run_config: Mapping[str, Any]) -> Waiting:
    """Return how long the server waits, from a run's settings such as `round-seconds`."""
    names = {name.replace("_", "-"): name for name in Waiting.__dataclass_fields__}
    return read(Waiting, {names[key]: value for key, value in run_config.items() if key in names}, "run-config")
