"""Reports from the command line: of folders, of one client, at the end of a run."""

import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from cofair.errors import UsageError, nearest
from cofair.report import figure_files, latex, ledger_section, page
from cofair.report.entries import Entry, read_entries
from cofair.report.words import count, listed


def write(folders: Sequence[Path], out: Path | None, client: str | None, method: str | None) -> Path:
    """Write the report of some folders, or one client's statement, and return its path."""
    entries = read_entries(folders)
    if method is not None:
        entries = _of_method(entries, method)
    if client is not None and len(entries) > 1:
        raise UsageError(f"A statement is of one method: choose with --method {_choice(entries)}.")
    if client is None:
        written = page.write(entries, out or folders[0] / "report.html")
    else:
        written = page.write_statement(entries[0], client, out or folders[0] / page.statement_file(client))
    _tell_doubts(entries)
    return written


def write_figures(folders: Sequence[Path], out: Path | None, method: str | None, kind: str) -> str:
    """Write the figures and tables for papers beside the report, and return what to say about them."""
    entries = read_entries(folders)
    if method is not None:
        entries = _of_method(entries, method)
    folder = folders[0] if out is None else out.parent
    figures, tables = figure_files.write_figures(entries, folder, kind), latex.write_tables(entries, folder)
    return f"Figures: {count(len(figures), 'file')} in {folder / 'figures'}; {listed([str(path) for path in tables])}"


def after_run(folders: Sequence[Path], path: Path) -> str:
    """Write the report of what has just run, where plotly is installed, and return what to say about it."""
    if find_spec("plotly") is None:
        return page.MISSING
    entries = read_entries(folders)
    written = page.write(entries, path)
    _tell_doubts(entries)
    return f"Report: {written}"


def _tell_doubts(entries: Sequence[Entry]) -> None:
    """Print what the page says that it should not be trusted for."""
    for doubt in ledger_section.doubts(entries):
        print(f"warning: {doubt}", file=sys.stderr)


def _of_method(entries: Sequence[Entry], method: str) -> list[Entry]:
    """Return the entry with that label, or all of that method."""
    labelled = [entry for entry in entries if entry.label == method]
    found = labelled or [entry for entry in entries if entry.method == method]
    if not found:
        raise UsageError(f"There is no run of {method!r} there: {nearest(method, [entry.label for entry in entries])}")
    return found


def _choice(entries: Sequence[Entry]) -> str:
    return listed([repr(entry.label) for entry in entries], most=12).replace(" and ", " or ")
