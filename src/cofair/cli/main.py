"""The command line, `cofair`: the commands, and how they end."""

import sys
from typing import Annotated

import typer

from cofair.cli import data_command, deploy_command, interruptions, ledger_command
from cofair.cli.compare_command import compare
from cofair.cli.export_command import export
from cofair.cli.methods_command import methods
from cofair.cli.report_command import report
from cofair.cli.reproduce_command import reproduce
from cofair.cli.run_command import run
from cofair.cli.sweep_command import sweep
from cofair.errors import CofairError

app = typer.Typer(
    help="Federated learning in which every participant receives a model as good as what it brought.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    cls=interruptions.Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (compare, run, report, export, sweep, reproduce, methods):
    app.command()(command)
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


def main() -> None:
    """Run the command line; a user's mistake is a sentence, not a traceback."""
    try:
        app()
    except CofairError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except (interruptions.Interrupted, KeyboardInterrupt):
        print(interruptions.after_interruption(sys.argv[1:]), file=sys.stderr)
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
        print("error: this does not fit into memory: use a smaller model, fewer clients or less data", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
