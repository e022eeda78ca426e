"""The command line, `cofair`."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from cofair.cli import data_command, deploy_command, interruptions, ledger_command
from cofair.cli.options import Device, Json, Load, Out, Overwrite, Resume, Set, Track
from cofair.errors import CofairError, UsageError

app = typer.Typer(
    help="Federated learning in which every participant receives a model as good as what it brought.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    cls=interruptions.Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(data_command.app, name="data")
app.add_typer(ledger_command.app, name="ledger")
app.add_typer(deploy_command.app, name="deploy")


@app.callback(invoke_without_command=True)
def version(show: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    """Answer --version."""
    if show:
        from cofair import __version__

        print(f"cofair {__version__}")
        raise typer.Exit


@app.command()
def compare(
    data: Annotated[str | None, typer.Option(help="Data set; see 'cofair data list'.", show_default="digits")] = None,
    scene: Annotated[
        str | None, typer.Option(help="How data is spread: uni, pow, cla, dir, dir-class, noisy.", show_default="pow")
    ] = None,
    methods: Annotated[str, typer.Option(help="Methods, separated by commas; see 'cofair methods'.")] = "all",
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds.")] = 1,
    clients: Annotated[int | None, typer.Option(help="Number of clients.", show_default="10")] = None,
    rounds: Annotated[int | None, typer.Option(help="Number of rounds.", show_default="200")] = None,
    rule: Annotated[str, typer.Option(help="How a table cell is read: last, best or joint.")] = "last",
    experiment: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Take other settings from a TOML file.")
    ] = None,
    change: Set = None,
    load: Load = None,
    track: Track = None,
    device: Device = None,
    out: Out = None,
    overwrite: Overwrite = False,
    resume: Resume = False,
    as_json: Json = False,
) -> None:
    """Train several methods on the same federations and print one table."""
    from cofair.cli import report_output, table_output
    from cofair.cli.progress import NotesOnce, run_progress, tell_tracking
    from cofair.methods import get
    from cofair.methods import names as all_methods
    from cofair.results.listener import CallbackListener, Listeners
    from cofair.results.record import together
    from cofair.results.table_cells import RULES
    from cofair.runs.compare import compare as run_comparison
    from cofair.tracking.base import tracked

    _load_methods(load)
    if rule not in RULES:
        raise UsageError(f"Unknown rule {rule!r}: valid are {', '.join(RULES)}")
    names = all_methods() if methods == "all" else [name.strip() for name in methods.split(",") if name.strip()]
    for name in names:
        get(name)
    options = {
        "federation.data": data, "federation.scene": scene, "federation.clients": clients,
        "training.rounds": rounds, "run.device": device, "run.joint": True if rule == "joint" else None,
    }  # fmt: skip
    chosen = _experiment(experiment, options, change)
    if rule != "last" and not any(text.startswith("run.evaluate_every") for text in change or ()):
        chosen = chosen.with_run(evaluate_every=1)  # these rules choose among rounds: test all of them
    _check_resume(resume, out, overwrite)
    with run_progress(chosen.training.rounds, len(names) * seeds) as shown, tracked(track or (), out, chosen) as logged:
        comparison = run_comparison(
            chosen,
            names,
            seeds,
            out,
            overwrite=overwrite,
            resume=resume,
            listener=Listeners(CallbackListener(together(shown, logged)), NotesOnce()),
        )
    table_output.comparison(comparison, chosen, rule, as_json=as_json)
    tell_tracking(logged, as_json=as_json)
    if out is not None:
        folders = [out / f"{outcome.method}-seed{outcome.seed}" for outcome in comparison.outcomes]
        reported = report_output.after_run(folders, out / "report.html")
        if not as_json:
            print(f"Written: {out / 'summary.csv'}, {out / 'clients.csv'} and a folder for each run.\n{reported}")


@app.command()
def run(
    experiment: Annotated[Path, typer.Argument(metavar="EXPERIMENT.toml", help="The experiment's settings.")],
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
    from cofair.cli import report_output, table_output
    from cofair.cli.progress import NotesOnce, run_progress, tell_tracking
    from cofair.results.listener import CallbackListener, Listeners
    from cofair.results.record import together
    from cofair.runs.single import run_experiment
    from cofair.storage.folder import RunFolder
    from cofair.tracking.base import tracked

    _load_methods(load)
    chosen = _experiment(experiment, {"run.device": device}, change)
    _check_resume(resume, out, overwrite)
    folder = None if out is None else RunFolder(out, overwrite=overwrite, resume=resume)
    with run_progress(chosen.training.rounds) as shown, tracked(track or (), out, chosen) as logged:
        result = run_experiment(chosen, folder, Listeners(CallbackListener(together(shown, logged)), NotesOnce()))
    table_output.outcome(result, chosen, as_json=as_json)
    tell_tracking(logged, as_json=as_json)
    if out is not None:
        reported = report_output.after_run([out], out / "report.html")
        if not as_json:
            print(f"Written: {out}\n{reported}")


@app.command()
def report(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Folders of runs or of comparisons.")],
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Where to write.", show_default="DIR/report.html")
    ] = None,
    client: Annotated[
        str | None, typer.Option(metavar="NAME", help="Write this client's own statement instead.")
    ] = None,
    method: Annotated[str | None, typer.Option(metavar="NAME", help="Only this method of those in DIR.")] = None,
    figures: Annotated[
        str | None, typer.Option(metavar="pdf|png|svg", help="Write figures and a LaTeX table for papers as well.")
    ] = None,
) -> None:
    """Write one HTML page that shows who brought what and who got what."""
    from cofair.cli import report_output

    if figures is not None:
        if client is not None:
            raise UsageError("--figures draws what all clients brought and got: leave out --client.")
        print(report_output.write_figures(folders, out, method, figures))
    print(report_output.write(folders, out, client, method))


@app.command()
def export(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a run that 'cofair run' has finished.")],
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Where to write: FILE.safetensors and FILE.pt2.", show_default=False)
    ],
    client: Annotated[str, typer.Option(metavar="NAME", help="Whose reward.")],
    load: Load = None,
) -> None:
    """Write a client's reward as safetensors, and as a program that PyTorch runs without cofair."""
    from cofair.runs.folder_rewards import export_from_folder

    _load_methods(load)
    tensors, program = export_from_folder(folder, client, file)
    print(f"Written: {tensors}, and {program}, which torch.export.load({str(program)!r}).module() loads.")


