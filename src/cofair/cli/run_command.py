"""`cofair run`: one experiment."""

from pathlib import Path
from typing import Annotated

import typer

from cofair.cli import command_inputs
from cofair.cli.options import By, Data, Device, Json, Label, LeaveOut, Load, Out, Overwrite, Resume, Set, Track
from cofair.errors import UsageError


def run(
    experiment: Annotated[
        Path | None,
        typer.Argument(metavar="EXPERIMENT.toml", help="The experiment's settings; not needed with --data."),
    ] = None,
    data: Data = None,
    label: Label = None,
    by: By = None,
    leave_out: LeaveOut = None,
    change: Set = None,
    load: Load = None,
    track: Track = None,
    device: Device = None,
    out: Out = None,
    overwrite: Overwrite = False,
    resume: Resume = False,
    as_json: Json = False,
) -> None:
    """Run one experiment and print who brought what and who got what."""
    from cofair.cli import comparison_output, report_command
    from cofair.cli.progress import print_tracking, watched
    from cofair.runs.single import run_experiment
    from cofair.storage.folder import RunFolder

    command_inputs.load_methods(load)
    if experiment is None and data is None:
        raise UsageError("Name an experiment, such as digits.toml, or data with --data.")
    options = {**command_inputs.table_options(data, label, by, leave_out), "run.device": device}
    chosen = command_inputs.experiment_of(experiment, options, change)
    command_inputs.check_resume(resume, out, overwrite)
    folder = None if out is None else RunFolder(out, overwrite=overwrite, resume=resume)
    with watched(track, out) as (listener, tracking):
        result = run_experiment(chosen, folder, listener)
    comparison_output.print_run(result, chosen, as_json=as_json)
    print_tracking(tracking, as_json=as_json)
    if out is not None:
        report_command.print_written(str(out), [out], out, as_json=as_json)
