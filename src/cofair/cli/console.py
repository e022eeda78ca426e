"""Where commands print, and what fits there."""

import json
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

PIPE_WIDTH = 160  # a pipe has no width: wide enough that no usual table is cut
_UNLIMITED = 10_000


class Output(Console):
    """Standard output; a reader that goes away is the caller's business, as with print."""

    def on_broken_pipe(self) -> NoReturn:
        """Raise what rich would turn into an exit code of its own."""
        raise BrokenPipeError


def output() -> Output:
    """Return the console that commands print to."""
    console = Output(highlight=False)
    return console if console.is_terminal else Output(highlight=False, width=PIPE_WIDTH)


def new_table() -> Table:
    """Return an empty table in the common style: a rule below the header, two spaces between columns."""
    return Table(box=box.SIMPLE_HEAD, collapse_padding=True, pad_edge=False)


def print_table(console: Console, table: Table) -> None:
    """Print a table; where the terminal is narrower than its narrowest form, lines run over instead of being cut."""
    before, console.width = console.width, max(console.width, narrowest(console, table))
    console.print(table)
    console.width = before


def print_failures(console: Console, failures: Mapping[str, str]) -> None:
    """Name the runs that failed below the table that is without them, and say why."""
    for name, reason in failures.items():
        console.print(f"failed: {name}: {reason}", markup=False, style="red", soft_wrap=True)


def widest_that_fits(console: Console, candidates: Iterable[Callable[[], Table]]) -> tuple[int, Table]:
    """Return the first of several tables, from wide to narrow, that fits the console, and its place; else the last."""
    tables = []
    for make in candidates:
        tables.append(make())
        if narrowest(console, tables[-1]) <= console.width:
            break
    return len(tables) - 1, tables[-1]


def narrowest(console: Console, table: Table) -> int:
    """Return the width below which a table would be cut: columns that may wrap count with their least width."""
    wrapping = [column for column in table.columns if not column.no_wrap]
    for column in wrapping:
        column.max_width = column.min_width
    width = Measurement.get(console, console.options.update(width=_UNLIMITED), table).maximum
    for column in wrapping:
        column.max_width = None
    return width


def print_json(value: Any) -> None:
    """Print one JSON document; numbers that JSON does not have are null."""
    print(json.dumps(_finite(value), allow_nan=False))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
