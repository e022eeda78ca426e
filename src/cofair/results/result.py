"""What a run gives back."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, overload

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from cofair import metrics
from cofair.engine.problem import Problem
from cofair.engine.protocol import Delivered
from cofair.results import notebook, table_cells
from cofair.results.columns import COUNTED
from cofair.results.held import Held
from cofair.results.record import Baseline, Record
from cofair.results.table_cells import DELIVERED, Cell
from cofair.results.unkept_promises import unkept


@dataclass(frozen=True, repr=False)
class Outcome:
    """What a run measured: who brought what, who got what.

    `fairness` and `accuracies` are of the models delivered after the last round, which clients can export; `spread`
    says how much their accuracies changed before.
    """

    method: str
    seed: int
    names: tuple[str, ...]
    sizes: tuple[int, ...]
    contributions: tuple[float, ...]
    history: tuple[Record, ...]
    contributions_are_accuracies: bool = field(default=False, kw_only=True)  # that clients reach alone

    def __post_init__(self) -> None:
        """Leave gaps where a client had not joined yet; contributions are here, so that records need no baseline."""
        history = (replace(record.of(len(self.names)), baseline=None) for record in self.history)
        object.__setattr__(self, "history", tuple(history))

    @property
    def fairness(self) -> float | None:
        """Return γ = 100 × Pearson(contributions, accuracies), or None where it is undefined."""
        return self.cell().fairness

    @property
    def fairness_interval(self) -> tuple[float, float] | None:
        """Return a 95 % bootstrap interval of `fairness` over clients, or None where there are too few of them."""
        return metrics.bootstrap_interval(self.contributions, np.array([self.accuracies]))

    @property
    def accuracies(self) -> tuple[float, ...]:
        """Return the accuracy of the model that each client is delivered after the last round."""
        return tuple(self.history[-1].accuracies)

    @property
    def spread(self) -> tuple[float, ...]:
        """Return the standard deviation of each client's accuracy over the final ten rounds; NaN with less than two."""
        read = set(self.cell("last").rounds)
        rows = np.array([record.accuracies for record in self.history if record.round in read])
        few = np.isnan(rows).sum(0) > len(rows) - 2
        return tuple(math.nan if lone else float(np.nanstd(own, ddof=1)) for own, lone in zip(rows.T, few, strict=True))

    @property
    def download(self) -> float:
        """Return the share of a whole model that a client received per round, the mean over clients."""
        shares = self.history[-1].download
        return sum(shares) / len(shares)

    @property
    def seconds(self) -> float:
        """Return how long the rounds took, without measuring contributions."""
        return self.history[-1].seconds

    @property
    def held(self) -> Held | None:
        """Return what clients hold in the end, or None where that was not measured (`run.held`)."""
        last = self.history[-1]
        if last.held is None or last.held_parts is None or last.held_as is None:
            return None
        parts = {name: np.array(own) for name, own in last.held_parts.items()}
        return Held(np.array(self.contributions), np.array(last.held), tuple(last.held_as), parts)

    def cell(self, rule: str = DELIVERED) -> Cell:
        """Return the table cell of this run, read by the rule `delivered`, `last`, `best` or `joint`."""
        validation = [record.validation for record in self.history if record.validation is not None]
        return table_cells.read(
            rule,
            [record.round for record in self.history],
            self.contributions,
            [record.accuracies for record in self.history],
            validation if len(validation) == len(self.history) else None,
            contributions_are_accuracies=self.contributions_are_accuracies,
        )

    def row(self, rule: str = DELIVERED) -> dict[str, float | None]:
        """Return every column of a comparison for this run, read by a rule."""
        last = replace(self.history[-1], baseline=Baseline(self.contributions, self.contributions_are_accuracies))
        there = [column for column in COUNTED if column.of(last)]
        counted = {column.name: column.of_record(last) for column in there if column.of_record is not None}
        return {**self.cell(rule).values, **counted}

    def to_frame(self) -> pd.DataFrame:
        """Return the history as a table, one row per round and client."""
        rows = []
        for record in self.history:
            for i, name in enumerate(self.names):
                row = {"round": record.round, "client": name, "contribution": self.contributions[i]}
                row |= {"accuracy": record.accuracies[i], "download": record.download[i]}
                if record.validation is not None:
                    row["validation"] = record.validation[i]
                if record.reputation is not None:
                    row["reputation"] = record.reputation[i]
                rows.append(row)
        return pd.DataFrame(rows)

    def summary(self) -> dict[str, Any]:
        """Return the run in a few plain values, as `summary.json` holds them."""
        rules = [DELIVERED, "last", "best"] + (["joint"] if self.history[-1].validation is not None else [])
        held, own = self.held, [dict[str, Any]() for _ in self.names]
        if held is not None:
            chosen = zip(held.accuracies.tolist(), held.chosen, strict=True)
            own = [{"held": accuracy, "held_as": name} for accuracy, name in chosen]
        return {
            "method": self.method,
            "seed": self.seed,
            "cells": {rule: self.cell(rule).to_dict() for rule in rules},
            "fairness_interval": self.fairness_interval,
            "download": self.download,
            "seconds": self.seconds,
            **({} if held is None else {"held_fairness": held.fairness, "held_weakest": held.weakest}),
            "clients": [
                {"name": name, "samples": size, "contribution": brought, "accuracy": got, **holds}
                for name, size, brought, got, holds in zip(
                    self.names, self.sizes, self.contributions, self.accuracies, own, strict=True
                )
            ],
        }

    def __repr__(self) -> str:
        cell = self.cell()
        fairness = "undefined" if cell.fairness is None else f"{cell.fairness:.2f}"
        run = f"{self.method}, seed {self.seed}"
        return f"{type(self).__name__}({run}: fairness {fairness}, best accuracy {100 * cell.max:.2f} %)"

    def _repr_html_(self) -> str:
        return notebook.outcome(self)


