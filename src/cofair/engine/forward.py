"""Call a module with parameters from a row, under neuron masks, with dropout that is addressed."""

import copy
from typing import cast

import torch
from torch import Tensor, nn
from torch.func import functional_call

from cofair import randomness
from cofair.engine.stackable import make_stackable
from cofair.models.parameters import Layout
from cofair.neurons.map import NeuronMap


class AddressedDropout(nn.Module):
    """Dropout whose mask is a hash of a key, so that every engine drops the same units.

    Entries are counted from the first sample on, so the first dimension must be the batch. Other sources of
    randomness (functional dropout, attention's own) are seeded for each round, but differ between engines.
    """

    key: Tensor

    def __init__(self, probability: float) -> None:
        """Drop each entry with the given probability while training."""
        super().__init__()
        self.probability = probability
        self.calls = 0  # within one forward: a module that drops out twice must not drop the same units
        self.register_buffer("key", torch.zeros((), dtype=torch.int64), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Zero some entries and scale up the others."""
        if not self.training or self.probability == 0:
            return x
        # entry j of sample b must not depend on the batch's padding: count from the first sample on
        if self.probability == 1:
            return x * 0
        key = randomness.fold(self.key, self.calls)
        self.calls += 1
        hashes = randomness.stream(key, x.numel()).view(x.shape)
        keep = hashes >= int((self.probability - 0.5) * 2**63) * 2  # uniform over the signed 64-bit integers
        return x * keep / (1 - self.probability)


class Forward:
    """A layout's module as a function of its parameters; per-client extras are buffers and frozen tensors."""

    def __init__(self, layout: Layout, neurons: NeuronMap | None, *, stacked: bool = False) -> None:
        """Prepare a training and an evaluation copy of the module, as they are fastest stacked if they are to be."""
        self.layout = layout
        self.neurons = neurons
        self.training = copy.deepcopy(layout.prototype).train()
        self.evaluation = copy.deepcopy(layout.prototype).eval()
        self._dropouts = _address_dropout(self.training)
        if stacked:
            make_stackable(self.training)
            make_stackable(self.evaluation)

    def __call__(self, parameters: dict[str, Tensor], extras: dict[str, Tensor], x: Tensor) -> Tensor:
        """Return the outputs of the training module."""
        for name in self._dropouts:
            cast(AddressedDropout, self.training.get_submodule(name)).calls = 0
        return cast(Tensor, functional_call(self.training, {**parameters, **extras}, (x,)))

    def evaluate(self, parameters: dict[str, Tensor], extras: dict[str, Tensor], x: Tensor) -> Tensor:
        """Return the outputs of the evaluation module."""
        return cast(Tensor, functional_call(self.evaluation, {**parameters, **extras}, (x,)))

    def mask_extras(self, neuron_masks: Tensor | None) -> dict[str, Tensor]:
        """Return what neuron masks (N, K) change outside D: activation masks, masked frozen parameters."""
        if neuron_masks is None or self.neurons is None:
            return {}
        activations = self.neurons.activation_masks(neuron_masks)
        frozen = self.neurons.frozen_masks(neuron_masks)
        return {name: mask.to(self.layout.dtype) for name, mask in activations.items()} | {
            name: self.layout.frozen[name] * mask for name, mask in frozen.items()
        }

    @property
    def drops_out(self) -> bool:
        """Say whether a step needs keys for dropout."""
        return bool(self._dropouts)

    def dropout_extras(self, keys: Tensor) -> dict[str, Tensor]:
        """Return the dropout keys of one step: `keys` is one per client (N,), or a single one ()."""
        return {f"{name}.key": randomness.fold(keys, i) for i, name in enumerate(self._dropouts)}


def _address_dropout(module: nn.Module) -> list[str]:
    """Replace every nn.Dropout of a module by an addressed one; return their names."""
    named = module.named_modules(remove_duplicate=False)  # a module can stand in two places
    names = [name for name, part in named if type(part) is nn.Dropout]
    for name in names:
        parent, _, child = name.rpartition(".")
        owner = module.get_submodule(parent)
        old = cast(nn.Dropout, getattr(owner, child))
        setattr(owner, child, AddressedDropout(old.p).train(old.training))
    return names
