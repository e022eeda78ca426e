"""A layer of neurons: which parameters make them, and which read them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@dataclass(frozen=True)
class Part:
    """Entries `start` to `stop` of a dimension of a parameter that several layers of neurons share."""

    parameter: str
    start: int
    stop: int


@dataclass(frozen=True)
class NeuronLayer:
    """Neurons of one layer, as a model declares them.

    `made_by` names the parameters whose first dimension computes these neurons, `read_by` those whose second
    dimension reads them. A dimension larger than `count` gives every neuron an equal run of it, as a flattened
    feature map does; a `Part` is a stretch of a dimension. `mask` names a buffer of ones that the model multiplies
    its activations by instead: then a masked neuron is silent but its parameters are not removed (FedRAC's ResNet).
    """

    name: str
    count: int
    made_by: tuple[str | Part, ...] = ()
    read_by: tuple[str | Part, ...] = ()
    mask: str | None = None

    @property
    def makers(self) -> list[str]:
        """Name the parameters that make these neurons."""
        return _names(self.made_by)

    @property
    def parameters(self) -> set[str]:
        """Name the parameters that make or read these neurons."""
        return {*self.makers, *_names(self.read_by)}


@runtime_checkable
class DeclaresNeurons(Protocol):
    """A module that says which of its parameters form neurons."""

    def neurons(self) -> Sequence[NeuronLayer]:
        """Return the layers of neurons, first layer first."""


def _names(items: Sequence[str | Part]) -> list[str]:
    return [item if isinstance(item, str) else item.parameter for item in items]
