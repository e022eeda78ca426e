"""FedRolex: a window of each layer that rolls from round to round (Alam et al., NeurIPS 2022), sized by reputation."""

from dataclasses import dataclass
from typing import ClassVar

from cofair.methods.families.windows import WindowMethod
from cofair.methods.registry import register
from cofair.settings import setting


@register
@dataclass(frozen=True)
class FedRolex(WindowMethod):
    """A window of each layer that rolls on from round to round, so that every unit is trained by everybody in time."""

    name: ClassVar[str] = "fedrolex"
    paper: ClassVar[str] = "Alam et al., NeurIPS 2022"

    step: int = setting(1, "units by which windows move on in a round; -1 is the direction of the authors' code")

    def first(self, t: int) -> int:
        """Start at unit 0 in the first round, `step` further in each next one."""
        return self.step * (t - 1)
