"""Which runs of a comparison or a sweep failed, and why: `failures.csv` beside their tables."""

import csv
import io
from collections.abc import Mapping
from pathlib import Path

from cofair.errors import RunError
from cofair.storage.folder import explaining_write_errors, make_folder, write_whole

FILE = "failures.csv"
_HEADER = ["run", "reason"]


def write(folder: Path, failures: Mapping[str, str]) -> None:
    """Write why runs failed; where none did, remove what an earlier try wrote."""
    if not failures:
        with explaining_write_errors(folder):
            (folder / FILE).unlink(missing_ok=True)
        return
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([_HEADER, *failures.items()])
    with explaining_write_errors(folder):
        make_folder(folder)
    write_whole(folder / FILE, text.getvalue())


def read(folder: Path) -> dict[str, str]:
    """Return why runs failed, by their names; empty where none did."""
    path = folder / FILE
    try:
        header, *rows = list(csv.reader(path.read_text(encoding="utf-8").splitlines(keepends=True)))
        if header != _HEADER:
            raise ValueError("other columns")
        return dict(rows)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise RunError(f"Cannot read {path}: {error.strerror}.") from None
    except (ValueError, csv.Error):
        raise RunError(f"{path} is damaged: it must have the columns run and reason.") from None
