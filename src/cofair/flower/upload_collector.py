"""Collect the answers of a training into the round's uploads; an answer that cannot be used is refused."""

from typing import Any

import numpy as np
import torch
from flwr.app import Message
from torch import Tensor

from cofair.engine.optimisers import OPTIMISERS
from cofair.engine.problem import Problem
from cofair.engine.protocol import Rewards, Uploads
from cofair.engine.statistics import looked_at
from cofair.flower import messages, wire
from cofair.flower.printable_text import printable
from cofair.flower.wire import RefusedError

_OVERHEAD = 2**20  # bytes of an answer besides its update: settings, losses, and how arrays are wrapped


def largest_upload(problem: Problem) -> int:
    """Return how many bytes an upload may have: an update of the whole model, its bitmap, and losses."""
    row = problem.layout.size * torch.empty(0, dtype=problem.layout.dtype).element_size()
    return row + (problem.layout.size + 7) // 8 + _OVERHEAD


class UploadCollector:
    """The uploads of one training as they come in; a client whose answer is not taken is absent."""

    def __init__(self, problem: Problem, rewards: Rewards, t: int) -> None:
        """Make room for every client."""
        self.t, self.refused = t, dict[int, str]()
        self._problem, self._work = problem, rewards.work
        federation, layout = problem.federation, problem.layout
        N = len(federation)
        self._updates = torch.zeros(N, layout.size, dtype=layout.dtype, device=problem.device)
        self._present = torch.zeros(N, dtype=torch.bool, device=problem.device)
        self._batches = looked_at(federation.sizes, self._work.looks)
        shapes = {"loss_before": (N,), "batch_losses_before": (N, int(self._batches.max()))}
        self._statistics: dict[str, Tensor] = {
            name: self._updates.new_full(shapes[name], torch.nan) for name in self._work.statistics
        }

    def take(self, i: int, reply: Message, model: str, version: str, scope: Tensor | None) -> Tensor:
        """Take the answer of client i, all of which lies within the scope (D,), and return its update; or refuse it."""
        self._check(reply, model, version)
        if OPTIMISERS[self._work.optimiser].moves_masked:
            scope = None
        layout = self._problem.layout
        nothing = self._updates.new_zeros(layout.size)
        allowed = wire.expected(layout.size if scope is None else wire.count(scope), nothing)
        numbers = {name: self._numbers(i, name) for name in self._work.statistics}
        one = wire.expected(1, nothing)[wire.VALUES]
        allowed |= {name: wire.Expected(one.dtype, count * one.most) for name, count in numbers.items()}
        arrays = messages.arrays_of(reply, allowed)
        update = wire.unpack(arrays, nothing, scope)
        if not np.isfinite(arrays[wire.VALUES]).all():
            raise RefusedError("its update is not finite")
        for name, count in numbers.items():
            if name not in arrays or len(arrays[name]) != count or not np.isfinite(arrays[name]).all():
                raise RefusedError("the losses that it was asked for are missing or not finite")
        for name in numbers:
            values = torch.from_numpy(arrays[name].copy()).to(self._problem.device)
            self._statistics[name][i] = values[0] if name == "loss_before" else _padded(values, self._statistics[name])
        self._updates[i], self._present[i] = update, True
        return update

    def uploads(self) -> Uploads:
        """Return the uploads that were taken."""
        sizes = self._problem.federation.sizes
        return Uploads(self._updates, self._present, sizes, self._statistics, self.refused)

    def _check(self, reply: Message, model: str, version: str) -> None:
        """Refuse an answer that is not an upload, or that answers another message."""
        answer = messages.config_of(reply)
        status = answer.get("status")
        if status != "ok":
            raise RefusedError(printable(answer.get("reason", "its training failed; its own log says why")))
        expected: dict[str, Any] = {"round": self.t, "phase": self._work.phase.address, "version": version}
        for name, value in expected.items():
            if answer.get(name) != value:
                raise RefusedError(f"it is stale: its {name} is {str(answer.get(name))[:40]!r} and not {value!r}")
        if answer.get("model") != model:
            raise RefusedError("it is an update of another model")

    def _numbers(self, i: int, name: str) -> int:
        return 1 if name == "loss_before" else int(self._batches[i])


def _padded(values: Tensor, like: Tensor) -> Tensor:
    row = torch.full_like(like[0], torch.nan)
    row[: len(values)] = values
    return row
