"""From the name of a published table to the experiment behind each of its cells."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import Any

from cofair import methods
from cofair.config.experiment import Experiment, override
from cofair.errors import UsageError, nearest
from cofair.reproduce.paper_numbers import Number, numbers
from cofair.settings import describe

PAPERS = ("fedsac", "fedrac", "fedave", "cgsv")


@dataclass(frozen=True)
class PublishedTable:
    """A published table: its cells, the seeds behind each, and the rule by which the paper reads them."""

    name: str
    cells: tuple[Number, ...]
    seeds: int
    rule: str
    paper: str


@cache
def definition(paper: str) -> dict[str, Any]:
    """Return the file that says how a paper's experiments were made."""
    return tomllib.loads((resources.files("cofair.reproduce") / f"{paper}.toml").read_text(encoding="utf-8"))


def names() -> list[str]:
    """Return the tables that can be reproduced."""
    return [name for paper in PAPERS for name in definition(paper)["tables"]]


def table(name: str) -> PublishedTable:
    """Return a table by its name, such as fedsac-table1."""
    if name not in names():
        raise UsageError(f"Unknown table {name!r}: {nearest(name, names())}")
    paper = name.partition("-")[0]
    own = definition(paper)
    cells = tuple(number for file in own["tables"][name] for number in numbers(file))
    return PublishedTable(name, cells, own["seeds"], own.get("rule", "best"), paper)


def chosen(whole: PublishedTable, cells: Sequence[str] = (), wanted_methods: Sequence[str] = ()) -> PublishedTable:
    """Return a table with some cells (data, data/scene or data/scene/clients, in any case) and methods of it only."""
    kept = whole.cells
    if cells:
        known = sorted({name for cell in kept for name in _names(cell)})
        for name in cells:
            if name.lower() not in known:
                raise UsageError(f"{whole.name} has no cells {name!r}: {nearest(name.lower(), known)}")
        wanted = {name.lower() for name in cells}
        kept = tuple(cell for cell in kept if wanted & _names(cell))
    if wanted_methods:
        known = list(dict.fromkeys(cell.method for cell in kept))
        by_name = {name.lower(): name for name in known}
        for name in wanted_methods:
            if name.lower() not in by_name:
                raise UsageError(f"{whole.name} has no method {name!r}: {nearest(name, known)}")
        kept = tuple(cell for cell in kept if cell.method.lower() in {name.lower() for name in wanted_methods})
    return replace(whole, cells=kept)


def _names(cell: Number) -> set[str]:
    data, place = cell.data.lower(), f"{cell.data}/{cell.scene}".lower()
    return {data, place, f"{place}/{cell.clients}"}


def behind(paper: str, cell: Number) -> Number:
    """Return the cell whose runs are behind this one: in some figures several numbers are of one run."""
    alias: Mapping[str, str] = definition(paper).get("alias", {})
    return replace(cell, scene=alias.get(cell.scene, cell.scene), method=alias.get(cell.method, cell.method))


def experiment(paper: str, cell: Number, seed: int, changes: Sequence[str] = ()) -> Experiment:
    """Return the experiment behind a cell, with changes such as "run.device=cuda"."""
    own = definition(paper)
    cell = behind(paper, cell)
    method = dict(own["method"][cell.method])
    layers: list[Mapping[str, Any]] = [own["base"], own["data"][cell.data], own["scene"][cell.scene]]
    layers += [extra for extra in own.get("override", ()) if _applies(extra, cell)]
    tables: dict[str, dict[str, Any]] = {"federation": {"clients": cell.clients}, "run": {"seed": seed}}
    for layer in layers:
        for name, settings in layer.items():
            if isinstance(settings, Mapping) and name not in ("method",):
                tables.setdefault(name, {}).update(settings)
            elif name == "method":
                method.update(settings)
            elif name == "gamma" and _has(method["name"], "gamma"):
                method.setdefault("gamma", settings)
    return Experiment.from_dict(override({**tables, "method": method}, changes))


def _applies(extra: Mapping[str, Any], cell: Number) -> bool:
    return (
        extra.get("data", cell.data) == cell.data
        and cell.scene in extra.get("scenes", [cell.scene])
        and cell.method in extra.get("methods", [cell.method])
        and cell.clients in extra.get("clients", [cell.clients])
    )


def _has(method: str, setting: str) -> bool:
    return any(described.name == setting for described in describe(methods.get(method)))
