"""`cofair methods`: every method with its paper and settings."""

import json
from dataclasses import asdict

from cofair.cli import command_inputs
from cofair.cli.options import Json, Load


def methods(load: Load = None, as_json: Json = False) -> None:
    """List every method, its paper, its settings with defaults."""
    from rich.table import Table

    from cofair.cli.console import output, print_json
    from cofair.methods import METHODS
    from cofair.settings import describe

    command_inputs.load_methods(load)
    if as_json:
        print_json(
            [
                {"name": m.name, "paper": m.paper, "settings": [asdict(setting) for setting in describe(m)]}
                for m in METHODS.values()
            ]
        )
        return
    console = output()
    for method in METHODS.values():
        first_line = (method.__doc__ or "").strip().splitlines()[0]
        console.print(f"[bold]{method.name}[/]  {first_line} [dim]({method.paper})[/]", highlight=False)
        table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2))
        for setting in describe(method):
            table.add_row("", setting.name, f"[cyan]{json.dumps(setting.default)}[/]", setting.text)
        if table.row_count:
            console.print(table)
        console.print()
