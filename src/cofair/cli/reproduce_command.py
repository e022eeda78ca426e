"""`cofair reproduce`: a published table, computed."""

from pathlib import Path
from typing import Annotated

import typer

from cofair.cli.options import Device, Json, Set, Workers


def reproduce(
    name: Annotated[str, typer.Argument(metavar="TABLE", help="A published table, such as fedsac-table1, or 'list'.")],
    cells: Annotated[str | None, typer.Option(help="Some cells, by commas: svhn,cifar10/pow,mnist/pow/20.")] = None,
    methods: Annotated[str | None, typer.Option(help="Some methods of the table, separated by commas.")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Number of seeds.", show_default="the paper's")] = None,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder that keeps finished runs.")] = Path(
        "reproduced"
    ),
    workers: Workers = 1,
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
