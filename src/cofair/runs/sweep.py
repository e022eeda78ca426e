"""Sweeps: a grid of experiments, in lockstep; each has a run folder, so that a sweep can be interrupted and resumed."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cofair.config.experiment import read_file
from cofair.config.grid import Point, read_grid
from cofair.config.job import Job
from cofair.results.listener import Callback, Listener, Listeners, as_listener
from cofair.results.sweep_result import SweepResult
from cofair.runs.jobs import Collected, run_jobs
from cofair.storage import failures
from cofair.storage.folder import refuse_earlier, write_whole
from cofair.storage.resume import finished_outcome


def sweep(
    grid: str | Path | Mapping[str, Any] | Sequence[Point],
    out: str | Path,
    *,
    resume: bool = False,
    workers: int = 1,
    load: Sequence[Path] = (),
    listener: Listener | Callback | None = None,
) -> SweepResult:
    """Run every experiment of a grid, many of them in lockstep, and write the tables.

    Args:
        grid: a TOML file, its tables, or the points that `cofair.config.grid.read_grid` makes of them.
        out: a folder for the tables, with a run folder for every experiment.
        resume: keep the finished runs in `out`, and resume those that were interrupted.
        workers: processes that share the runs.
        load: Python files that register methods, which workers need as well.
        listener: a function called with the method, the seed and every tested round, or a `Listener`.

    Returns:
        The outcomes of all runs that came to their end; `failures` says why others did not.
    """
    out = Path(out)
    if isinstance(grid, str | Path):
        grid = read_file(Path(grid))
    points = read_grid(grid) if isinstance(grid, Mapping) else list(grid)
    jobs = [Job(point.experiment, out / point.name) for point in points]
    refuse_earlier(out, ("summary.csv", *[job.name for job in jobs]), resume, "--resume continues them")
    collected, heard = Collected(), as_listener(listener)
    everybody = collected if heard is None else Listeners(heard, collected)
    left = []
    for job in jobs:
        outcome = finished_outcome(job.path, job.experiment)
        if outcome is None:
            left.append(job)
        else:
            everybody.finished(job, outcome)
    run_jobs(
        left, everybody, lockstep=True, workers=workers, load=load,
        then=lambda: _write(_result(points, jobs, collected), out),
    )  # fmt: skip
    return _result(points, jobs, collected)


def _result(points: Sequence[Point], jobs: Sequence[Job], collected: Collected) -> SweepResult:
    outcomes = tuple(collected.outcomes.get(job) for job in jobs)
    return SweepResult(tuple(points), tuple(jobs), outcomes, collected.failures)


def _write(result: SweepResult, out: Path) -> None:
    failures.write(out, result.failures)
    if not result.frame.empty:
        write_whole(out / "runs.csv", result.frame.to_csv(index=False))
        write_whole(out / "summary.csv", result.to_frame().to_csv(index=False))
