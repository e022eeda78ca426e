"""A grid of experiments: one TOML file, which is an experiment with a table `grid` of what varies.

    [federation]
    data = "cifar10"

    [grid]
    run.seed = [0, 1, 2]
    federation = [{scene = "pow"}, {scene = "dir", alpha = 1.0}]
    method = ["fedavg", {name = "fedsac", beta = 5}]

A setting with a list takes each of its values; a table with a list takes each of several sets of settings. The
experiments are all combinations; the last line of the grid varies fastest. `--set grid.run.seed=[0]` selects a part.
"""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cofair.config.experiment import Experiment, override
from cofair.errors import UsageError

MOST = 100_000  # experiments; a larger grid is a mistake


@dataclass(frozen=True)
class Point:
    """One experiment of a grid, and the settings that distinguish it: {"federation.scene": "pow", …}."""

    experiment: Experiment
    varied: dict[str, Any]

    @property
    def name(self) -> str:
        """Return a name for its folder."""
        parts = []
        for key, value in self.varied.items():
            short = key.partition(".")[2]
            parts.append(str(value) if short in ("data", "scene", "name") else f"{short}{value}")
        text = "-".join("".join(c if c.isalnum() or c in ".-" else "_" for c in part) for part in parts)
        return text.lstrip(".") or "run"  # so that no value makes it the parent folder


def read_grid(tables: Mapping[str, Any], overrides: tuple[str, ...] = ()) -> list[Point]:
    """Return the experiments of a grid file's tables; without a table `grid` there is one."""
    merged = override(tables, overrides)
    grid = merged.pop("grid", {})
    if not isinstance(grid, Mapping):
        raise UsageError(f"'grid' must be a table of lists, but is {grid!r}.")
    axes = [axis for name, value in _nested(grid).items() for axis in _axes(name, value)]
    for asked in (text.partition("=")[0].strip() for text in overrides):
        table, _, key = asked.partition(".")
        if any(all((table, key) in choice for choice in axis) for axis in axes):
            raise UsageError(f"The grid varies {asked}: set the values that it takes instead, with grid.{asked}=[…].")
    count = 1
    for axis in axes:
        count *= len(axis)
    if count > MOST:
        raise UsageError(f"The grid has {count} experiments: list fewer values (at most {MOST} experiments).")
    points = []
    for chosen in itertools.product(*axes):
        own = {name: dict(table) if isinstance(table, Mapping) else table for name, table in merged.items()}
        varied: dict[str, Any] = {}
        for choice in chosen:
            for (table, key), value in choice.items():
                if table == "method" and key == "name":
                    own["method"] = dict(merged.get("method", {})) if _names(merged, value) else {}
                own.setdefault(table, {})[key] = value
                varied[f"{table}.{key}"] = value
        points.append(Point(Experiment.from_dict(own), varied))
    names = [point.name for point in points]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise UsageError(f"The grid has the experiment {twice!r} twice: list each value once.")
    return points


Choice = dict[tuple[str, str], Any]


def _nested(grid: Mapping[str, Any]) -> dict[str, Any]:
    """Return the grid with keys such as "federation.scene", which overrides use, moved into their tables."""
    found = {name: dict(value) if isinstance(value, Mapping) else value for name, value in grid.items()}
    for name in [name for name in found if "." in name]:
        table, _, key = name.partition(".")
        if not isinstance(found.setdefault(table, {}), dict):
            raise UsageError(f"grid.{table} is a list of tables: set all of grid.{table}, not grid.{name}.")
        found[table][key] = found.pop(name)
    return found


def _axes(table: str, value: Any) -> list[list[Choice]]:
    """Return the axes that a line of the grid makes: one for a list of tables, one for each setting of a table."""
    if isinstance(value, Mapping):
        return [[{(table, key): item} for item in _list(f"{table}.{key}", values)] for key, values in value.items()]
    choices: list[Choice] = []
    for item in _list(table, value):
        settings = {"name": item} if isinstance(item, str) and table in ("method", "model") else item
        if not isinstance(settings, Mapping):
            raise UsageError(f'grid.{table} must list tables such as {{scene = "pow"}}, but has {item!r}.')
        choices.append({(table, key): own for key, own in settings.items()})
    return [choices]


def _list(key: str, values: Any) -> list[Any]:
    if not isinstance(values, list) or not values:
        raise UsageError(f"grid.{key} must be a list of values, but is {values!r}.")
    return values


def _names(tables: Mapping[str, Any], method: Any) -> bool:
    """Return whether the file's table `method` is for this method."""
    own = tables.get("method", {})
    return isinstance(own, Mapping) and own.get("name") == method
