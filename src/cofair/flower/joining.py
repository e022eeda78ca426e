"""Who takes part: every node is told what is asked of it, and says who it is or refuses."""

import logging
import time
from collections.abc import Sequence

from flwr.app import Message
from flwr.serverapp import Grid

from cofair.errors import RunError
from cofair.flower import messages
from cofair.flower.exchange import exchange
from cofair.flower.federation import Member, identities
from cofair.flower.settings import Waiting
from cofair.flower.wire import RefusedError

LOG = logging.getLogger("flwr.cofair")


def gather(
    grid: Grid, method: str, asks: Sequence[str], classes: int | None, clients: int, model: str, waiting: Waiting
) -> list[Member]:
    """Ask every node that appears until so many clients have joined or the time is over; returned by name.

    Each node is asked once. Whoever refuses, breaks down or has another model does not take part.
    """
    until = time.monotonic() + waiting.join_seconds
    members: dict[str, Member] = {}
    asked: set[str] = set()
    while True:
        new = {identity: node for identity, node in identities(grid).items() if identity not in asked}
        asked.update(new)
        question: dict[str, messages.Plain] = {"method": method, "asks": list(asks), "classes": classes or 0}
        seconds = 2 * waiting.join_seconds  # after that nobody would read an answer
        out = {
            identity: Message(messages.content(question), node.node_id, "query", ttl=seconds)
            for identity, node in new.items()
        }
        for identity, reply in exchange(grid, out, until, waiting.poll_seconds).items():
            try:
                member = _member(identity, reply, model, asks, classes)
                if member.name in {other.name for other in members.values()}:
                    raise RefusedError(f"there is a participant {member.name!r} already")
                if new[identity].name not in ("", member.name):
                    raise RefusedError(f"it calls itself {member.name!r}, but its key is {new[identity].name!r}'s")
                members[identity] = member
                LOG.info("Client %r joins (%s).", member.name, identity)
            except RefusedError as refusal:
                LOG.warning("%s does not take part: %s.", identity, refusal)
        left = until - time.monotonic()
        if len(members) >= clients or left <= 0:
            break
        time.sleep(min(waiting.poll_seconds, left))
    least = clients if waiting.minimum is None else waiting.minimum
    if len(members) < least:
        raise RunError(
            f"{len(members)} participants joined within {waiting.join_seconds:g} s, of {least} that the run needs: "
            "see the logs of those that are missing, or set join-seconds or minimum."
        )
    return sorted(members.values(), key=lambda member: (len(member.name), member.name))


def _member(identity: str, reply: Message, model: str, asks: Sequence[str], classes: int | None) -> Member:
    told = messages.config_of(reply)
    if told.get("status") != "ok":
        raise RefusedError(str(told.get("reason", "it failed to join; its own log says why"))[:200])
    name, size, counts = told.get("name"), told.get("size"), told.get("class_counts")
    if not isinstance(name, str) or not isinstance(size, int) or not 0 <= size < 2**40:
        raise RefusedError("its name or its size is missing")
    if size and told.get("model") != model:
        raise RefusedError("its model is not the server's: install the same app and versions on both sides")
    if "class_counts" not in asks:
        return Member(identity, name, size)
    if not isinstance(counts, list) or len(counts) != classes or sum(counts) != size or min(counts) < 0:
        raise RefusedError("how many samples of each class it has is missing, or does not add up to its size")
    return Member(identity, name, size, tuple(counts))
