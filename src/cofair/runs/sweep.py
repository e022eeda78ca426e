"""Sweeps: a grid of experiments, in lockstep; each has a run folder, so that a sweep can be interrupted and resumed."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cofair.config.experiment import read_file
from cofair.config.grid import Point, read_grid
from cofair.config.job import Job
from cofair.results.listener import Listener
from cofair.runs.jobs import run_jobs, unfinished
from cofair.storage.folder import refuse_earlier


def sweep(
    grid: Path | str | Mapping[str, Any] | Sequence[Point], out: str | Path, *, resume: bool = False, workers: int = 1,
    listener: Listener | None = None, load: Sequence[Path] = (),
) -> list[Job]:  # fmt: skip
    """Run every experiment of a grid, many of them in lockstep, and return the jobs, whose folders hold the results.

    `grid` is a TOML file, its tables, or points read from it. With `resume`, finished runs in `out` are kept and
    interrupted ones resumed. `workers` processes share the work; `load` names files that register methods.
    """
    if isinstance(grid, str | Path):
        grid = read_file(Path(grid))
    points = read_grid(grid) if isinstance(grid, Mapping) else list(grid)
    jobs = [Job(point.experiment, Path(out) / point.name) for point in points]
    names = [job.name for job in jobs]
    refuse_earlier(Path(out), ("summary.csv", *names), resume, "--resume continues them")
    run_jobs(unfinished(jobs), listener or Listener(), lockstep=True, workers=workers, load=load)
    return jobs
