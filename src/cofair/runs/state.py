"""Where a run stands between two rounds: all that the next round reads, and so all that a checkpoint holds."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cofair.engine.protocol import ClientStates
from cofair.rounds.client_status import ClientStatus
from cofair.runs.kept import Kept
from cofair.runs.tally import Tally


@dataclass(frozen=True)
class RunState:
    """A run after a round, 0 being before the first; `last` where it has come to its end."""

    round: int
    method: Any  # the method's own state
    clients: ClientStates
    tally: Tally
    status: ClientStatus
    seconds: float = 0.0
    last: bool = False
    kept: Kept | None = None  # what clients could put together, where that is measured


class Stopwatch:
    """Adds up the time that passes; a clock that jumps back adds nothing."""

    def __init__(self, clock: Callable[[], float], so_far: float = 0.0) -> None:
        """Continue from the seconds so far."""
        self._clock, self._seconds, self._latest = clock, so_far, clock()

    def seconds(self) -> float:
        """Return the seconds so far."""
        now = self._clock()
        self._seconds += max(0.0, now - self._latest)
        self._latest = now
        return self._seconds
