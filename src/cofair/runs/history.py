"""What was measured, round by round: one JSON line for each tested round, written as the run goes."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cofair.errors import RunError


@dataclass(frozen=True)
class Record:
    """One tested round; lists have one entry a client."""

    round: int
    fairness: float | None  # None where it is undefined
    accuracies: list[float]
    validation: list[float] | None
    reputation: list[float] | None
    download: list[float]  # mean share of a whole model received per round so far
    seconds: float
    last: bool  # the run ends with this round
    # share of clients that held each neuron, the mean over the rounds since the record before; None without submodels
    allocation: list[float] | None = None
    promised: list[float] | None = None  # accuracies that the method owes, where it makes promises
    validated: list[float] | None = None  # what it found on the validation set when it delivered

    # client: why an upload of it was refused since the record before; the last reason of each
    refused: dict[str, str] | None = None

    def to_json(self) -> str:
        """Return the record as one line; what is absent is left out."""
        return json.dumps({key: value for key, value in asdict(self).items() if value is not None})

    @classmethod
    def from_json(cls, line: str) -> "Record":
        """Read a record from its line."""
        values: dict[str, Any] = json.loads(line)
        return cls(**{"fairness": None, "validation": None, "reputation": None, **values})


def read_history(path: Path) -> list[Record]:
    """Read a history; a last line cut off by an interruption is left out, any other damage is an error."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except OSError as error:
        raise RunError(f"Cannot read the history {path}: {error.strerror}.") from None
    records = []
    for number, line in enumerate(lines, start=1):
        if not line:
            continue
        try:
            records.append(Record.from_json(line))
        except (ValueError, TypeError):
            if number == len(lines):  # no newline after it: the run was interrupted while writing
                break
            raise RunError(f"Line {number} of the history {path} is damaged.") from None
    return records
