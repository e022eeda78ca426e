"""Parameters as one flat row: which slice of the row is which tensor of the module."""

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from cofair.errors import UsageError


@dataclass(frozen=True)
class ParameterSlice:
    """One trainable tensor of the module and its place in a row."""

    name: str
    shape: tuple[int, ...]
    start: int
    stop: int


class Layout:
    """The flat view of a module: D trainable parameters in a row, everything else held constant.

    Frozen parameters (`requires_grad=False`) and buffers are not part of D: they are the same for every
    client and never change. Modules whose buffers change while they train (BatchNorm) are refused.
    """

    def __init__(self, module: nn.Module) -> None:
        """Read the layout of a module; the module itself is kept as a private copy."""
        _refuse_batch_norm(module)
        if any(nn.parameter.is_lazy(parameter) for parameter in module.parameters()):
            raise UsageError("The model has lazy layers whose size is not known yet: run it once on a sample first.")
        self.prototype = copy.deepcopy(module)
        self.slices: tuple[ParameterSlice, ...] = ()
        self.frozen: dict[str, Tensor] = {}
        start = 0
        for name, parameter in module.named_parameters():
            if not parameter.requires_grad:
                self.frozen[name] = parameter.detach().clone()
                continue
            stop = start + parameter.numel()
            self.slices += (ParameterSlice(name, tuple(parameter.shape), start, stop),)
            start = stop
        self.size = start
        if not self.size:
            raise UsageError("The model has no trainable parameter: set requires_grad on at least one.")
        dtypes = {parameter.dtype for parameter in module.parameters() if parameter.requires_grad}
        if len(dtypes) > 1 or not next(iter(dtypes)).is_floating_point:
            named = ", ".join(sorted(map(str, dtypes)))
            raise UsageError(f"The trainable parameters have types {named}: use one floating-point type.")
        self.dtype = next(iter(dtypes))

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a parameter, frozen or not."""
        if name in self.frozen:
            return tuple(self.frozen[name].shape)
        for own in self.slices:
            if own.name == name:
                return own.shape
        raise UsageError(f"The model has no parameter {name!r}.")

    def views(self, rows: Tensor) -> dict[str, Tensor]:
        """Return named views (..., *shape) into rows (..., D); writing to a view writes to the rows."""
        lead = rows.shape[:-1]
        return {own.name: rows[..., own.start : own.stop].view((*lead, *own.shape)) for own in self.slices}

    def flatten(self, parameters: Mapping[str, Tensor]) -> Tensor:
        """Join named tensors into one row (D,)."""
        return torch.cat([parameters[own.name].detach().reshape(-1) for own in self.slices])

    def row(self, module: nn.Module) -> Tensor:
        """Return the trainable parameters of a module of this layout as a row (D,)."""
        return self.flatten(dict(module.named_parameters()))

    def module(self, row: Tensor) -> nn.Module:
        """Return a module of its own that holds the parameters of a row."""
        module = copy.deepcopy(self.prototype).to(row.device)
        with torch.no_grad():
            named = dict(module.named_parameters())
            for name, value in self.views(row).items():
                named[name].copy_(value)
        return module

    def new_rows(self, count: int, device: torch.device) -> Tensor:
        """Allocate rows (count, D), each on a 256-byte boundary so that matrix kernels run aligned."""
        padded = math.ceil(self.size / 64) * 64
        return torch.empty(count, padded, device=device, dtype=self.dtype)[:, : self.size]


def _refuse_batch_norm(module: nn.Module) -> None:
    for name, part in module.named_modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            raise UsageError(
                f"The model has a {type(part).__name__} ({name or 'the model itself'}), whose statistics mix "
                "clients' samples and belong to no parameter: replace it by nn.GroupNorm."
            )
