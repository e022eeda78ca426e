"""Plain stacks of layers, in which neurons can be read off the order of the layers."""

from collections.abc import Sequence
from itertools import pairwise

from torch import nn

from cofair.errors import UsageError
from cofair.models.neuron_layers import NeuronLayer


class Stack(nn.Sequential):
    """Linear layers and convolutions one after another, with activations that map 0 to 0 between them."""

    def neurons(self) -> tuple[NeuronLayer, ...]:
        """Return one layer of neurons for every layer but the last: units, or the channels of feature maps."""
        weights = [(name, weight) for name, weight in self.named_parameters() if weight.dim() > 1]
        return tuple(
            NeuronLayer(
                name=f"hidden{number}",
                count=len(weight),
                made_by=(name, name.replace("weight", "bias")),
                read_by=(reader,),
            )
            for number, ((name, weight), (reader, _)) in enumerate(pairwise(weights), 1)
        )


def image_shape(model: str, input_shape: Sequence[int]) -> tuple[int, int, int]:
    """Return (channels, height, width), or say that the model needs images."""
    if len(input_shape) != 3:
        raise UsageError(
            f"Model {model!r} needs images of shape (channels, height, width), but an input here has shape "
            f"{tuple(input_shape)}: reshape the data or choose 'mlp'."
        )
    channels, height, width = input_shape
    return channels, height, width
