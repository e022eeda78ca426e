"""Messages out, answers in, by a deadline: nothing here waits forever, and no answer delays another."""

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
_POLLS_PER_SECOND = 50  # at most, by all threads together: each is a request to the SuperLink
_GRACE = 0.5  # seconds in which an answer that came at the last moment is read


def exchange(
    grid: Grid, out: Mapping[Key, Message], until: float, poll_seconds: float, most: int = SMALLEST
) -> dict[Key, Message]:
    """Send messages and return the answers that came by a moment of `time.monotonic`, by the same keys.

    A node that Flower reports as gone, or whose app failed, has not answered. A SuperLink that cannot be reached for a
    while is asked again. Each answer is fetched in a thread of its own: one that is announced but never pushed would
    block Flower for hours, and one that cannot be read would spoil those fetched with it. A thread that has not
    finished by then is abandoned. The arrays of an answer may have `most` bytes.
    """
    identities = dict(zip(out, grid.push_messages(list(out.values())), strict=False)) if out else {}
    waiting = {key: identity for key, identity in identities.items() if identity is not None}  # None: not accepted
    pause = max(poll_seconds, len(waiting) / _POLLS_PER_SECOND)
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
    """Return the answer to a message, or None if none came in time."""
    while True:
        try:
            with at_most(most):
                found = list(grid.pull_messages([identity]))
        except Exception as error:  # the network may fail in any way and come back; an answer may be unreadable
            LOG.warning("Cannot fetch an answer now: %s", printable(first_line(error)))
            found = []
        for reply in found:
            if reply.metadata.reply_to_message_id != identity:  # from another round, or another run
                continue
            if not reply.has_error():
                return reply
            LOG.warning("A node gave no answer: %s", printable(first_line(RuntimeError(reply.error.reason or "none"))))
            return None
        left = until - time.monotonic()
        if left <= 0:
            return None
        time.sleep(min(pause, left))
