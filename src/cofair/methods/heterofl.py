"""HeteroFL: the first units of each layer (Diao et al., ICLR 2021), with widths given by reputation."""

from dataclasses import dataclass
from typing import ClassVar

from cofair.methods.families.windows import WindowMethod
from cofair.methods.registry import register


@register
@dataclass(frozen=True)
class HeteroFL(WindowMethod):
    """The first units of each layer."""

    name: ClassVar[str] = "heterofl"
    paper: ClassVar[str] = "Diao et al., ICLR 2021"
