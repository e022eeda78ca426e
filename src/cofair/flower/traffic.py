"""Bytes sent to and received from each client, and a file of them in the run folder."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from flwr.app import RecordDict

from cofair.flower.messages import payload
from cofair.storage.folder import write_whole
from cofair.storage.resume import traffic

FILE = "traffic.json"


class Traffic:
    """Counts the bytes of arrays; the rest of a message is about a kilobyte."""

    def __init__(self, folder: Path | None = None) -> None:
        """Count from zero, or from the counts in a folder."""
        before = {} if folder is None else traffic(folder)
        self.down = Counter({client: down for client, (down, _) in before.items()})
        self.up = Counter({client: up for client, (_, up) in before.items()})

    def sent(self, client: str, content: RecordDict) -> None:
        """Count what is sent to a client."""
        self.down[client] += payload(content)

    def received(self, client: str, content: RecordDict) -> None:
        """Count what a client sent."""
        self.up[client] += payload(content)

    def write(self, folder: Path, clients: Sequence[str]) -> None:
        """Write the counts of these clients."""
        rows = [{"client": name, "bytes_down": self.down[name], "bytes_up": self.up[name]} for name in clients]
        write_whole(folder / FILE, json.dumps(rows, indent=1) + "\n")
