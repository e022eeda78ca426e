"""Who takes part: every node learns what it would be asked for, and says who it is or refuses."""

import logging
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeGuard

from flwr.app import Message
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid

from cofair.errors import RunError
from cofair.flower import messages
from cofair.flower.flower_settings import Waiting
from cofair.flower.mailbox import exchange
from cofair.flower.printable_text import printable
from cofair.flower.remote_federation import Member, identities
from cofair.flower.wire import RefusedError

_LONGEST_NAME = 200
LOG = logging.getLogger("flwr.cofair")


@dataclass(frozen=True)
class Question:
    """What every node is sent before it joins, and the model that it must have."""

    method: str
    asks: tuple[str, ...]
    classes: int | None
    model: str

    def to(self, node: NodeInfo, seconds: float) -> Message:
        """Return the message to a node; after so many seconds nobody would read an answer."""
        config: dict[str, messages.Plain] = {
            "method": self.method, "asks": list(self.asks), "classes": self.classes or 0
        }  # fmt: skip
        return Message(messages.content(config), node.node_id, "query", ttl=seconds)


def gather(grid: Grid, question: Question, clients: int, waiting: Waiting) -> list[Member]:
    """Ask every node that appears until so many clients have joined or time is up; return them sorted by name.

    Each node is asked once. A node that refuses, fails or has another model does not take part.
    """
    until = time.monotonic() + waiting.join_seconds
    members: list[Member] = []
    asked: set[str] = set()
    while True:
        new = {identity: node for identity, node in identities(grid).items() if identity not in asked}
        asked.update(new)
        joining, _ = ask_nodes(grid, new, question, {member.name for member in members}, until, waiting.poll_seconds)
        members += joining
        left = until - time.monotonic()
        if len(members) >= clients or left <= 0:
            break
        time.sleep(min(waiting.poll_seconds, left))
    least = clients if waiting.minimum is None else waiting.minimum
    if len(members) < least:
        raise RunError(
            f"{len(members)} participants joined within {waiting.join_seconds:g} s, of {least} that the run needs: "
            "look at the logs of the missing ones, which may have agreed to another app, or change join_seconds or "
            "minimum in server.toml."
        )
    return sort_members(members)


def ask_nodes(
    grid: Grid, nodes: Mapping[str, NodeInfo], question: Question, taken: Collection[str], until: float,
    poll_seconds: float,
) -> tuple[list[Member], set[str]]:  # fmt: skip
    """Ask nodes until a moment of `time.monotonic`; return those that join, and those that answered but do not.

    A name that is already taken is refused.
    """
    names, members, refused = set(taken), [], set()
    seconds = 2 * max(until - time.monotonic(), 1.0)
    out = {identity: question.to(node, seconds) for identity, node in nodes.items()}
    for identity, reply in exchange(grid, out, until, poll_seconds).items():
        try:
            member = _member(identity, reply, question)
            if member.name in names:
                raise RefusedError(f"there is already a participant {member.name!r}")
            if nodes[identity].name not in ("", member.name):
                raise RefusedError(f"it calls itself {member.name!r}, but its key is that of {nodes[identity].name!r}")
            names.add(member.name)
            members.append(member)
            LOG.info("Client %r joins (%s).", member.name, identity)
        except RefusedError as refusal:
            LOG.warning("%s does not take part: %s.", identity, refusal)
            refused.add(identity)
    return members, refused


def sort_members(members: Iterable[Member]) -> list[Member]:
    """Return members sorted by name, numbers by their value."""
    return sorted(members, key=lambda member: (len(member.name), member.name))


def _member(identity: str, reply: Message, question: Question) -> Member:
    answer = messages.config_of(reply)
    if answer.get("status") != "ok":
        raise RefusedError(printable(answer.get("reason", "it failed to join; its own log says why")))
    name, size, counts = answer.get("name"), answer.get("size"), answer.get("class_counts")
    if not isinstance(name, str) or not 0 < len(name) <= _LONGEST_NAME or not name.isprintable():
        raise RefusedError(f"its name is missing, longer than {_LONGEST_NAME} characters or cannot be printed")
    if not _is_count(size):
        raise RefusedError("its size is missing")
    if size and answer.get("model") != question.model:
        raise RefusedError("its model is not the server's: install the same app and versions on both sides")
    if "class_counts" not in question.asks:
        return Member(identity, name, size)
    if (
        not isinstance(counts, list) or len(counts) != question.classes or not all(map(_is_count, counts))
        or sum(counts) != size
    ):  # fmt: skip
        raise RefusedError("its numbers of samples per class are missing, or do not add up to its size")
    return Member(identity, name, size, tuple(counts))


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**40
