"""Messages out, answers in, by a deadline: nothing here waits for ever."""

import logging
import time
from collections.abc import Hashable, Mapping
from typing import TypeVar

from flwr.app import Message
from flwr.serverapp import Grid

from cofair.engine.problem import first_line

Key = TypeVar("Key", bound=Hashable)
LOG = logging.getLogger("flwr.cofair")


def exchange(grid: Grid, out: Mapping[Key, Message], until: float, poll_seconds: float) -> dict[Key, Message]:
    """Send messages and return the answers that came by a moment of `time.monotonic`, by the same keys.

    A node that Flower finds to be gone, or whose app broke down, has not answered. A SuperLink that cannot be reached
    for a while is asked again.
    """
    waiting = dict(zip(grid.push_messages(list(out.values())), out, strict=False)) if out else {}
    waiting.pop(None, None)  # type: ignore[call-overload]  # what the SuperLink did not take
    answers: dict[Key, Message] = {}
    while waiting:
        try:
            found = list(grid.pull_messages(list(waiting)))
        except Exception as error:  # the network may fail in any way, and comes back
            LOG.warning("No answers can be fetched now: %s", first_line(error))
            found = []
        for reply in found:
            key = waiting.pop(reply.metadata.reply_to_message_id, None)
            if key is None:
                continue
            if reply.has_error():
                LOG.warning("A node gave no answer: %s", first_line(RuntimeError(reply.error.reason or "no reason")))
            else:
                answers[key] = reply
        left = until - time.monotonic()
        if waiting and left <= 0:
            break
        if waiting:
            time.sleep(min(poll_seconds, left))
    return answers
