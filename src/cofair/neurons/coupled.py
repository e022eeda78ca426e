"""Neurons that several layers make together, as the channels of a residual stream, from Torch-Pruning's graph.

Its dependency graph knows which channels can only be left out together. It does not know what normalisations mix: for
a ResNet with GroupNorm it offers single channels, for a transformer the residual stream. Channels are therefore
joined to whole groups, and a layer counts only if masking what makes its neurons changes nothing once what reads
them is masked: then nothing of them leaks anywhere else.
"""

import copy
import importlib
import importlib.util
import math
import warnings
from collections.abc import Sequence, Set
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from cofair.models.neuron_layers import NeuronLayer, Part

_READERS_AND_MAKERS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)
_CARRIERS = (nn.GroupNorm, nn.PReLU)  # their parameters go with the channels that pass through them
_TRIALS = 3


def find_layers(module: nn.Module, example: Tensor, without: Set[str]) -> list[NeuronLayer]:
    """Return layers that Torch-Pruning finds, that pass the test and are not made by parameters `without` names.

    Where Torch-Pruning is not installed, or cannot follow the module, there are none.
    """
    if importlib.util.find_spec("torch_pruning") is None:
        return []
    pruning = importlib.import_module("torch_pruning")
    traced = copy.deepcopy(module).eval().requires_grad_(True)
    example = example[:1].to(next(traced.parameters())) if example.is_floating_point() else example[:1]
    try:
        with warnings.catch_warnings(), torch.enable_grad():
            warnings.simplefilter("ignore")
            groups = list(pruning.DependencyGraph().build_dependency(traced, example).get_all_groups())
    except Exception:  # it cannot follow every module; then what our own walk found has to do
        return []
    names = {id(part): name for name, part in traced.named_modules()}
    layers = [layer for group in groups if (layer := _layer(group, names)) is not None]
    return _stand_alone([layer for layer in layers if without.isdisjoint(layer.makers)], traced, example)


def _layer(group: Any, names: dict[int, str]) -> NeuronLayer | None:
    """Turn a group of Torch-Pruning into a layer, or into None where it holds something that is no neuron's."""
    count = len(group[0].idxs)
    made_by: list[str | Part] = []
    read_by: list[str | Part] = []
    for item in group:
        part, reads = item.dep.target.module, "in_channels" in item.dep.handler.__name__
        if type(part).__module__.startswith("torch_pruning"):  # an operation without parameters
            continue
        stretch = _stretch(item.idxs, item.root_idxs, len(group[0].idxs))
        if stretch is None or not isinstance(part, _READERS_AND_MAKERS + _CARRIERS):
            return None
        if isinstance(part, nn.GroupNorm):
            count = math.gcd(count, part.num_groups)
        depthwise = getattr(part, "groups", 1) > 1
        if depthwise and not part.groups == part.in_channels == part.out_channels:
            return None
        owned = ["weight"] if reads and not depthwise else ["weight", "bias"]
        for own in owned:
            value = getattr(part, own, None)
            if value is None or (isinstance(part, nn.PReLU) and part.num_parameters == 1):
                continue
            dim = 1 if reads and not depthwise else 0
            whole = stretch == (0, value.shape[dim])
            name = f"{names[id(part)]}.{own}".removeprefix(".")
            (read_by if dim else made_by).append(name if whole else Part(name, *stretch))
    if count < 2 or not made_by or not read_by:
        return None
    return NeuronLayer(names[id(group[0].dep.target.module)], count, _once(made_by), _once(read_by))


def _stretch(indices: list[int], roots: list[int], count: int) -> tuple[int, int] | None:
    """Return from where to where entries belong to a group's channels in order, an equal run to each."""
    run = len(indices) // count
    if indices != list(range(indices[0], indices[0] + count * run)):
        return None
    return (indices[0], indices[-1] + 1) if roots == [i // run for i in range(count * run)] else None


def _once(items: list[str | Part]) -> tuple[str | Part, ...]:
    return tuple(dict.fromkeys(items))


def _stand_alone(layers: Sequence[NeuronLayer], module: nn.Module, example: Tensor) -> list[NeuronLayer]:
    """Return the layers whose neurons have no effect once nothing reads them, in trials with random parameters."""
    random = torch.Generator().manual_seed(0)

    def draw(like: Tensor) -> Tensor:
        return torch.randn(like.shape, generator=random).to(like)

    for _ in range(_TRIALS if layers else 0):
        x = draw(example) if example.is_floating_point() else example
        # norms and biases are drawn like weights, so that no start of zeros or ones hides an effect
        named = {name: draw(value) / max(1, value[0].numel()) ** 0.5 for name, value in module.named_parameters()}
        alone = []
        for layer in layers:
            left_out = torch.rand(layer.count, generator=random) < 0.5
            left_out[int(torch.randint(layer.count, (), generator=random))] = True
            unread = {**named, **_without(named, layer.read_by, 1, left_out)}
            unmade = {**unread, **_without(unread, layer.made_by, 0, left_out)}
            with torch.no_grad():
                one, other = (functional_call(module, parameters, (x,)) for parameters in (unread, unmade))
            rounding = 1000 * torch.finfo(one.dtype).eps * float(one.abs().max())
            if torch.allclose(one, other, rtol=0, atol=rounding):
                alone.append(layer)
        layers = alone
    return list(layers)


def _without(named: dict[str, Tensor], items: Sequence[str | Part], dim: int, left_out: Tensor) -> dict[str, Tensor]:
    """Return copies of the parameters that make (dim 0) or read (1) neurons, zero where these are left out."""
    copies: dict[str, Tensor] = {}
    for item in items:
        name = item if isinstance(item, str) else item.parameter
        value = copies.setdefault(name, named[name].clone()).movedim(dim, 0)
        part = value if isinstance(item, str) else value[item.start : item.stop]
        part[left_out.repeat_interleave(len(part) // len(left_out))] = 0
    return copies
