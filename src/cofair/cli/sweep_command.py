"""`cofair sweep`: a grid of experiments in lockstep."""

from pathlib import Path
from typing import Annotated

import typer

from cofair.cli import command_inputs
from cofair.cli.options import Device, Json, Load, Resume, Set, Track, Workers


def sweep(
    grid: Annotated[Path, typer.Argument(metavar="SWEEP.toml", help="An experiment with a table 'grid' of lists.")],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for the results.")],
    resume: Resume = False,
    rule: Annotated[str, typer.Option(help="How a table cell is read: last or best.")] = "last",
    workers: Workers = 1,
    change: Set = None,
    load: Load = None,
    track: Track = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Run a grid of experiments in lockstep: all their clients take each step together."""
    from cofair.cli import report_command, sweep_output
    from cofair.cli.progress import print_tracking, watched
    from cofair.config.experiment import read_file
    from cofair.config.grid import read_grid
    from cofair.config.python_call import refuse_given
    from cofair.results.sweep_result import RULES
    from cofair.runs.jobs import raise_if_missing
    from cofair.runs.sweep import sweep as run_sweep

    command_inputs.load_methods(load)
    command_inputs.check_rule(rule, RULES)
    overrides = (*(change or ()), *([] if device is None else [f"run.device={device}"]))
    tables = read_file(grid)
    refuse_given(grid, tables)
    points = read_grid(tables, overrides)
    with watched(track, out, len(points), together=True) as (listener, tracking):
        result = run_sweep(points, out, resume=resume, workers=workers, listener=listener, load=load or ())
    sweep_output.print_sweep(result, rule, as_json=as_json)
    print_tracking(tracking, as_json=as_json)
    finished = [job.path for job, outcome in zip(result.jobs, result.outcomes, strict=True) if outcome is not None]
    if finished:
        written = f"{out / 'summary.csv'}, {out / 'runs.csv'} and a folder for each run."
        report_command.print_written(written, finished, out, as_json=as_json, failures=result.failures)
    raise_if_missing([job.name for job in result.missing], len(result.jobs))
