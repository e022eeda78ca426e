"""`cofair export`: a client's reward as files that need no cofair."""

from pathlib import Path
from typing import Annotated

import typer

from cofair.cli import command_inputs
from cofair.cli.options import Load


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

    command_inputs.load_methods(load)
    tensors, program = export_from_folder(folder, client, file)
    print(f"Written: {tensors}, and {program}, which torch.export.load({str(program)!r}).module() loads.")