@app.command()
def sweep(
    grid: Annotated[Path, typer.Argument(metavar="SWEEP.toml", help="An experiment with a table 'grid' of lists.")],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for the results.")],
    resume: Annotated[bool, typer.Option("--resume", help="Keep what is finished there and go on.")] = False,
    rule: Annotated[str, typer.Option(help="How a table cell is read: last or best.")] = "last",
    workers: Annotated[int, typer.Option(min=1, help="Processes that share the work.")] = 1,
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

    _load_methods(load)
    if rule not in ("last", "best"):
        raise UsageError(f"Unknown rule {rule!r}: valid are last, best")
    overrides = (*(change or ()), *([] if device is None else [f"run.device={device}"]))
    points = read_grid(read_file(grid), overrides)
    jobs = [Job(point.experiment, out / point.name) for point in points]
    refuse_earlier(out, ("summary.csv", *[job.name for job in jobs]), resume, "--resume goes on with them")
    left = unfinished(jobs)
    with sweep_progress(len(left)) as listener:
        run_jobs(left, Listeners(listener, NotesOnce()), lockstep=True, workers=workers, load=load or ())
    sweep_output.print_sweep(points, jobs, rule, out, as_json=as_json)
    all_done(jobs)


@app.command()
def reproduce(
    name: Annotated[str, typer.Argument(metavar="TABLE", help="A published table, such as fedsac-table1, or 'list'.")],
    cells: Annotated[str | None, typer.Option(help="Some cells, by commas: svhn,cifar10/pow,mnist/pow/20.")] = None,
    methods: Annotated[str | None, typer.Option(help="Some methods of the table, separated by commas.")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Number of seeds.", show_default="the paper's")] = None,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder that keeps finished runs.")] = Path(
        "reproduced"
    ),
    workers: Annotated[int, typer.Option(min=1, help="Processes that share the work.")] = 1,
    precision: Annotated[str, typer.Option(help="float32, or tf32 (faster on GPUs).")] = "float32",
    show: Annotated[bool, typer.Option("--show", help="Compute nothing, show what is finished.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print a table for a page.")] = False,
    figure: Annotated[
        Path | None, typer.Option("--figure", metavar="FILE", help="Draw published against measured (png, pdf, svg).")
    ] = None,
    change: Set = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Compute a published table, cell by cell: published, measured, difference."""
    from cofair.cli import reproduce_output

    some_cells, some_methods = (tuple(text.split(",")) if text else () for text in (cells, methods))
    changes = (f"run.precision={precision}", *([] if device is None else [f"run.device={device}"]), *(change or ()))
    reproduce_output.reproduce(
        reproduce_output.Asked(
            name, some_cells, some_methods, seeds=seeds, out=out, workers=workers, changes=changes, show=show,
            markdown=markdown, as_json=as_json, figure=figure,
        )
    )  # fmt: skip


@app.command("methods")
def list_methods(load: Load = None, as_json: Json = False) -> None:
    """List every method, its paper, its settings with defaults."""
    from cofair.cli import table_output

    _load_methods(load)
    table_output.methods(as_json=as_json)


def _check_resume(resume: bool, out: Path | None, overwrite: bool) -> None:
    if resume and out is None:
        raise UsageError("--resume goes on with what is in a folder: name it with --out.")
    if resume and overwrite:
        raise UsageError("--resume keeps what is there and --overwrite replaces it: choose one.")


def _load_methods(files: list[Path] | None) -> None:
    """Make known the methods of installed packages and of a user's files."""
    from cofair.methods import load_file, load_installed

    load_installed()
    for file in files or ():
        load_file(file)


def _experiment(path: Path | None, options: dict[str, Any], changes: list[str] | None) -> Any:
    """Return an experiment from a file, command-line options and --set, in rising priority."""
    from cofair.config.experiment import Experiment, override, read_file

    values = {} if path is None else read_file(path)
    for key, value in options.items():
        if value is not None:
            table, _, name = key.partition(".")
            own = values.setdefault(table, {})
            if isinstance(own, dict):
                own[name] = value
    return Experiment.from_dict(override(values, changes or ()))


def main() -> None:
    """Run the command line; a user's mistake is a sentence, not a traceback."""
    try:
        app()
    except CofairError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except (interruptions.Interrupted, KeyboardInterrupt):
        print("interrupted; what was finished is kept.", file=sys.stderr)
        sys.exit(interruptions.INTERRUPTED)
    except interruptions.OutputClosed:
        interruptions.drop_output()
        sys.exit(interruptions.NOBODY_READS)
    except OSError as error:
        if not interruptions.is_full_disk(error):
            raise
        interruptions.drop_output()
        print(f"error: cannot write the output: {error.strerror}", file=sys.stderr)
        sys.exit(1)
    except (MemoryError, RuntimeError) as error:
        if not interruptions.is_full_memory(error):
            raise
        print("error: this does not fit into memory: take a smaller model, fewer clients or less data", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
