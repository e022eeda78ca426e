"""Messages out, answers in, by a deadline: nothing here waits for ever, and nobody's answer holds up another's."""

import logging
import queue
import threading
import time
from collections.abc import Hashable, Mapping
from typing import TypeVar

from flwr.app import Message
from flwr.serverapp import Grid

from cofair.engine.problem import first_line
from cofair.flower.deploy.bounds import SMALLEST
from cofair.flower.inflation import at_most
from cofair.flower.printable_text import printable

Key = TypeVar("Key", bound=Hashable)
LOG = logging.getLogger("flwr.cofair")
_LOOKS_A_SECOND = 50  # at most, by all who wait together: each is a request to the SuperLink
_GRACE = 0.5  # seconds in which an answer that came at the last moment is read


def exchange(
    grid: Grid, out: Mapping[Key, Message], until: float, poll_seconds: float, most: int = SMALLEST
) -> dict[Key, Message]:
    """Send messages and return the answers that came by a moment of `time.monotonic`, by the same keys.

    A node that Flower finds to be gone, or whose app broke down, has not answered. A SuperLink that cannot be reached
    for a while is asked again. Each answer is fetched by a thread of its own: one that was announced and never pushed
    would hold Flower for hours, and one that cannot be read would take those fetched with it along. A thread that is
    not done by then is left to itself. The arrays of an answer come to so many bytes at `most`.
    """
    identities = dict(zip(out, grid.push_messages(list(out.values())), strict=False)) if out else {}
    waiting = {key: identity for key, identity in identities.items() if identity is not None}  # what was not taken
    pause = max(poll_seconds, len(waiting) / _LOOKS_A_SECOND)
    found: queue.SimpleQueue[tuple[Key, Message | None]] = queue.SimpleQueue()

    def fetch(key: Key, identity: str) -> None:
        found.put((key, _answer(grid, identity, until, pause, most)))

    for key, identity in waiting.items():
        threading.Thread(target=fetch, args=(key, identity), daemon=True).start()
    answers: dict[Key, Message] = {}
    for _ in waiting:
        try:
            key, reply = found.get(timeout=max(until - time.monotonic(), 0.0) + _GRACE)
        except queue.Empty:
            break
        if reply is not None:
            answers[key] = reply
    return answers


def _answer(grid: Grid, identity: str, until: float, pause: float, most: int) -> Message | None:
    """Return the answer to a message, or None where none came by then."""
    while True:
        try:
            with at_most(most):
                found = list(grid.pull_messages([identity]))
        except Exception as error:  # the network may fail in any way, and comes back; an answer may be unreadable
            LOG.warning("No answer can be fetched now: %s", printable(first_line(error)))
            found = []
        for reply in found:
            if reply.metadata.reply_to_message_id != identity:  # of another round, or of another run
                continue
            if not reply.has_error():
                return reply
            LOG.warning("A node gave no answer: %s", printable(first_line(RuntimeError(reply.error.reason or "none"))))
            return None
        left = until - time.monotonic()
        if left <= 0:
            return None
        time.sleep(min(pause, left))
