"""Steps of training as CUDA graphs: hundreds of kernels that one call starts.

A step of a CNN is some hundreds of kernels, which a GPU runs much faster than Python starts them. It computes the same
from other numbers each time, so that it is recorded once and played back from then on. What it reads and changes must
stay where it was in memory.
"""

from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cofair.engine.linear_stack import has_hooks
from cofair.engine.losses import LOSSES
from cofair.engine.optimisers import Named
from cofair.engine.problem import Problem

_AS_USUAL = 2  # steps of a kind, before one is recorded: in them kernels are compiled and ways are tried
_MOST = 32  # kinds of steps that are recorded, at most
_KNOWN = {"cofair", "torch", "torchvision"}  # packages whose modules do nothing in Python that a step could miss

Take = Callable[[Named], None]


@dataclass(frozen=True)
class _Recorded:
    graph: torch.cuda.CUDAGraph
    inputs: Named


class StepGraphs:
    """Takes the steps of an engine, and plays back those of a kind that comes again and again."""

    def __init__(self, problem: Problem) -> None:
        """Prepare for the steps of a problem; where it cannot be known that they repeat, all run as usual."""
        self.problem = problem
        self.usable = problem.device.type == "cuda" and _can_repeat(problem)
        self._held: Named = {}
        self._seen: Counter[Hashable] = Counter()
        self._recorded: dict[Hashable, _Recorded] = {}
        self._pool: Any = None  # memory that all recordings share

    def hold(self, name: str, values: Tensor) -> Tensor:
        """Return a copy of values, one a client (n, ...), that steps may change: in the same place in every round."""
        if not self.usable:
            return self._memory_for(len(values), values).copy_(values)
        own = self._held.get(name)
        if own is None or own.shape[1:] != values.shape[1:] or own.dtype != values.dtype:
            own = self._held[name] = self._memory_for(len(self.problem.federation), values)
            self._recorded.clear()
        return own[: len(values)].copy_(values)

    def _memory_for(self, count: int, like: Tensor) -> Tensor:
        layout = self.problem.layout
        if like.dtype == layout.dtype and like.shape[1:] == (layout.size,):
            return layout.new_rows(count, like.device)
        return like.new_empty(count, *like.shape[1:])

    def take(self, kind: Hashable, step: Take, inputs: Named) -> None:
        """Take a step with inputs of its own, by name; whatever else it reads is held, or decided by its kind."""
        if not self.usable:
            step(inputs)
            return
        shapes = tuple((name, value.shape, value.dtype) for name, value in inputs.items())
        key = kind, shapes, torch.get_float32_matmul_precision()
        known = self._recorded.get(key) or self._record(key, step, inputs)
        if known is None:
            self._as_usual(step, inputs)
            return
        for name, value in inputs.items():
            known.inputs[name].copy_(value)
        known.graph.replay()

    def _as_usual(self, step: Take, inputs: Named) -> None:
        before = torch.cuda.get_rng_state(self.problem.device)
        step(inputs)
        if not torch.equal(before, torch.cuda.get_rng_state(self.problem.device)):
            self._give_up()  # each step draws anew

    def _record(self, key: Hashable, step: Take, inputs: Named) -> _Recorded | None:
        self._seen[key] += 1
        if self._seen[key] <= _AS_USUAL or len(self._recorded) >= _MOST:
            return None
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        found = _Recorded(torch.cuda.CUDAGraph(), {name: value.clone() for name, value in inputs.items()})
        try:
            with torch.cuda.graph(found.graph, pool=self._pool, capture_error_mode="thread_local"):
                step(found.inputs)
        except Exception:  # too little memory, or something that cannot be recorded: all of it runs as usual
            self._give_up()
            return None
        self._recorded[key] = found
        return found

    def _give_up(self) -> None:
        self.usable = False
        self._recorded.clear()
        self._held.clear()


def _can_repeat(problem: Problem) -> bool:
    """Tell whether a step is nothing but kernels: what Python does beside them would not be played back."""
    parts = problem.layout.prototype.modules()
    plain = all(type(part).__module__.partition(".")[0] in _KNOWN and not has_hooks(part) for part in parts)
    return plain and problem.loss in LOSSES.values()
