"""The two convolutional networks of CGSV, used by FedAVE as well.

Their log-softmax and negative log-likelihood are the cross entropy of the plain outputs given here.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import ClassVar

from torch import nn

from cofair.errors import UsageError
from cofair.models.stack import Stack, image_shape


class _CNN(Stack):
    """Two convolutions, each with 2×2 max-pooling and an activation, then linear layers."""

    name: ClassVar[str]
    channels: ClassVar[tuple[int, ...]]
    kernels: ClassVar[tuple[int, ...]]
    hidden: ClassVar[tuple[int, ...]]
    activation: ClassVar[type[nn.Module]]

    def __init__(
        self,
        input_shape: Sequence[int],
        classes: int,
        *,
        pad: int | None = None,
        pad_value: float = 0.0,
    ) -> None:
        """Build the network for images of any size, `pad` pixels of `pad_value` added on each side.

        Left to itself, it pads 28×28 as the papers do, and smaller images as much as the layers need.
        """
        depth, height, width = image_shape(self.name, input_shape)
        pad = self._padding(min(height, width)) if pad is None else pad
        if pad < 0 or min(height, width) + 2 * pad < self.smallest():
            raise UsageError(
                f"Model {self.name!r} got images of {height}×{width} with pad = {pad}, but needs at least "
                f"{self.smallest()}×{self.smallest()}: leave pad out or set it to "
                f"{self._padding(min(height, width))} or more."
            )
        layers: list[nn.Module] = [nn.ConstantPad2d(pad, pad_value)] if pad else []
        height, width = height + 2 * pad, width + 2 * pad
        for after, kernel in zip(self.channels, self.kernels, strict=True):
            # the papers' order is the activation first: the same, since it never falls, and less to compute so
            layers += [nn.Conv2d(depth, after, kernel), nn.MaxPool2d(2), self.activation()]
            depth, height, width = after, (height - kernel + 1) // 2, (width - kernel + 1) // 2
        widths = [depth * height * width, *self.hidden]
        layers.append(nn.Flatten())
        for before, unit in pairwise(widths):
            layers += [nn.Linear(before, unit), self.activation()]
        super().__init__(*layers, nn.Linear(widths[-1], classes))

    @classmethod
    def smallest(cls) -> int:
        """Return the smallest side of an image, padding included, that leaves one pixel at the end."""
        side = 1
        for kernel in reversed(cls.kernels):
            side = 2 * side + kernel - 1
        return side

    @classmethod
    def _padding(cls, side: int) -> int:
        return max(0, (cls.smallest() - side + 1) // 2)


class CNNMnist(_CNN):
    """CGSV's tanh network for MNIST: 104,242 parameters on 28×28 images padded to 32×32."""

    name = "cnn-mnist"
    channels, kernels, hidden = (64, 16), (3, 7), (200,)
    activation = nn.Tanh

    @classmethod
    def _padding(cls, side: int) -> int:
        return 2 if side == 28 else super()._padding(side)


class CNNCifar(_CNN):
    """CGSV's ReLU network for CIFAR-10: 121,182 parameters on 32×32 images."""

    name = "cnn-cifar"
    channels, kernels, hidden = (16, 32), (5, 5), (120, 84)
    activation = nn.ReLU
