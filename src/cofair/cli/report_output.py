"""Reports from the command line: of folders, of one client, at the end of a run."""

import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from cofair.errors import UsageError, nearest
from cofair.report import figure_files, latex, ledger_section, page
from cofair.report.reported_runs import ReportedMethod, read_methods
from cofair.report.words import count, listed


def write(folders: Sequence[Path], out: Path | None, client: str | None, method: str | None) -> Path:
    """Write the report of some folders, or one client's statement, and return its path."""
    methods = read_methods(folders)
    if method is not None:
        methods = _of_method(methods, method)
    if client is not None and len(methods) > 1:
        raise UsageError(f"A statement is of one method: choose with --method {_choice(methods)}.")
    if client is None:
        written = page.write(methods, out or folders[0] / "report.html")
    else:
        written = page.write_statement(methods[0], client, out or folders[0] / page.statement_file(client))
    _tell_doubts(methods)
    return written


def write_figures(folders: Sequence[Path], out: Path | None, method: str | None, kind: str) -> str:
    """Write the figures and tables for papers beside the report, and return what to say about them."""
    methods = read_methods(folders)
    if method is not None:
        methods = _of_method(methods, method)
    folder = folders[0] if out is None else out.parent
    figures, tables = figure_files.write_figures(methods, folder, kind), latex.write_tables(methods, folder)
    return f"Figures: {count(len(figures), 'file')} in {folder / 'figures'}; {listed([str(path) for path in tables])}"


def after_run(folders: Sequence[Path], path: Path) -> str:
    """Write the report of what has just run, where plotly is installed, and return what to say about it."""
    if find_spec("plotly") is None:
        return page.MISSING
    methods = read_methods(folders)
    written = page.write(methods, path)
    _tell_doubts(methods)
    return f"Report: {written}"


def _tell_doubts(methods: Sequence[ReportedMethod]) -> None:
    """Print what the page says that it should not be trusted for."""
    for doubt in ledger_section.doubts(methods):
        print(f"warning: {doubt}", file=sys.stderr)


def _of_method(methods: Sequence[ReportedMethod], name: str) -> list[ReportedMethod]:
    """Return the row with that label, or all rows of that method."""
    labelled = [method for method in methods if method.label == name]
    found = labelled or [method for method in methods if method.name == name]
    if not found:
        raise UsageError(f"There is no run of {name!r} there: {nearest(name, [method.label for method in methods])}")
    return found


def _choice(methods: Sequence[ReportedMethod]) -> str:
    return listed([repr(method.label) for method in methods], most=12).replace(" and ", " or ")
