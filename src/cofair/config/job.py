"""A job: one experiment to run, its name, and the folder that it is written to."""

from dataclasses import dataclass
from pathlib import Path

from cofair.config.experiment import Experiment


@dataclass(frozen=True, eq=False)  # jobs are compared by identity
class Job:
    """One experiment of a comparison or a sweep; without a folder nothing is written, with it its models if asked."""

    experiment: Experiment
    folder: Path | None = None
    keeps_models: bool = False

    @property
    def path(self) -> Path:
        """Return the folder of a job that has one."""
        assert self.folder is not None
        return self.folder

    @property
    def name(self) -> str:
        """Return the name of the run: that of its folder, or its method and seed."""
        return self.folder.name if self.folder is not None else run_name(self.experiment)


def run_name(experiment: Experiment) -> str:
    """Return the name of a run, made of its method and seed."""
    return f"{experiment.method.name}-seed{experiment.run.seed}"
