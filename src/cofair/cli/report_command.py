"""`cofair report`: the page of some folders, a client's statement, figures for papers."""

import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cofair.errors import UsageError, nearest

if TYPE_CHECKING:
    from cofair.report.reported_runs import ReportedMethod


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
    from cofair.report import page
    from cofair.report.reported_runs import read_failures, read_methods

    if figures is not None and client is not None:
        raise UsageError("--figures draws what all clients brought and got: leave out --client.")
    methods = read_methods(folders)
    if method is not None:
        methods = _named(methods, method)
    if figures is not None:
        print(_write_figures(methods, folders[0] if out is None else out.parent, figures))
    if client is None:
        written = page.write(methods, out or folders[0] / "report.html", read_failures(folders))
    elif len(methods) > 1:
        raise UsageError(f"A statement is of one method: choose with --method {_choice(methods)}.")
    else:
        written = page.write_statement(methods[0], client, out or folders[0] / page.statement_file(client))
    _print_doubts(methods)
    print(written)


def print_written(
    what: str, folders: Sequence[Path], out: Path, *, as_json: bool, failures: Mapping[str, str] | None = None
) -> None:
    """Write the report of what has just run to a folder, and say what was written there."""
    reported = after_run(folders, out / "report.html", failures)
    if not as_json:
        print(f"Written: {what}\n{reported}")


def after_run(folders: Sequence[Path], path: Path, failures: Mapping[str, str] | None = None) -> str:
    """Write the report of what has just run, where plotly is installed, and return what to say about it."""
    from cofair.report import page
    from cofair.report.reported_runs import read_methods

    if find_spec("plotly") is None:
        return page.MISSING
    methods = read_methods(folders)
    written = page.write(methods, path, failures)
    _print_doubts(methods)
    return f"Report: {written}"


def _write_figures(methods: "Sequence[ReportedMethod]", folder: Path, kind: str) -> str:
    """Write the figures and tables for papers next to the report, and return what to say about them."""
    from cofair.report import figure_files, latex
    from cofair.report.words import count, listed

    figures, tables = figure_files.write_figures(methods, folder, kind), latex.write_tables(methods, folder)
    return f"Figures: {count(len(figures), 'file')} in {folder / 'figures'}; {listed([str(path) for path in tables])}"


def _print_doubts(methods: "Sequence[ReportedMethod]") -> None:
    """Print why the page should not be trusted, as the page itself says."""
    from cofair.report import ledger_section

    for doubt in ledger_section.doubts(methods):
        print(f"warning: {doubt}", file=sys.stderr)


def _named(methods: "Sequence[ReportedMethod]", name: str) -> "list[ReportedMethod]":
    """Return the row with that label, or all rows of that method."""
    labelled = [method for method in methods if method.label == name]
    found = labelled or [method for method in methods if method.name == name]
    if not found:
        raise UsageError(f"There is no run of {name!r} there: {nearest(name, [method.label for method in methods])}")
    return found


def _choice(methods: "Sequence[ReportedMethod]") -> str:
    from cofair.report.words import listed

    return listed([repr(method.label) for method in methods], most=12).replace(" and ", " or ")
