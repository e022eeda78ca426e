"""A submodel without what it leaves out: as the entries it keeps, or as a smaller module."""

import copy

import torch
from torch import Tensor, nn

from cofair.engine.linear_stack import sequential_leaves
from cofair.errors import UsageError
from cofair.neurons.map import NeuronMap

_RESIZED = (
    nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.PReLU, nn.GroupNorm,
    nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d,
)  # fmt: skip


def slice_row(row: Tensor, parameter_mask: Tensor) -> Tensor:
    """Return the entries of a row (D,) that a mask (D,) keeps: what a submodel is on the wire."""
    if row.shape != parameter_mask.shape or row.dim() != 1:
        raise UsageError(
            f"A row of shape {tuple(row.shape)} cannot be sliced by a mask of shape {tuple(parameter_mask.shape)}: "
            "both must be (D,)."
        )
    return row[parameter_mask.bool()]


def scatter(values: Tensor, parameter_mask: Tensor, fill: Tensor | float = 0.0) -> Tensor:
    """Return a row (D,) with the kept entries back in their places, and `fill` (a number or a row) elsewhere."""
    keep = parameter_mask.bool()
    kept = int(keep.sum())
    if values.shape != (kept,) or keep.dim() != 1:
        raise UsageError(f"{tuple(values.shape)} values cannot be scattered to the {kept} entries that the mask keeps.")
    if isinstance(fill, Tensor) and fill.shape != keep.shape:
        raise UsageError(f"A row to fill in must have shape {tuple(keep.shape)}, not {tuple(fill.shape)}.")
    row = fill.to(values, copy=True) if isinstance(fill, Tensor) else values.new_full(keep.shape, fill)
    row[keep] = values
    return row


def small_module(module: nn.Module, neurons: NeuronMap, mask: Tensor) -> nn.Module:
    """Return a plain stack as a smaller module of its own, with only the neurons that a mask (K,) keeps.

    Its outputs are those of the masked module up to rounding. A layer of which nothing is kept holds one silent
    neuron, because many layers cannot be empty. Refused is what is no plain stack of torch's own layers: there a
    size may be written in the code, as the number of heads in attention.
    """
    if mask.shape != (neurons.count,):
        raise UsageError(
            f"A mask for {neurons.count} neurons must have shape ({neurons.count},), not {tuple(mask.shape)}."
        )
    leaves = _plain_leaves(module)
    for name in sorted({name for layer in neurons.layers for name in layer.parameters}):
        if not isinstance(leaves.get(name.rpartition(".")[0]), _RESIZED):
            raise _refusal(f"{name!r} belongs to a {type(module.get_submodule(name.rpartition('.')[0])).__name__}")
    held = mask.bool().clone()
    parameter_mask, frozen = neurons.parameter_mask(held[None]), neurons.frozen_masks(held[None])
    masks = {**neurons.layout.views(parameter_mask), **frozen}
    for where in neurons.slices:
        held[where.start] |= not held[where].any()

    small = copy.deepcopy(module)
    values = {name: value * masks[name][0] if name in masks else value for name, value in small.named_parameters()}
    for name, dims in neurons.kept_entries(held).items():
        for dim, kept in dims.items():
            values[name] = values[name].index_select(dim, kept)
    with torch.no_grad():
        for name, old in list(small.named_parameters()):
            owner = small.get_submodule(name.rpartition(".")[0])
            value = values[name].detach().clone()
            setattr(owner, name.rpartition(".")[2], nn.Parameter(value, requires_grad=old.requires_grad))
    for part in small.modules():
        _resize(part)
    return small


def _plain_leaves(module: nn.Module) -> dict[str, nn.Module]:
    leaves = dict(sequential_leaves(module))
    for part in leaves.values():
        if not type(part).__module__.startswith("torch.nn.") or list(part.children()):
            raise _refusal(f"this one has a {type(part).__name__}")
        if isinstance(part, nn.GroupNorm) and not part.affine:
            raise _refusal("this one has a GroupNorm without weights")
    return leaves


def _refusal(reason: str) -> UsageError:
    return UsageError(
        f"Only a plain nn.Sequential of torch's own layers can be made smaller, but {reason}: "
        "use the masked module or the sliced row."
    )


def _resize(part: nn.Module) -> None:
    """Tell a layer the size of its new weights."""
    if isinstance(part, nn.Linear):
        part.out_features, part.in_features = part.weight.shape
    elif isinstance(part, nn.Conv1d | nn.Conv2d | nn.Conv3d):
        if 1 < part.groups == part.in_channels:
            part.groups = part.in_channels = len(part.weight) * part.in_channels // part.out_channels
        elif part.groups == 1:
            part.in_channels = part.weight.shape[1]
        part.out_channels = len(part.weight)
    elif isinstance(part, nn.GroupNorm):
        part.num_groups = part.num_groups * len(part.weight) // part.num_channels
        part.num_channels = len(part.weight)
    elif isinstance(part, nn.PReLU):
        part.num_parameters = len(part.weight)
    elif isinstance(part, nn.InstanceNorm1d | nn.InstanceNorm2d | nn.InstanceNorm3d) and part.affine:
        part.num_features = len(part.weight)
