"""Options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

from cofair.tracking import TRACKERS

_TRACKERS = " or ".join(", ".join(TRACKERS).rsplit(", ", 1))
Set = Annotated[
    list[str] | None, typer.Option("--set", metavar="TABLE.KEY=VALUE", help="Change one setting; repeatable.")
]
Out = Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Folder for the results.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace an earlier run in that folder.")]
Resume = Annotated[bool, typer.Option("--resume", help="Keep what is finished there, and resume what was interrupted.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines instead of a table.")]
Load = Annotated[
    list[Path] | None, typer.Option("--load", metavar="FILE.py", help="Python file that registers methods; repeatable.")
]
Track = Annotated[
    list[str] | None,
    typer.Option("--track", metavar="TRACKER", help=f"Log every tested round to {_TRACKERS}; repeatable."),
]
Data = Annotated[
    str | None,
    typer.Option(help="Data set ('cofair data list'), or your table: a CSV or Parquet file.", show_default="digits"),
]
Label = Annotated[str | None, typer.Option(metavar="COLUMN", help="Of a table: the column to predict.")]
By = Annotated[str | None, typer.Option(metavar="COLUMN", help="Of a table: whose a row is; each value is a client.")]
LeaveOut = Annotated[
    str | None, typer.Option(metavar="COLUMNS", help="Of a table: columns not to use, separated by commas.")
]
Device = Annotated[str | None, typer.Option(help="auto, cpu or cuda.", show_default="auto")]
Workers = Annotated[int, typer.Option(min=1, help="Processes that share the work.")]
