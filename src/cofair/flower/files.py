"""Data in .npz files, as read by the app folders that cofair writes: arrays only, no pickle."""

import zipfile
from pathlib import Path

import numpy as np
from flwr.app import Context

from cofair.data.federation import Arrays
from cofair.errors import UsageError
from cofair.flower.flower_settings import server_settings


def participant(context: Context) -> Arrays | None:
    """Return the arrays `x` and `y` of the file that the node's setting `data` names; None if it names none."""
    return None if "data" not in context.node_config else _read(context.node_config["data"], "x", "y")


def organiser(context: Context) -> tuple[Arrays, Arrays | None] | None:
    """Return the test set and the validation set of the file that the server's setting `data` names.

    Its arrays are x_test and y_test, and x_validation and y_validation if the server has a validation set.
    """
    path = server_settings(context.run_config).data_file
    if path is None:
        return None
    test = _read(path, "x_test", "y_test")
    with np.load(str(path), allow_pickle=False) as file:
        has_validation = "x_validation" in file
    return test, _read(path, "x_validation", "y_validation") if has_validation else None


def _read(path: object, *names: str) -> Arrays:
    try:
        with np.load(Path(str(path)), allow_pickle=False) as file:
            x, y = (file[name] for name in names)
            return x, y
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        wanted = " and ".join(names)
        raise UsageError(f"{path} must be a .npz file with the arrays {wanted}, without pickle.") from None
