"""Bytes that travelled to and from each client, and a file of them in the run folder."""

import json
from collections.abc import Sequence
from pathlib import Path

from flwr.app import RecordDict

from cofair.flower.messages import payload
from cofair.runs.folder import write_whole

FILE = "traffic.json"


class Traffic:
    """Counts the bytes of arrays, which are all but about a kilobyte of a message."""

    def __init__(self, names: Sequence[str]) -> None:
        """Count from zero."""
        self.names = tuple(names)
        self.down, self.up = [0] * len(names), [0] * len(names)

    def sent(self, i: int, content: RecordDict) -> None:
        """Count what is sent to client i."""
        self.down[i] += payload(content)

    def received(self, i: int, content: RecordDict) -> None:
        """Count what client i sent."""
        self.up[i] += payload(content)

    def write(self, folder: Path) -> None:
        """Write the counts."""
        rows = [
            {"client": name, "bytes_down": down, "bytes_up": up}
            for name, down, up in zip(self.names, self.down, self.up, strict=True)
        ]
        write_whole(folder / FILE, json.dumps(rows, indent=1) + "\n")
