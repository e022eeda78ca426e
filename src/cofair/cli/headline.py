"""The table that a command prints first: one row per method or setting, as many columns as the terminal is wide for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pandas as pd
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cofair.cli.console import new_table, print_table, widest_that_fits
from cofair.results.columns import NEVER, Column, cell_text

Row = tuple[Sequence[str], Mapping[str, Any]]  # what it is a row of, and the columns by their names


@dataclass(frozen=True)
class TableLayout:
    """Which columns a table has, and which of them with their spread."""

    columns: tuple[Column, ...]
    spread: tuple[Column, ...]


def layouts(columns: Sequence[Column]) -> list[TableLayout]:
    """Return layouts from wide to narrow: what matters least goes first."""
    steps = sorted({at for column in columns for at in (column.left_out_at, column.bare_at) if at < NEVER})
    found = []
    for step in (-1, *steps):
        kept = tuple(column for column in columns if column.left_out_at > step)
        found.append(TableLayout(kept, tuple(column for column in kept if column.has_spread and column.bare_at > step)))
    return found


def print_headline(
    console: Console, leading: Sequence[str], rows: Sequence[Row], columns: Sequence[Column], *,
    trailing: Sequence[str] = (), undefined: str = "undefined",
) -> TableLayout:  # fmt: skip
    """Print rows in the widest layout that fits the terminal, and return that; `trailing` names more keys of rows."""

    def make(layout: TableLayout) -> Table:
        table = new_table()
        for name in leading:
            table.add_column(name, no_wrap=True)
        for heading in (*(column.heading for column in layout.columns), *trailing):
            table.add_column(heading, justify="right", no_wrap=True)
        for names, row in rows:
            cells = [
                cell_text(row, column, spread=column in layout.spread, interval=True, undefined=undefined)
                for column in layout.columns
            ]
            table.add_row(*map(escape, names), *cells, *(str(row[name]) for name in trailing))
        return table

    choice = layouts(columns)
    place, table = widest_that_fits(console, [partial(make, layout) for layout in choice])
    print_table(console, table)
    return choice[place]


def left_out(columns: Sequence[Column], layout: TableLayout, frame: pd.DataFrame) -> list[str]:
    """Name what a layout leaves out of a table: columns, and spreads where there are any."""
    names = [column.name for column in columns if column not in layout.columns]
    without = [column for column in layout.columns if column.has_spread and column not in layout.spread]
    bare = [column.name for column in without if frame[f"{column.name}_std"].notna().any()]
    return [*names, f"± of {', '.join(bare)}"] if bare else names
