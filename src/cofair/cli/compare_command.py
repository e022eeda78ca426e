"""`cofair compare`: several methods on the same federations, one table."""

from pathlib import Path
from typing import Annotated

import typer

from cofair.cli import command_inputs
from cofair.cli.options import (
    By,
    Data,
    Device,
    Json,
    Label,
    LeaveOut,
    Load,
    Out,
    Overwrite,
    Resume,
    Set,
    Track,
    Workers,
)  # fmt: skip


def compare(
    data: Data = None,
    label: Label = None,
    by: By = None,
    leave_out: LeaveOut = None,
    scene: Annotated[
        str | None, typer.Option(help="How data is spread: uni, pow, cla, dir, dir-class, noisy.", show_default="pow")
    ] = None,
    methods: Annotated[str, typer.Option(help="Methods, separated by commas; see 'cofair methods'.")] = "all",
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds.")] = 1,
    clients: Annotated[int | None, typer.Option(help="Number of clients.", show_default="10")] = None,
    rounds: Annotated[int | None, typer.Option(help="Number of rounds.", show_default="200")] = None,
    rule: Annotated[
        str, typer.Option(help="What a table is of: the models delivered in the end, or last, best, joint.")
    ] = "delivered",
    held: Annotated[
        bool, typer.Option("--held", help="Measure what clients hold: the best they make of all they were handed.")
    ] = False,
    experiment: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Take other settings from a TOML file.")
    ] = None,
    change: Set = None,
    load: Load = None,
    track: Track = None,
    device: Device = None,
    out: Out = None,
    keep_models: Annotated[
        bool, typer.Option("--keep-models", help="Keep the models in the run folders, for 'cofair export'.")
    ] = False,
    overwrite: Overwrite = False,
    resume: Resume = False,
    workers: Workers = 1,
    as_json: Json = False,
) -> None:
    """Train several methods on the same federations and print one table."""
    from cofair.cli import comparison_output, report_command
    from cofair.cli.progress import print_tracking, watched
    from cofair.methods import names as all_methods
    from cofair.results.table_cells import RULES
    from cofair.runs.compare import compare as run_comparison
    from cofair.runs.jobs import raise_if_missing

    command_inputs.load_methods(load)
    command_inputs.check_rule(rule, list(RULES))
    names = all_methods() if methods == "all" else list(dict.fromkeys(command_inputs.names_in(methods)))
    options = {
        **command_inputs.table_options(data, label, by, leave_out),
        "federation.scene": scene, "federation.clients": clients,
        "training.rounds": rounds, "run.device": device, "run.joint": True if rule == "joint" else None,
        "run.held": True if held else None,
    }  # fmt: skip
    shared, of_methods = command_inputs.of_methods(change, names)
    chosen = command_inputs.experiment_of(experiment, options, shared)
    if rule in ("best", "joint") and not any(text.startswith("run.evaluate_every") for text in shared):
        chosen = chosen.with_run(evaluate_every=1)  # these rules choose among rounds: test all of them
    command_inputs.check_resume(resume, out, overwrite)
    with watched(track, out, len(names) * seeds, together=workers > 1) as (listener, tracking):
        comparison = run_comparison(
            chosen, names, seeds, out, overwrite=overwrite, resume=resume, workers=workers, load=load or (),
            keep_models=keep_models,
            method_settings=of_methods, listener=listener,
        )  # fmt: skip
    comparison_output.print_comparison(comparison, chosen, rule, as_json=as_json)
    print_tracking(tracking, as_json=as_json)
    if out is not None:
        folders = [job.path for job in comparison.jobs]
        report_command.print_written(
            f"{out / 'summary.csv'}, {out / 'clients.csv'} and a folder for each run.", folders, out, as_json=as_json,
            failures=comparison.failures,
        )  # fmt: skip
    raise_if_missing(list(comparison.failures), len(comparison.outcomes) + len(comparison.failures))
