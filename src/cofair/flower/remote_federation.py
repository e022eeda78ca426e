"""A federation whose clients' data is elsewhere: the server knows names, sizes and whatever else was declared."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from torch import Tensor

from cofair.data.federation import Federation, Samples
from cofair.errors import RunError
from cofair.storage.folder import write_whole

FILE = "participants.json"


@dataclass(frozen=True)
class Member:
    """A participant that has joined, and what it declared."""

    identity: str
    name: str
    size: int
    class_counts: tuple[int, ...] | None = None


def identities(grid: Grid) -> dict[str, NodeInfo]:
    """Return the nodes that are online by their identity: their key or, without one, their number.

    Numbers are new after a restart, so only a node that authenticates itself with a key is recognised when it returns.
    """
    return {
        "key " + hashlib.sha256(node.public_key).hexdigest()[:32] if node.public_key else f"node {node.node_id}": node
        for node in grid.get_nodes()
    }


def write_members(folder: Path, members: Sequence[Member]) -> None:
    """Write who takes part, so that a restarted server knows everybody's place."""
    write_whole(folder / FILE, json.dumps([asdict(member) for member in members], indent=1) + "\n")


def read_members(folder: Path) -> list[Member] | None:
    """Return who took part before the server was restarted; None if it had not started."""
    if not (folder / FILE).exists():
        return None
    try:
        rows = json.loads((folder / FILE).read_text(encoding="utf-8"))
        return [
            Member(
                str(one["identity"]), str(one["name"]), int(one["size"]),
                None if one["class_counts"] is None else tuple(one["class_counts"]),
            )
            for one in rows
        ]  # fmt: skip
    except (OSError, ValueError, LookupError, TypeError, OverflowError, RecursionError):
        raise RunError(f"{folder / FILE} is damaged: start over in another folder.") from None


class RemoteFederation(Federation):
    """The server's view of clients that are other people's computers."""

    def __init__(
        self, members: Sequence[Member], test: Samples, validation: Samples | None, classes: int | None
    ) -> None:
        """Take the members, and the server's own data."""
        self.members = tuple(members)
        self.names = tuple(member.name for member in members)
        self.sizes = torch.tensor([member.size for member in members])
        self.test, self.validation, self.classes = test, validation, classes
        self.inputs, self.labels = test.x[:0], test.y[:0]
        self.rows = torch.zeros(0, dtype=torch.int64, device=test.x.device)

    @property
    def here(self) -> bool:
        """Say that the clients' data is elsewhere."""
        return False

    def class_counts(self) -> Tensor:
        """Return how many samples of each class each client declared (N, classes)."""
        declared = [member.class_counts for member in self.members]
        if any(counts is None for counts in declared):
            raise RunError("The participants were not asked how many samples of each class they have.")
        return torch.tensor(declared)

    def to(self, device: torch.device | str, dtype: torch.dtype = torch.float32) -> "RemoteFederation":
        """Return this federation with the server's own data on a device."""
        where = torch.device(device)
        validation = None if self.validation is None else self.validation.to(where, dtype)
        return RemoteFederation(self.members, self.test.to(where, dtype), validation, self.classes)
