"""What clients hold in the end: the best that each can make of all it was handed, with the data that it has."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from cofair import metrics

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Held:
    """What each client holds after the last round, judged on the test set; one entry for each client everywhere.

    `parts` has the accuracies of all that a client chose among: what was delivered, kept (the newest value of every
    parameter), averaged, run ahead along its drift, and tuned on its own data; and `most`, the best of all that on the
    test set, a bound that no client could choose. `chosen` names its choice, which it made by data of its own, and
    `accuracies` is how good that is.
    """

    contributions: Floats
    accuracies: Floats
    chosen: tuple[str, ...]
    parts: Mapping[str, Floats]

    def of_record(self) -> dict[str, Any]:
        """Return the fields of a record that keep this."""
        parts = {name: own.tolist() for name, own in self.parts.items()}
        return {"held": self.accuracies.tolist(), "held_parts": parts, "held_as": list(self.chosen)}

    @property
    def fairness(self) -> float | None:
        """Return γ of what is held, or None where it is undefined."""
        return metrics.fairness(self.contributions, self.accuracies)

    @property
    def weakest(self) -> float:
        """Return what the client holds that contributes least, the mean over several that do."""
        return metrics.of_the_weakest(self.contributions, self.accuracies)
