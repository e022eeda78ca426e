"""Many runs as one batch: the clients of all of them take each step together.

Runs that share their data, model and loss differ in seeds, scenes, methods and settings. Their clients are rows of one
stack, each with the random key it has in its own run, so that the numbers are those of the runs one by one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from cofair.data.federation import Federation
from cofair.engine.problem import Problem
from cofair.engine.protocol import ClientStates, Rewards, Uploads
from cofair.engine.vectorised import VectorisedEngine
from cofair.engine.work import Work
from cofair.errors import UsageError

_KEPT = 8  # engines, each with memory for its runs


@dataclass(frozen=True)
class Request:
    """What one run wants to be trained: which of the runs it is, and what its engine would be given."""

    run: int
    rewards: Rewards
    states: ClientStates
    t: int


class Lockstep:
    """Trains what several runs ask for, those with the same work together."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        """Join runs whose federations lie in one pool of inputs and whose models have one layout."""
        first = problems[0]
        for other in problems[1:]:
            if other.federation.inputs is not first.federation.inputs:
                raise UsageError("Runs in lockstep must share their data.")
            if [own.shape for own in other.layout.slices] != [own.shape for own in first.layout.slices]:
                raise UsageError("Runs in lockstep must have models of one shape.")
        self.problems = tuple(problems)
        self._engines: dict[tuple[int, ...], VectorisedEngine] = {}

    def train(self, requests: Sequence[Request]) -> list[tuple[Uploads, ClientStates]]:
        """Train everything that was asked for and return it in the same order."""
        groups: dict[object, list[int]] = {}
        for place, request in enumerate(requests):
            groups.setdefault(_kind(request), []).append(place)
        answers: dict[int, tuple[Uploads, ClientStates]] = {}
        for places in groups.values():
            for place, answer in zip(places, self._together([requests[p] for p in places]), strict=True):
                answers[place] = answer
        return [answers[place] for place in range(len(requests))]

    def _together(self, requests: Sequence[Request]) -> list[tuple[Uploads, ClientStates]]:
        engine, joined, parts = self._joined(requests)
        plain = replace(joined, work=joined.work.training)
        uploads, states = engine.train(plain, _joined_states(requests), requests[0].t)
        statistics = self._statistics(requests)
        return [
            (replace(_part(uploads, part), statistics=own), _part_of_states(states, part, request.states))
            for request, part, own in zip(requests, parts, statistics, strict=True)
        ]

    def _statistics(self, requests: Sequence[Request]) -> list[dict[str, Tensor]]:
        """Return what each run asked of its clients besides updates; the few that ask for any need not train apart."""
        found: list[dict[str, Tensor]] = [{} for _ in requests]
        asked: dict[Work, list[int]] = {}
        for place, request in enumerate(requests):
            if request.rewards.work.statistics:
                asked.setdefault(request.rewards.work, []).append(place)
        for places in asked.values():
            engine, joined, parts = self._joined([requests[place] for place in places])
            statistics = engine.statistics(joined, requests[0].t)
            for place, part in zip(places, parts, strict=True):
                found[place] = {name: values[part] for name, values in statistics.items()}
        return found

    def _joined(self, requests: Sequence[Request]) -> tuple[VectorisedEngine, Rewards, list[slice]]:
        """Return the engine of some runs, what it is given, and which of its rows belong to which run."""
        runs = tuple(request.run for request in requests)
        sizes = [len(self.problems[run].federation) for run in runs]
        ends = torch.tensor(sizes).cumsum(0).tolist()
        parts = [slice(end - size, end) for size, end in zip(sizes, ends, strict=True)]
        return self._engine(runs), _joined([request.rewards for request in requests], sizes), parts

    def _engine(self, runs: tuple[int, ...]) -> VectorisedEngine:
        """Return the engine of some of the runs; which runs train together changes seldom, so the latest are kept."""
        engine = self._engines.pop(runs, None) or VectorisedEngine(_union([self.problems[run] for run in runs]))
        self._engines[runs] = engine
        if len(self._engines) > _KEPT:
            del self._engines[next(iter(self._engines))]
        return engine


def _kind(request: Request) -> object:
    """Return what must be equal for two trainings to be one."""
    rewards, drawn = request.rewards, request.rewards.step_masks
    remembered = tuple(sorted(request.states.optimiser))
    return request.t, rewards.work.training, None if drawn is None else drawn.shape[1:], remembered


def _union(problems: Sequence[Problem]) -> Problem:
    """Return the problem whose clients are those of all the problems, each with the random key it has there."""
    federation = Federation.concat([problem.federation for problem in problems])
    return replace(problems[0], federation=federation, keys=torch.cat([problem.table.keys for problem in problems]))


def _joined(rewards: Sequence[Rewards], sizes: Sequence[int]) -> Rewards:
    """Return the rewards of several runs as those of one; a run without masks holds everything."""
    rows = [
        own.parameters.expand(size, -1) if own.parameters.dim() == 1 else own.parameters
        for own, size in zip(rewards, sizes, strict=True)
    ]
    return Rewards(
        torch.cat(rows) if len(rows) > 1 else rows[0],
        rewards[0].work,
        _filled([own.neuron_masks for own in rewards], sizes),
        _filled([own.step_masks for own in rewards], sizes),
        _filled([own.step_choices for own in rewards], sizes),
        _filled([own.participants for own in rewards], sizes),
    )


def _filled(parts: Sequence[Tensor | None], sizes: Sequence[int]) -> Tensor | None:
    known = next((part for part in parts if part is not None), None)
    if known is None:
        return None
    like = known
    return torch.cat(
        [
            torch.ones(size, *like.shape[1:], dtype=like.dtype, device=like.device) if part is None else part
            for part, size in zip(parts, sizes, strict=True)
        ]
    )


def _joined_states(requests: Sequence[Request]) -> ClientStates:
    names = requests[0].states.optimiser
    return ClientStates({name: torch.cat([request.states.optimiser[name] for request in requests]) for name in names})


def _part(uploads: Uploads, where: slice) -> Uploads:
    return Uploads(uploads.updates[where], uploads.present[where], uploads.sizes[where])


def _part_of_states(states: ClientStates, where: slice, own: ClientStates) -> ClientStates:
    return replace(own, optimiser={name: values[where] for name, values in states.optimiser.items()})
