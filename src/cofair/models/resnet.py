"""ResNet-18 with GroupNorm of two groups, whose channel masks FedRAC declares.

GroupNorm mixes channels, so leaving out a channel's parameters would change its neighbours. FedRAC silences
channels instead: masks multiply the activations after the stem and the four stages. A silent channel's
convolution still moves, through the statistics of its group. A variant takes images of any size; what is published
for Tiny-ImageNet had them resized to 32×32 before, which is the setting federation.resize.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from cofair.errors import UsageError, nearest
from cofair.models.neuron_layers import NeuronLayer
from cofair.models.stack import image_shape

GROUPS = 2
WIDTHS = (64, 128, 256, 512)


@dataclass(frozen=True)
class Variant:
    """What differs between the published versions: the stem, the start, and the size images are padded to."""

    kernel: int
    stride: int
    max_pool: bool
    kaiming: bool  # torchvision's start; otherwise PyTorch's default for every layer
    padded: int = 0


VARIANTS = {
    "cifar": Variant(kernel=7, stride=2, max_pool=False, kaiming=True),  # FedRAC on CIFAR-10
    "tiny": Variant(kernel=3, stride=1, max_pool=False, kaiming=False),  # FedRAC, Tiny-ImageNet resized to 32×32
    "emnist": Variant(kernel=7, stride=2, max_pool=True, kaiming=True, padded=32),  # FedAVE on EMNIST letters
}


class ImageMean(nn.Module):
    """Mean over the pixels of each channel; torch.func cannot stack nn.AdaptiveAvgPool2d and runs it model by model."""

    def forward(self, x: Tensor) -> Tensor:
        """Return (B, channels) for (B, channels, H, W)."""
        return x.mean((2, 3))


class ChannelMask(nn.Module):
    """Multiplies each channel by its entry of `mask`, a buffer of ones unless a submodel sets it."""

    mask: Tensor

    def __init__(self, channels: int) -> None:
        """Start with every channel kept."""
        super().__init__()
        self.register_buffer("mask", torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        """Silence the masked channels of (B, channels) or (B, channels, H, W)."""
        return x * self.mask.view(-1, *[1] * (x.dim() - 2))


class BasicBlock(nn.Module):
    """Two 3×3 convolutions and a shortcut."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        """Build a block; a shortcut that changes size or width is a 1×1 convolution."""
        super().__init__()
        self.residual = nn.Sequential(
            nn.Conv2d(before, after, 3, stride, padding=1, bias=False),
            nn.GroupNorm(GROUPS, after),
            nn.ReLU(),
            nn.Conv2d(after, after, 3, padding=1, bias=False),
            nn.GroupNorm(GROUPS, after),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or before != after:
            self.shortcut = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.GroupNorm(GROUPS, after))

    def forward(self, x: Tensor) -> Tensor:
        """Add the shortcut, then ReLU."""
        joined: Tensor = self.residual(x) + self.shortcut(x)
        return joined.relu()


class ResNet18(nn.Sequential):
    """ResNet-18 with GroupNorm and 1024 channel masks, as variant cifar, tiny or emnist."""

    def __init__(
        self,
        input_shape: Sequence[int],
        classes: int,
        *,
        variant: str = "cifar",
        widths: Sequence[int] = WIDTHS,
        pad_value: float = 0.0,
    ) -> None:
        """Build a variant for images of any size and depth."""
        depth, height, width = image_shape("resnet18", input_shape)
        if variant not in VARIANTS:
            raise UsageError(f"Unknown variant {variant!r} of model 'resnet18': {nearest(variant, VARIANTS)}")
        if len(widths) != len(WIDTHS) or any(count < 1 or count % GROUPS for count in widths):
            raise UsageError(
                f"Model 'resnet18' got widths = {list(widths)}: give four channel counts, each a multiple of "
                f"{GROUPS}, as {list(WIDTHS)}."
            )
        chosen = VARIANTS[variant]
        parts: OrderedDict[str, nn.Module] = OrderedDict()
        down, right = max(0, chosen.padded - height), max(0, chosen.padded - width)
        if down or right:
            sides = (right // 2, right - right // 2, down // 2, down - down // 2)
            parts["pad"] = nn.ConstantPad2d(sides, pad_value)
        k = chosen.kernel
        parts["stem"] = nn.Conv2d(depth, widths[0], k, chosen.stride, padding=k // 2, bias=False)
        parts["norm"] = nn.GroupNorm(GROUPS, widths[0])
        parts["relu"] = nn.ReLU()
        parts["mask0"] = ChannelMask(widths[0])
        if chosen.max_pool:
            parts["pool"] = nn.MaxPool2d(3, 2, padding=1)
        for number, (before, after) in enumerate(pairwise((widths[0], *widths)), 1):
            stride = 1 if number == 1 else 2
            parts[f"stage{number}"] = nn.Sequential(BasicBlock(before, after, stride), BasicBlock(after, after, 1))
            if number == len(widths):  # the last mask stands after average pooling
                parts["average"] = ImageMean()
            parts[f"mask{number}"] = ChannelMask(after)
        parts["head"] = nn.Linear(widths[-1], classes)
        super().__init__(parts)
        self.channels = (widths[0], *widths)
        if chosen.kaiming:
            for part in self.modules():
                if isinstance(part, nn.Conv2d):
                    nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu")

    def neurons(self) -> tuple[NeuronLayer, ...]:
        """Return the five layers of channel masks."""
        names = ("stem", "stage1", "stage2", "stage3", "stage4")
        return tuple(
            NeuronLayer(name, count, mask=f"mask{number}.mask")
            for number, (name, count) in enumerate(zip(names, self.channels, strict=True))
        )
