"""Sweeps: a grid of experiments, in lockstep; each has a run folder, so that a sweep can be interrupted and resumed."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cofair.config.experiment import read_file
from cofair.config.grid import Point, read_grid
from cofair.config.job import Job
from cofair.results.listener import Listener, Listeners
from cofair.results.sweep_result import SweepResult
from cofair.runs.jobs import run_jobs, unfinished
from cofair.storage.folder import refuse_earlier, write_whole
from cofair.storage.resume import finished_outcome


def sweep(
    grid: str | Path | Mapping[str, Any] | Sequence[Point],
    out: str | Path,
    *,
    resume: bool = False,
    workers: int = 1,
    load: Sequence[Path] = (),
    listener: Listener | None = None,
) -> SweepResult:
    """Run every experiment of a grid, many of them in lockstep, and write the tables.

    Args:
        grid: a TOML file, its tables, or the points that `cofair.config.grid.read_grid` makes of them.
        out: a folder for the tables, with a run folder for every experiment.
        resume: keep the finished runs in `out`, and resume those that were interrupted.
        workers: processes that share the runs.
        load: Python files that register methods, which workers need as well.
        listener: a `Listener` that hears of every run.

    Returns:
        The outcomes of all runs that came to their end; `failures` says why others did not.
    """
    out = Path(out)
    if isinstance(grid, str | Path):
        grid = read_file(Path(grid))
    points = read_grid(grid) if isinstance(grid, Mapping) else list(grid)
    jobs = [Job(point.experiment, out / point.name) for point in points]
    refuse_earlier(out, ("summary.csv", *[job.name for job in jobs]), resume, "--resume continues them")
    failed = _Failures()
    everybody = failed if listener is None else Listeners(listener, failed)
    left = unfinished(jobs)
    for job in set(jobs) - set(left):
        if (outcome := finished_outcome(job.path, job.experiment)) is not None:
            everybody.finished(job, outcome)
    run_jobs(left, everybody, lockstep=True, workers=workers, load=load)
    outcomes = tuple(finished_outcome(job.path, job.experiment) for job in jobs)
    result = SweepResult(tuple(points), tuple(jobs), outcomes, failed.reasons)
    if not result.frame.empty:
        write_whole(out / "runs.csv", result.frame.to_csv(index=False))
        write_whole(out / "summary.csv", result.to_frame().to_csv(index=False))
    return result


class _Failures(Listener):
    """Collects why runs failed."""

    def __init__(self) -> None:
        self.reasons: dict[str, str] = {}

    def failed(self, job: Job, reason: str) -> None:
        self.reasons[job.name] = reason
