"""Outputs of many candidates of any module: together where torch.func can, one by one otherwise."""

from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.func import vmap

from cofair.engine.forward import Forward
from cofair.engine.problem import Problem

_Named = dict[str, Tensor]
_TRIED = 4  # masks on which a trial shows whether those of readers are enough
_TRIED_ON = 8  # samples, at most
_ALIKE = 0.01  # difference of outputs, in parts of what masks make of them: rounding of TF32
_CLOSE = 0.05  # difference of outputs, in parts of the largest: the same, where layers are many


@dataclass(frozen=True)
class _Given:
    """Parameters and extras by name, (C, *shape), or *shape of those that all candidates share."""

    named: _Named
    extras: _Named
    shared: frozenset[str] = frozenset()


class Candidates:
    """Runs a problem's module with parameters of several candidates."""

    def __init__(self, problem: Problem) -> None:
        """Prepare to run candidates of a problem's module."""
        self.problem = problem
        self.forward = Forward(problem.layout, problem.neurons)
        self.together = problem.device.type != "cpu"  # convolutions with weights of their own each are slow on a CPU
        self._ways: dict[Hashable, Forward | None] = {}  # by the names of what candidates share
        self._can_share: bool | None = None

    def outputs(self, rows: Tensor, masks: Tensor | None, x: Tensor, at_once: int) -> Tensor:
        """Return the outputs (C, n, ...) of rows (C, D), or of one base (D,), under masks (C, K), on samples x.

        `at_once` is how many samples all candidates together may be given at a time.
        """
        given = self._given(rows, masks, x)
        count = len(masks) if masks is not None else 1 if rows.dim() == 1 else len(rows)
        way = self._way(given, x) if self.together else None
        if way is not None:
            return torch.cat([self._all(way, given, part) for part in torch.split(x, at_once)], 1)
        parts = torch.split(x, at_once * count)
        return torch.stack([torch.cat([self._one(given, i, part) for part in parts]) for i in range(count)])

    def _given(self, rows: Tensor, masks: Tensor | None, x: Tensor) -> _Given:
        """Return what to run candidates with.

        A layer whose inputs and parameters are the same for all candidates is computed once.
        """
        layout, neurons = self.problem.layout, self.problem.neurons
        extras = self.forward.mask_extras(masks)
        if masks is None or neurons is None:
            return _Given(layout.views(rows if rows.dim() > 1 else rows[None]), extras)
        if rows.dim() == 1 and self.together and self._readers_suffice(rows, x):
            whole, readers = layout.views(rows), neurons.reader_masks(masks)
            differ = _that_differ(readers | extras)
            named = {name: whole[name] * (own if name in differ else own[0]) for name, own in readers.items()}
            shared = frozenset(whole.keys() | extras.keys()) - differ
            return _Given(whole | named, {n: own[0] if n in shared else own for n, own in extras.items()}, shared)
        return _Given(layout.views(rows * neurons.parameter_mask(masks)), extras)

    def _readers_suffice(self, base: Tensor, x: Tensor) -> bool:
        """Say whether masking what reads neurons silences them; tried once, on random masks of some samples.

        It does not where a module uses a neuron outside its readers, as a normalisation over channels does.
        """
        if self._can_share is None:
            layout, neurons = self.problem.layout, self.problem.neurons
            assert neurons is not None
            chance = torch.Generator().manual_seed(0)
            masks = (torch.rand(_TRIED, neurons.count, generator=chance) < 0.5).to(base.device)
            # not the base itself: where it starts with zeros, everything would look alike
            other = base + 0.05 * torch.randn(base.shape, generator=chance, dtype=base.dtype).to(base.device)
            extras, whole, some = self.forward.mask_extras(masks), layout.views(other), x[:_TRIED_ON]
            full = layout.views(other * neurons.parameter_mask(masks))
            masked = neurons.reader_masks(masks)
            readers = whole | {name: whole[name] * own for name, own in masked.items()}
            one, two = (
                torch.stack([self._one(given, i, some) for i in range(_TRIED)])
                for given in (_Given(full, extras), _Given(readers, extras, frozenset(whole) - masked.keys()))
            )
            spread = one.std(0).max()  # over masks, of each output
            self._can_share = bool(spread > 0) and bool((one - two).abs().max() < _ALIKE * spread)
        return self._can_share

    @cached_property
    def _stacked(self) -> Forward:
        return Forward(self.problem.layout, self.problem.neurons, stacked=True)

    def _way(self, given: _Given, x: Tensor) -> Forward | None:
        """Return the fastest way that is right to run several candidates at once, if there is any; tried on samples."""
        kind = given.shared, frozenset(given.extras)
        if kind not in self._ways:
            ways = (way for way in (self._stacked, self.forward) if self._is_right(way, given, x[:_TRIED_ON]))
            self._ways[kind] = next(ways, None)
        return self._ways[kind]

    def _is_right(self, way: Forward, given: _Given, x: Tensor) -> bool:
        try:
            found = self._all(way, given, x)
        except torch.OutOfMemoryError:
            raise
        except Exception:  # data-dependent control flow, an operation without a batching rule, whatever a module raises
            return False
        for i in {0, len(found) - 1}:  # nested submodels begin with the smallest, of which little can be seen
            alone = self._one(given, i, x)
            within = _CLOSE * float(alone.abs().nan_to_num().max())
            if not torch.allclose(found[i], alone, rtol=0, atol=within, equal_nan=True):
                return False
        return True

    def _all(self, way: Forward, given: _Given, x: Tensor) -> Tensor:
        named, extras = ({n: None if n in given.shared else 0 for n in own} for own in (given.named, given.extras))
        together = vmap(way.evaluate, in_dims=(named, extras, None), randomness="different")
        return together(given.named, given.extras, x)

    def _one(self, given: _Given, i: int, x: Tensor) -> Tensor:
        named, extras = (
            {name: value if name in given.shared else value[i] for name, value in own.items()}
            for own in (given.named, given.extras)
        )
        return self.forward.evaluate(named, extras, x)


def _that_differ(masks: _Named) -> set[str]:
    """Name the masks (C, ...) that are not the same for all candidates; all of them where none differs."""
    if not masks:
        return set()
    differ = torch.stack([(own != own[:1]).any() for own in masks.values()]).tolist()
    return {name for name, own in zip(masks, differ, strict=True) if own or not any(differ)}
