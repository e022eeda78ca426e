"""`cofair sweep`: a grid of experiments in lockstep."""

from pathlib import Path
from typing import Annotated

import typer

from cofair.cli import setting_up
from cofair.cli.options import Device, Json, Load, Set, Workers


def sweep(
    grid: Annotated[Path, typer.Argument(metavar="SWEEP.toml", help="An experiment with a table 'grid' of lists.")],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for the results.")],
    resume: Annotated[bool, typer.Option("--resume", help="Keep what is finished there, and resume the rest.")] = False,
    rule: Annotated[str, typer.Option(help="How a table cell is read: last or best.")] = "last",
    workers: Workers = 1,
    change: Set = None,
    load: Load = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Run a grid of experiments in lockstep: all their clients take each step together."""
    from cofair.cli import sweep_output
    from cofair.cli.progress import NotesOnce, sweep_progress
    from cofair.config.experiment import read_file
    from cofair.config.grid import read_grid
    from cofair.config.job import Job
    from cofair.results.listener import Listeners
    from cofair.runs.jobs import all_done, run_jobs, unfinished
    from cofair.storage.folder import refuse_earlier

    setting_up.load_methods(load)
    setting_up.check_rule(rule, ("last", "best"))
    overrides = (*(change or ()), *([] if device is None else [f"run.device={device}"]))
    points = read_grid(read_file(grid), overrides)
    jobs = [Job(point.experiment, out / point.name) for point in points]
    refuse_earlier(out, ("summary.csv", *[job.name for job in jobs]), resume, "--resume continues them")
    left = unfinished(jobs)
    with sweep_progress(len(left)) as listener:
        run_jobs(left, Listeners(listener, NotesOnce()), lockstep=True, workers=workers, load=load or ())
    sweep_output.print_sweep(points, jobs, rule, out, as_json=as_json)
    all_done(jobs)
