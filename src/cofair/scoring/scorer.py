"""Scores of many candidate models on one set of samples: the server's hot primitive."""

import copy
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from cofair.data.federation import Samples
from cofair.engine.activation_memory import activation_bytes
from cofair.engine.linear_stack import LinearStack
from cofair.engine.problem import Problem
from cofair.errors import UsageError
from cofair.neurons.map import NeuronMap
from cofair.scoring.candidates import Candidates
from cofair.scoring.nested import Nested, Nesting, first_neurons, nesting, prefix_masks

_Seen = tuple[Tensor, int]  # a tensor and how often it had been written into
_CPU_BUDGET = 256 * 2**20  # bytes of activations held at once on a CPU
FIRST_OUTPUTS = 2**28  # bytes of first layers' outputs that are kept at once


@dataclass(frozen=True)
class Scores:
    """Mean loss and metric of each candidate (C,), and the losses of each sample (C, n) if they were asked for."""

    loss: Tensor
    metric: Tensor
    losses: Tensor | None = None


class Scorer:
    """Scores candidates on samples, in chunks chosen from the memory that is free."""

    def __init__(self, problem: Problem, samples: Samples) -> None:
        """Prepare to score models of a problem on samples."""
        self.problem = problem
        self.samples = samples
        self.stack = LinearStack.of(problem.layout, problem.neurons)
        self.candidates = Candidates(problem)
        self.forward = self.candidates.forward
        self._fired: tuple[_Seen, Tensor] | None = None
        self._nested: tuple[_Seen, _Seen, Nested] | None = None
        self._thinned: dict[int, Scorer] = {}
        self._halves: tuple[Scorer, Scorer] | None = None
        self._bytes_a_sample, self._output_bytes = activation_bytes(problem.layout.prototype, samples.x[:1])

    def score(self, parameters: Tensor, neuron_masks: Tensor | None = None, *, per_sample: bool = False) -> Scores:
        """Score rows (C, D), or one base (D,) under neuron masks (C, K), or rows under masks of their own."""
        if neuron_masks is not None and neuron_masks.shape[1:] != (self.neurons().count,):
            raise UsageError(
                f"Masks of this model's {self.neurons().count} neurons must have shape (C, {self.neurons().count}), "
                f"not {tuple(neuron_masks.shape)}."
            )
        return self._scores(parameters, neuron_masks, None, per_sample)

    @torch.no_grad()
    def _scores(
        self, parameters: Tensor, neuron_masks: Tensor | None, order: Tensor | None, per_sample: bool
    ) -> Scores:
        """Score candidates; masks that are prefixes of an order (K,) may come with it."""
        count = len(neuron_masks) if neuron_masks is not None else 1 if parameters.dim() == 1 else len(parameters)
        own_rows = self.stack is None or parameters.dim() > 1
        return self._collect(
            (
                (
                    parameters if parameters.dim() == 1 else parameters[first:last],
                    None if neuron_masks is None else neuron_masks[first:last],
                )
                for first, last in _ranges(count, self._candidates_at_once(own_rows))
            ),
            per_sample,
            order,
        )

    @torch.no_grad()
    def coalitions(self, base: Tensor, updates: Tensor, coefficients: Tensor, *, per_sample: bool = False) -> Scores:
        """Score base (D,) + coefficients (C, N) · updates (N, D), made chunk by chunk.

        The first layer of a linear stack puts out for a sum what it puts out for the terms, added up: on a CPU, where
        most of the time goes into this layer, it is computed for the terms.
        """
        shares = coefficients.to(updates)
        chunks = [shares[first:last] for first, last in _ranges(len(shares), self._candidates_at_once())]
        terms = self._first_of_terms(base, updates, len(shares))
        if terms is None:
            return self._collect(((base + own @ updates, None) for own in chunks), per_sample)
        assert self.stack is not None
        parts, layout = [], self.stack.layout
        bases, added = layout.views(base), layout.views(updates)
        later = [name for name in bases if not self.stack.is_first(name)]
        for own in chunks:
            views = {name: torch.tensordot(own, added[name], 1).add_(bases[name]) for name in later}
            outputs = self.stack.after_first(views, torch.tensordot(own, terms[1:], 1).add_(terms[0]))
            parts.append(self._judged(outputs, per_sample))
        return _together(parts, per_sample)

    def _first_of_terms(self, base: Tensor, updates: Tensor, count: int) -> Tensor | None:
        """Return what the first layer puts out for a base and for updates (1 + N, n, units), where that saves work."""
        if self.stack is None or base.is_cuda or count <= 1 + len(updates):
            return None
        units = self.stack.layout.prototype.get_parameter(self.stack.layers[0].weight).shape[0]
        together = 1 + len(updates) + min(count, self._candidates_at_once())
        if together * units * len(self.samples) * base.element_size() > FIRST_OUTPUTS:
            return None
        return self.stack.first(torch.cat([base[None], updates]), self.samples.x)

    def prefixes(self, base: Tensor, order: Tensor, counts: Tensor) -> Scores:
        """Score the submodels of a base (D,) that keep the first counts (C,) neurons of an order (K,)."""
        order = order.to(base.device)
        return self._scores(base, prefix_masks(order, counts), order, per_sample=False)

    def halves(self) -> tuple["Scorer", "Scorer"]:
        """Return scorers on one half of the samples, drawn once and for all, and on the other; made once."""
        if self._halves is None:
            if len(self.samples) < 2:
                raise UsageError("One sample cannot be divided into halves.")
            mixed = self._mixed()
            self._halves = self.on(mixed[0::2]), self.on(mixed[1::2])
        return self._halves

    def thinned(self, most: int) -> "Scorer":
        """Return a scorer on at most `most` samples, drawn once and for all; made once."""
        if most >= len(self.samples):
            return self
        if most not in self._thinned:
            self._thinned[most] = self.on(self._mixed()[:most])
        return self._thinned[most]

    def _mixed(self) -> Tensor:
        """Return the places of all samples in a random order, always the same: classes may stand in any pattern."""
        return torch.randperm(len(self.samples), generator=torch.Generator().manual_seed(0))

    def on(self, places: Tensor) -> "Scorer":
        """Return a scorer on the samples at some places, which shares what was found out about the model."""
        where = places.to(self.samples.y.device)
        other = copy.copy(self)
        other.samples = Samples(self.samples.x[where], self.samples.y[where])
        other._fired, other._nested, other._halves, other._thinned = None, None, None, {}
        return other

    def neurons(self) -> NeuronMap:
        """Return the model's neurons, or say that it has none."""
        if self.problem.neurons is None:
            raise UsageError("This model has no neurons that a submodel could leave out, so it has no submodels.")
        return self.problem.neurons

    def sample_ranges(self, count: int) -> Iterator[tuple[int, int]]:
        """Divide the samples so that layer outputs of `count` candidates, with some to spare, fit the budget."""
        return _ranges(len(self.samples), max(1, int(_budget(self.problem.device) / (self._bytes_a_sample * count))))

    def _collect(
        self, candidates: Iterable[tuple[Tensor, Tensor | None]], per_sample: bool, order: Tensor | None = None
    ) -> Scores:
        return _together([self._score(rows, masks, per_sample, order) for rows, masks in candidates], per_sample)

    def _score(
        self, rows: Tensor, masks: Tensor | None, per_sample: bool, order: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        return self._judged(self._outputs(rows, masks, order), per_sample)

    def _judged(self, outputs: Tensor, per_sample: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Return the losses and metrics (C,) of outputs (C, n, ...), and the losses (C, n), empty if not asked for."""
        y = self.samples.y
        flat = outputs.flatten(0, 1)
        losses = self.problem.loss(flat, y.repeat(len(outputs), *[1] * (y.dim() - 1))).view(len(outputs), -1)
        return losses.mean(1), self.problem.metric(outputs, y), losses if per_sample else losses[:, :0]

    def _outputs(self, rows: Tensor, masks: Tensor | None, order: Tensor | None = None) -> Tensor:
        """Return the outputs (C, n, ...) of candidates, computed sample chunk by sample chunk."""
        count = len(masks) if masks is not None else 1 if rows.dim() == 1 else len(rows)
        if self.stack is not None:
            # a GPU computes all candidates at once sooner than it starts the many small steps of running sums
            sharing = masks is not None and rows.dim() == 1 and self.problem.device.type == "cpu"
            sharing = sharing and (count > 1 or self._has_fired(rows))
            nested = _nesting(masks, order) if sharing and masks is not None else None
            if nested is not None:  # a running sum and its copy are held, whatever the number of candidates
                stack, ranges = self.stack, list(self.sample_ranges(1))
                if len(ranges) == 1:
                    return self._nested_in(stack, rows, nested.order).outputs(nested.counts)
                chunks = (first_neurons(stack, rows, self.samples.x[a:b]) for a, b in ranges)
                parts = [Nested(stack, rows, fired, nested.order).outputs(nested.counts) for fired in chunks]
                return torch.cat(parts, 1)
            return _joined([self.stack.outputs(rows, self.samples.x[a:b], masks) for a, b in self.sample_ranges(count)])
        at_once = max(1, int(_budget(self.problem.device) / (self._bytes_a_sample * count)))
        return self.candidates.outputs(rows, masks, self.samples.x, at_once)

    def _has_fired(self, base: Tensor) -> bool:
        return self._fired is not None and _is(self._fired[0], base)

    def _first_neurons(self, stack: LinearStack, base: Tensor) -> Tensor:
        """Return what a base's first neurons fire; kept until the next base, as submodels are looked for in turns."""
        if self._fired is None or not _is(self._fired[0], base):
            self._fired = _seen(base), first_neurons(stack, base, self.samples.x)
        return self._fired[1]

    def _nested_in(self, stack: LinearStack, base: Tensor, order: Tensor) -> Nested:
        """Return a base's submodels in an order; kept for the next look at others of them."""
        if self._nested is None or not (_is(self._nested[0], base) and _is(self._nested[1], order)):
            self._nested = _seen(base), _seen(order), Nested(stack, base, self._first_neurons(stack, base), order)
        return self._nested[2]

    def _candidates_at_once(self, own_rows: bool = True) -> int:
        """Return for how many candidates outputs of all samples, and rows of their own, may be held together."""
        each = 4 * len(self.samples) * self._output_bytes + own_rows * self.problem.layout.size * 8
        return max(1, int(4 * _budget(self.problem.device) / each))


def _seen(tensor: Tensor) -> _Seen:
    return tensor, tensor._version


def _is(seen: _Seen, tensor: Tensor) -> bool:
    """Say whether a tensor is the one seen then, and was not written to since."""
    return seen[0] is tensor and seen[1] == tensor._version


def _nesting(masks: Tensor, order: Tensor | None) -> Nesting | None:
    return nesting(masks) if order is None else Nesting(order, masks.sum(1))


def _joined(parts: list[Tensor]) -> Tensor:
    """Join outputs (C, n, ...) of chunks of samples, without a copy where there is only one."""
    return parts[0] if len(parts) == 1 else torch.cat(parts, 1)


def _together(parts: list[tuple[Tensor, Tensor, Tensor]], per_sample: bool) -> Scores:
    losses, metrics, each = zip(*parts, strict=True)
    return Scores(torch.cat(losses), torch.cat(metrics), torch.cat(each) if per_sample else None)


def _ranges(count: int, at_once: int) -> Iterator[tuple[int, int]]:
    for first in range(0, count, at_once):
        yield first, min(first + at_once, count)


def _budget(device: torch.device) -> float:
    if device.type == "cuda":
        return 0.1 * torch.cuda.mem_get_info(device)[0]
    return _CPU_BUDGET
