"""Read the history of a run: one JSON line per tested round, written while it runs."""

from pathlib import Path

from cofair.errors import RunError
from cofair.results.record import Record


def read_history(path: Path) -> list[Record]:
    """Read a history; a last line cut off by an interruption is ignored, any other damage is an error."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError as error:
        raise RunError(f"Cannot read the history {path}: {error.strerror}.") from None
    records: list[Record] = []
    for number, line in enumerate(lines, start=1):
        if not line and number == len(lines):
            break
        try:
            records.append(Record.from_json(line))
        except (ValueError, TypeError, RecursionError):
            if number == len(lines):  # no newline after it: the run was interrupted while writing
                break
            raise RunError(f"Line {number} of the history {path} is damaged.") from None
        if len(records) > 1 and records[-1].round <= records[-2].round:
            raise RunError(f"Line {number} of the history {path} is out of place: rounds must increase.")
    return records
