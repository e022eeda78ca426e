"""Steps of training as CUDA graphs: hundreds of kernels that one call starts.

A step of a CNN is some hundreds of kernels, which a GPU runs much faster than Python starts them. It computes the same
from other numbers each time, so that it is recorded once and played back from then on. What it reads and changes must
stay where it was in memory.
"""

import warnings
from collections import Counter
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from cofair.engine.linear_stack import has_hooks
from cofair.engine.losses import LOSSES
from cofair.engine.optimisers import Named
from cofair.engine.problem import Problem, first_line

_AS_USUAL = 4  # steps of a kind, before one is recorded: in them kernels are compiled and ways are tried
_MOST = 64  # kinds of steps that are kept, at most
_KNOWN = {"cofair", "torch", "torchvision"}  # packages whose modules do nothing in Python that a step could miss

Take = Callable[[Named], None]


@dataclass
class _Recorded:
    play: Callable[[], None]
    inputs: Named
    round: int  # in which it was last played, by the engine's own count


class StepGraphs:
    """Takes the steps of an engine, and plays back those of a kind that comes again and again."""

    def __init__(self, problem: Problem) -> None:
        """Prepare for the steps of a problem; where it cannot be known that they repeat, all run as usual."""
        self.problem = problem
        self.usable = problem.device.type == "cuda" and can_repeat(problem)
        self._round = 0
        self._held: Named = {}
        self._seen: Counter[Hashable] = Counter()
        self._recorded: dict[Hashable, _Recorded] = {}

    def begin(self) -> None:
        """Begin a round."""
        self._round += 1

    def hold(self, name: str, values: Tensor) -> Tensor:
        """Return a copy of values, one per client (n, ...), that steps may change: in the same place in every round."""
        if not self.usable:
            return self._memory_for(len(values), values).copy_(values)
        own = self._held.get(name)
        if own is None or own.shape[1:] != values.shape[1:] or own.dtype != values.dtype:
            if own is not None:  # a recording may know the old place
                self._recorded.clear()
            own = self._held[name] = self._memory_for(len(self.problem.federation), values)
        return own[: len(values)].copy_(values)

    def take(self, kind: Hashable, step: Take, inputs: Named) -> None:
        """Take a step with inputs of its own, by name; whatever else it reads is held, or decided by its kind."""
        if not self.usable:
            step(inputs)
            return
        shapes = tuple((name, value.shape, value.dtype) for name, value in inputs.items())
        key = kind, shapes, torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
        with _on(self.problem.device):
            known = self._recorded.get(key) or self._record(key, step, inputs)
            if known is None:
                self._as_usual(step, inputs)
                return
            known.round = self._round
            for name, value in inputs.items():
                known.inputs[name].copy_(value)
            known.play()

    def _memory_for(self, count: int, like: Tensor) -> Tensor:
        layout = self.problem.layout
        if like.dtype == layout.dtype and like.shape[1:] == (layout.size,):
            return layout.new_rows(count, like.device)
        return like.new_empty(count, *like.shape[1:])

    def _as_usual(self, step: Take, inputs: Named) -> None:
        before = _random_state(self.problem.device)
        step(inputs)
        if not torch.equal(before, _random_state(self.problem.device)):
            self._give_up()  # each step draws again

    def _record(self, key: Hashable, step: Take, inputs: Named) -> _Recorded | None:
        self._seen[key] += 1
        if self._seen[key] <= _AS_USUAL or not self._has_room():
            return None
        own = {name: value.clone() for name, value in inputs.items()}
        try:
            found = _Recorded(record(step, own, self.problem.device), own, self._round)
        except Exception as error:  # something that cannot be recorded: all of it runs as usual
            warnings.warn(f"Steps cannot be recorded here, so training is slower: {first_line(error)}", stacklevel=2)
            self._give_up()
            return None
        self._recorded[key] = found
        return found

    def _has_room(self) -> bool:
        """Say whether one more can be kept; where not, those not played in this round or the last make room."""
        if len(self._recorded) < _MOST:
            return True
        self._recorded = {key: own for key, own in self._recorded.items() if own.round >= self._round - 1}
        return len(self._recorded) < _MOST

    def _give_up(self) -> None:
        self.usable = False
        self._recorded.clear()
        self._held.clear()


def can_repeat(problem: Problem) -> bool:
    """Say whether a step is nothing but kernels: what Python does besides would not be played back."""
    parts = problem.layout.prototype.modules()
    plain = all(type(part).__module__.partition(".")[0] in _KNOWN and not has_hooks(part) for part in parts)
    return plain and problem.loss in LOSSES.values()


def record(step: Take, inputs: Named, device: torch.device) -> Callable[[], None]:
    """Return what plays a step back; it is not taken now."""
    stream, pool, _ = _recorder(device)
    graph, usual = torch.cuda.CUDAGraph(), torch.cuda.current_stream(device)
    try:
        with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
            step(inputs)
    except BaseException:
        torch.cuda.set_stream(usual)  # torch leaves it at the other one, where a recording cannot be ended
        raise
    return graph.replay


@lru_cache
def _recorder(device: torch.device) -> tuple[Any, Any, Any]:
    """Return the stream on which all steps on a device are recorded, their memory, and what keeps that memory.

    It is one for all engines: nothing in it outlives a step, steps are played one after another, and products of
    matrices have a workspace in it that belongs to the stream.
    """
    stream: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    pool, keeper = torch.cuda.graph_pool_handle(), torch.cuda.CUDAGraph()
    some = torch.zeros(1, device=device)
    with torch.cuda.graph(keeper, pool=pool, stream=stream, capture_error_mode="thread_local"):
        some + 1
    return stream, pool, keeper


def _on(device: torch.device) -> AbstractContextManager[Any]:
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def _random_state(device: torch.device) -> Tensor:
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()
