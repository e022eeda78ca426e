"""What each client could put together of all that it was handed: the newest value of every parameter, and their mean.

A client that forgets nothing has more than its last model, where the parts of a model that it is handed change from
round to round. docs/held.md says what is measured with this.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from cofair.engine.protocol import Delivered, Rewards
from cofair.neurons.map import NeuronMap

PAST = 0.9  # what the mean so far weighs against a newer model: about ten models count


@dataclass(frozen=True)
class Kept:
    """The newest value of every parameter that each client was handed, and the running mean of the rows so made.

    Both are (N, D), or (D,) while everybody is handed the same whole models, and NaN where nothing ever came. Whole
    models are not copied. `neurons` (N, K) says which neurons ever came, once submodels were handed out.
    """

    newest: Tensor | None = None
    mean: Tensor | None = None
    neurons: Tensor | None = None

    def after(self, rewards: Rewards, initial: Tensor, neurons: NeuronMap | None, t: int) -> "Kept":
        """Return what is kept after a training's models went out.

        The model that everybody starts from is nobody's reward, so it does not count, nor does training alone. Whoever
        was sent a model counts as having it, also one that never answers.
        """
        begins = t == 1 and bool((rewards.parameters == initial).all())
        if begins or rewards.work.phase.alone:
            return self
        return self.with_models(rewards.parameters, rewards.neuron_masks, neurons, rewards.participants)

    def with_models(
        self, rows: Tensor, masks: Tensor | None, neurons: NeuronMap | None, to: Tensor | None = None
    ) -> "Kept":
        """Return what is kept with newer models for some clients (N,): rows (N, D) or (D,) under masks (N, K)."""
        got = None if to is None else to.to(rows.device)[:, None]
        came = got
        if masks is not None and neurons is not None:
            held = neurons.parameter_mask(masks)
            came = held if got is None else held & got
        nothing = rows.new_full((), torch.nan)
        newest = rows if came is None else torch.where(came, rows, nothing if self.newest is None else self.newest)
        mean = newest
        if self.mean is not None:
            mean = self.mean.lerp(newest, 1 - PAST)
            mean = torch.where(mean.isnan(), newest, mean)  # what comes for the first time
            mean = mean if got is None else torch.where(got, mean, self.mean)
        return Kept(newest, mean, self._neurons(masks, got))

    def _neurons(self, masks: Tensor | None, got: Tensor | None) -> Tensor | None:
        """Return which neurons ever came, with those of these masks, or with all of them in whole models."""
        if masks is None:
            if self.neurons is None:
                return None
            return torch.ones_like(self.neurons) if got is None else self.neurons | got
        now = masks.bool() if got is None else masks.bool() & got
        if self.neurons is not None:
            return self.neurons | now
        return now if self.newest is None else now | ~self.newest.isnan().all(-1, keepdim=True)

    def with_newcomers(self, before: int, clients: int) -> "Kept":
        """Return what is kept when clients have joined those who were there before: they were handed nothing yet."""
        return replace(
            self, newest=_longer(self.newest, before, clients), mean=_longer(self.mean, before, clients),
            neurons=None if self.neurons is None else _longer(self.neurons, before, clients),
        )  # fmt: skip

    def candidates(self) -> dict[str, Delivered]:
        """Return the models that each client can make of what it kept without training; what never came is zero."""
        assert self.newest is not None  # what is delivered in the end
        assert self.mean is not None
        masks = self.neurons if self.neurons is not None and not bool(self.neurons.all()) else None
        newest, mean = self.newest.nan_to_num(0), self.mean.nan_to_num(0)
        rows = {"kept": newest, "averaged": mean, "ahead": newest + (newest - mean)}
        return {name: Delivered(own, masks) for name, own in rows.items()}


def _longer(values: Tensor | None, before: int, clients: int) -> Tensor | None:
    if values is None:
        return None
    rows = values.expand(before, -1) if values.dim() == 1 else values
    nothing = False if values.dtype == torch.bool else torch.nan
    return torch.cat([rows, rows.new_full((clients - before, rows.shape[1]), nothing)])
