"""One tested round: what was measured, as the history of a run keeps it, one JSON line each."""

import json
import math
import types
import typing
from collections.abc import Collection
from dataclasses import asdict, dataclass, field, replace
from typing import Any


@dataclass(frozen=True)
class Baseline:
    """What each client brought, and whether that is the accuracy it reaches alone, on one scale with its reward's."""

    contributions: tuple[float, ...]
    are_accuracies: bool


def are_accuracies(measure: object, given: Collection[str]) -> bool:
    """Return whether contributions by a measure are accuracies that clients reach alone; given ones may be anything."""
    return measure == "standalone" and "contributions" not in given


@dataclass(frozen=True)
class Record:
    """One tested round; lists have one entry per client."""

    round: int
    fairness: float | None  # None where it is undefined
    accuracies: list[float]
    validation: list[float] | None
    reputation: list[float] | None
    download: list[float]  # mean share of a whole model received per round so far
    seconds: float
    last: bool  # the run ends with this round
    # share of clients that held each neuron, the mean over the rounds since the record before; None without submodels
    allocation: list[float] | None = None
    promised: list[float] | None = None  # accuracies that the method owes, where it makes promises; NaN: none
    validated: list[float] | None = None  # what it found on the validation set when it delivered
    contributions: list[float] | None = None  # what the method uses, where that was measured again
    # client: why an upload of it was refused since the record before; the last reason of each
    refused: dict[str, str] | None = None
    # what each client holds in the end, where that is measured: its accuracy, those of all that the client chose among,
    # and the name of its choice
    held: list[float] | None = None
    held_parts: dict[str, list[float]] | None = None
    held_as: list[str] | None = None
    # for listeners, which hear of a round as it happens; not in the line, because run.json has it
    baseline: Baseline | None = field(default=None, compare=False, repr=False)

    def to_json(self) -> str:
        """Return the record as one line; what is absent is left out."""
        values = asdict(replace(self, baseline=None))
        return json.dumps({key: value for key, value in values.items() if value is not None})

    def of(self, clients: int) -> "Record":
        """Return the record with NaN for clients that joined later, which come last."""
        own = {name: getattr(self, name) for name in PER_CLIENT}
        short = {name: values for name, values in own.items() if values is not None and len(values) < clients}
        longer: dict[str, Any] = {
            name: [*values, *[math.nan] * (clients - len(values))] for name, values in short.items()
        }
        if self.held_parts is not None and self.held_as is not None:
            gaps = clients - len(self.held_as)
            parts = {name: [*values, *[math.nan] * gaps] for name, values in self.held_parts.items()}
            longer |= {"held_parts": parts, "held_as": [*self.held_as, *["delivered"] * gaps]} if gaps else {}
        return replace(self, **longer) if longer else self

    @classmethod
    def from_json(cls, line: str) -> "Record":
        """Read a record from its line; anything but a record is a ValueError or a TypeError."""
        values: dict[str, Any] = json.loads(line)
        if "baseline" in values:
            raise TypeError("baseline")
        record = cls(**{"fairness": None, "validation": None, "reputation": None, **values})
        for name, hint in _HINTS.items():
            if not _fits(getattr(record, name), hint):
                raise TypeError(name)
        return record


PER_CLIENT = ("accuracies", "validation", "reputation", "download", "promised", "validated", "contributions", "held")
_HINTS = {name: hint for name, hint in typing.get_type_hints(Record).items() if name != "baseline"}


def _fits(value: Any, hint: Any) -> bool:
    """Return whether a value read from JSON is of a type."""
    if isinstance(hint, types.UnionType):
        return any(_fits(value, option) for option in typing.get_args(hint))
    if typing.get_origin(hint) is list:
        return isinstance(value, list) and all(_fits(item, typing.get_args(hint)[0]) for item in value)
    if typing.get_origin(hint) is dict:
        return isinstance(value, dict) and all(_fits(item, typing.get_args(hint)[1]) for item in value.values())
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(value, hint) and (hint is bool or not isinstance(value, bool))
