"""Scores of many candidate models on one set of samples: the server's hot primitive."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import vmap

from cofair.engine.forward import Forward
from cofair.engine.linear_stack import LinearStack
from cofair.engine.problem import Problem
from cofair.errors import UsageError
from cofair.federation.federation import Samples

_CPU_BUDGET = 256 * 2**20  # bytes of activations held at once on a CPU


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
        self.forward = Forward(problem.layout, problem.neurons)
        self._bytes_a_sample = _activation_bytes(problem.layout.prototype, samples.x[:1])

    @torch.no_grad()
    def score(self, parameters: Tensor, neuron_masks: Tensor | None = None, *, per_sample: bool = False) -> Scores:
        """Score rows (C, D), or one base (D,) under neuron masks (C, K), or rows under masks of their own."""
        if neuron_masks is not None and self.problem.neurons is None:
            raise UsageError("This model declares no neurons, so it has no submodels to score.")
        count = len(neuron_masks) if neuron_masks is not None else 1 if parameters.dim() == 1 else len(parameters)
        return self._collect(
            (
                (
                    parameters if parameters.dim() == 1 else parameters[first:last],
                    None if neuron_masks is None else neuron_masks[first:last],
                )
                for first, last in _ranges(count, self._candidates_at_once())
            ),
            per_sample,
        )

    @torch.no_grad()
    def coalitions(self, base: Tensor, updates: Tensor, coefficients: Tensor, *, per_sample: bool = False) -> Scores:
        """Score base (D,) + coefficients (C, N) · updates (N, D), made chunk by chunk."""
        chunks = _ranges(len(coefficients), self._candidates_at_once())
        rows = (base + coefficients[first:last].to(updates.dtype) @ updates for first, last in chunks)
        return self._collect(((row, None) for row in rows), per_sample)

    def _collect(self, candidates: Iterable[tuple[Tensor, Tensor | None]], per_sample: bool) -> Scores:
        parts = [self._score(rows, masks, per_sample) for rows, masks in candidates]
        losses, metrics, each = zip(*parts, strict=True)
        return Scores(torch.cat(losses), torch.cat(metrics), torch.cat(each) if per_sample else None)

    def _score(self, rows: Tensor, masks: Tensor | None, per_sample: bool) -> tuple[Tensor, Tensor, Tensor]:
        y = self.samples.y
        outputs = self._outputs(rows, masks)
        flat = outputs.flatten(0, 1)
        losses = self.problem.loss(flat, y.repeat(len(outputs), *[1] * (y.dim() - 1))).view(len(outputs), -1)
        return losses.mean(1), self.problem.metric(outputs, y), losses if per_sample else losses[:, :0]

    def _outputs(self, rows: Tensor, masks: Tensor | None) -> Tensor:
        """Return the outputs (C, n, ...) of candidates, computed sample chunk by sample chunk."""
        count = len(masks) if masks is not None else 1 if rows.dim() == 1 else len(rows)
        at_once = max(1, int(_budget(self.problem.device) / (self._bytes_a_sample * count)))
        if self.stack is not None:
            run = self.stack.outputs
            parts = [run(rows, self.samples.x[a:b], masks) for a, b in _ranges(len(self.samples), at_once)]
            return torch.cat(parts, 1)
        layout = self.problem.layout
        stacked = rows.expand(count, -1) if rows.dim() == 1 else rows
        if masks is not None and self.problem.neurons is not None:
            stacked = stacked * self.problem.neurons.parameter_mask(masks)
        named, extras = layout.views(stacked), self.forward.mask_extras(masks)
        if self.problem.device.type == "cpu":  # convolutions with a weight of their own each are slow there
            at_once *= count
            return torch.stack([self._one(named, extras, i, at_once) for i in range(count)])
        run_all = vmap(self.forward.evaluate, in_dims=(0, 0, None), randomness="different")
        return torch.cat(
            [run_all(named, extras, self.samples.x[a:b]) for a, b in _ranges(len(self.samples), at_once)], 1
        )

    def _one(self, named: dict[str, Tensor], extras: dict[str, Tensor], i: int, at_once: int) -> Tensor:
        own = {name: value[i] for name, value in named.items()}
        own_extras = {name: value[i] for name, value in extras.items()}
        chunks = _ranges(len(self.samples), at_once)
        return torch.cat([self.forward.evaluate(own, own_extras, self.samples.x[a:b]) for a, b in chunks])

    def _candidates_at_once(self) -> int:
        """Return for how many candidates outputs of all samples and parameters may be held together."""
        widest = self._bytes_a_sample  # outputs are among the activations
        each = len(self.samples) * min(widest, 4096) + self.problem.layout.size * 8
        return max(1, int(4 * _budget(self.problem.device) / each))


def _ranges(count: int, at_once: int) -> Iterator[tuple[int, int]]:
    for first in range(0, count, at_once):
        yield first, min(first + at_once, count)


def _budget(device: torch.device) -> float:
    if device.type == "cuda":
        return 0.1 * torch.cuda.mem_get_info(device)[0]
    return _CPU_BUDGET


def _activation_bytes(module: nn.Module, x: Tensor) -> int:
    """Return how many bytes of layer outputs one sample needs."""
    sizes = [x.numel()]
    leaves = [part for part in module.modules() if not list(part.children())]
    handles = [
        part.register_forward_hook(
            lambda _part, _args, out: sizes.append(out.numel()) if isinstance(out, Tensor) else None
        )
        for part in leaves
    ]
    try:
        with torch.no_grad():
            module(x)
    finally:
        for handle in handles:
            handle.remove()
    return 4 * sum(sizes)
