"""What a client brings: measures of contribution."""

from collections.abc import Callable

from torch import Tensor

from cofair.contributions.standalone import standalone
from cofair.engine.scoring import Scorer
from cofair.methods import Server

MEASURES: dict[str, Callable[[Server, Scorer], Tensor]] = {"standalone": standalone}


def measure(name: str, on: str, server: Server, tester: Scorer) -> Tensor:
    """Return the contributions (N,) by a named measure, on the test or on the validation set."""
    return MEASURES[name](server, server.validation if on == "validation" else tester)


__all__ = ["MEASURES", "measure", "standalone"]