@dataclass(frozen=True, repr=False)
class Result(Outcome):
    """A finished run with the models themselves: `rewards[3]` is client 3's own module."""

    rewards: "RewardModels"
    experiment_toml: str = ""  # as the run folder holds it
    facts: dict[str, Any] = field(default_factory=dict)  # as run.json holds them

    @property
    def notes(self) -> tuple[str, ...]:
        """Return what was said before the first round and, where promises could not be kept, by how much."""
        last = unkept(self.history[-1], self.names)
        return (*self.facts.get("notes", ()), *([] if last is None else [last]))

    def report(self, path: str | Path) -> Path:
        """Write the run as one HTML page and return its path; needs plotly (`pip install 'cofair[report]'`)."""
        import cofair  # by the front door: reports are made of results, so that results know no report

        return cofair.write_report(self, path)

    def export(self, client: str | int, path: str | Path) -> tuple[Path, Path]:
        """Write a client's reward as PATH.safetensors and as PATH.pt2, a program that needs no cofair."""
        import cofair  # by the front door, as above: storage writes results, and results know no storage

        return cofair.export_reward(self, client, path)


class RewardModels(Sequence[nn.Module]):
    """The clients' rewards as modules of their own, made when they are asked for."""

    def __init__(self, delivered: Delivered, problem: Problem) -> None:
        """Hold the delivered parameters and masks."""
        self._delivered, self._problem = delivered, problem

    def __len__(self) -> int:
        return len(self._problem.federation)

    @property
    def inputs(self) -> Tensor:
        """Return two inputs that these models take."""
        return self._problem.federation.test.x[:2]

    @overload
    def __getitem__(self, i: int) -> nn.Module: ...
    @overload
    def __getitem__(self, i: slice) -> list[nn.Module]: ...
    def __getitem__(self, i: int | slice) -> nn.Module | list[nn.Module]:
        """Return client i's reward, in evaluation mode; left-out neurons are zero in it."""
        if isinstance(i, slice):
            return [self[j] for j in range(*i.indices(len(self)))]
        if not -len(self) <= i < len(self):
            raise IndexError(f"there are {len(self)} clients, so no client {i}")
        layout, neurons, given = self._problem.layout, self._problem.neurons, self._delivered
        row = given.parameters if given.parameters.dim() == 1 else given.parameters[i]
        if given.neuron_masks is None or neurons is None:
            return layout.module(row).eval()
        mask = given.neuron_masks[i % len(self)][None]
        module = layout.module(row * neurons.parameter_mask(mask)[0]).eval()
        with torch.no_grad():
            for name, value in neurons.activation_masks(mask).items():
                module.get_buffer(name).copy_(value[0])
            for name, value in neurons.frozen_masks(mask).items():
                module.get_parameter(name).mul_(value[0])
        return module

    def __iter__(self) -> Iterator[nn.Module]:
        return (self[i] for i in range(len(self)))
