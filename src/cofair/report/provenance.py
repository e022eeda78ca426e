"""Where the numbers come from: settings, versions, devices, seeds, and how to run it again."""

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cofair.errors import CofairError
from cofair.methods import METHODS, make
from cofair.report.markup import Html, element, folded, joined, text_table
from cofair.report.reported_runs import ReportedMethod, ReportedRun
from cofair.report.words import listed, ranges
from cofair.settings import values


def configuration(methods: Sequence[ReportedMethod]) -> Html:
    """Return the settings that runs share, those of each method, those that differ, and the runs themselves."""
    runs = [run for method in methods for run in method.runs]
    shared, differing = _settings(runs)
    parts = [_settings_table(shared)]
    if differing:
        names = [key for key in differing if key != "run.seed"]
        rows = [
            [method.label, str(run.outcome.seed), *(_plain(_flat(run).get(name)) for name in names)]
            for method in methods
            for run in method.runs
        ]
        if names:
            parts += [
                element("h3", "What differs between the runs"),
                text_table(["method", "seed", *names], rows, "runs"),
            ]
    own = [(method.label, method.runs[0].experiment.get("method", {})) for method in methods]
    rows = [
        [label, ", ".join(f"{key} = {_plain(value)}" for key, value in table.items() if key != "name") or "none"]
        for label, table in own
    ]
    parts += [
        element("h3", "Settings of each method"),
        text_table(["method", "settings"], rows, "methods", class_="settings"),
    ]
    parts += [element("h3", "Runs"), _runs(methods), _versions(runs)]
    return joined(parts)


def again(methods: Sequence[ReportedMethod]) -> Html:
    """Say how to run it again: the exact command, or what was given in Python."""
    runs = [run for method in methods for run in method.runs]
    given = sorted({name for run in runs for name in run.facts["given"]})
    if given:
        return element(
            "p", f"The {listed(given)} {'was' if len(given) == 1 else 'were'} given in Python: call cofair.run with "
            "the same again; the settings above are the rest.",
        )  # fmt: skip
    if any(run.folder is None for run in runs):
        file = element("code", _run("experiment.toml"))
        return element("p", "Save the settings above as experiment.toml, then: ", file)
    command = _compare(methods)
    if command is not None:
        return element("pre", element("code", command), tabindex=0)
    lines = "\n".join(
        _run(own / "experiment.toml", f"again/{own.name}") for run in runs if (own := run.folder) is not None
    )
    return folded("One command for each run", element("pre", element("code", lines), tabindex=0), len(runs))


def _compare(methods: Sequence[ReportedMethod]) -> str | None:
    """Return the `cofair compare` that makes these runs, or None where it takes more than one command."""
    runs = [run for method in methods for run in method.runs]
    if len(runs) == 1:
        return _run(runs[0].folder / "experiment.toml") if runs[0].folder is not None else None
    _, differing = _settings(runs)
    seeds = sorted({run.outcome.seed for run in runs})
    whole = all(sorted(run.outcome.seed for run in method.runs) == seeds for method in methods)
    names = [method.name for method in methods]
    changed = [method for method in methods if not _default(method.runs[0])]
    if set(differing) - {"run.seed"} or not whole or len(set(names)) < len(names) or len(changed) > 1:
        return None
    if seeds != list(range(seeds[0], seeds[0] + len(seeds))):
        return None
    # compare keeps the settings of the method that the file names and takes defaults for all others
    source = (changed or list(methods))[0]
    first = next(run for run in source.runs if run.outcome.seed == seeds[0])
    assert first.folder is not None
    own = f"--methods {','.join(map(shlex.quote, names))} --seeds {len(seeds)}"
    file = shlex.quote(str(first.folder / "experiment.toml"))
    return f"cofair compare --experiment {file} {own}{_loads(names)} --out again"


def _run(file: Path | str, out: str = "again") -> str:
    return f"cofair run {shlex.quote(str(file))} --out {shlex.quote(out)}"


def _loads(names: Sequence[str]) -> str:
    return "" if all(name in METHODS for name in names) else " --load YOUR_METHOD.py"


def _default(run: ReportedRun) -> bool:
    """Return whether a run's method has its default settings."""
    table = {key: value for key, value in run.experiment.get("method", {}).items() if key != "name"}
    try:
        made = values(make(run.outcome.method, {}))
    except CofairError:
        return False
    plain = {key: list(value) if isinstance(value, tuple) else value for key, value in made.items()}
    return {key: "none" if value is None else value for key, value in plain.items()} == table


def _flat(run: ReportedRun) -> dict[str, Any]:
    return {
        f"{table}.{key}": value
        for table, own in run.experiment.items()
        if table != "method" and isinstance(own, dict)
        for key, value in own.items()
    }


def _settings(runs: Sequence[ReportedRun]) -> tuple[dict[str, Any], list[str]]:
    """Return the settings that all runs share and the names of the others, without the method's own."""
    flat = [_flat(run) for run in runs]
    names = list(dict.fromkeys(name for own in flat for name in own))
    shared = {name: flat[0][name] for name in names if all(own.get(name, flat) == flat[0].get(name) for own in flat)}
    return shared, [name for name in names if name not in shared]


def _settings_table(shared: dict[str, Any]) -> Html:
    groups: dict[str, list[Html]] = {}
    for name, value in shared.items():
        table, _, key = name.partition(".")
        pair = element("div", element("dt", key), element("dd", _plain(value)))
        groups.setdefault(table, []).append(pair)
    boxes = [element("div", element("h3", table), element("dl", *pairs)) for table, pairs in groups.items()]
    return element("div", *boxes, class_="settings-groups")


def _runs(methods: Sequence[ReportedMethod]) -> Html:
    rows = []
    for method in methods:
        for run in method.runs:
            done = run.outcome.history[-1].round
            state = "finished" if run.finished else f"interrupted after round {done} of {run.rounds}"
            if run.missing:
                state += f"; rounds {ranges(run.missing)} are missing in its history"
            facts = [str(run.facts.get(name, "–")) for name in ("device", "engine", "started")]
            facts[-1] = facts[-1].replace("T", " ").replace("+00:00", " UTC")
            folder = "–" if run.folder is None else str(run.folder)
            rows.append([method.label, str(run.outcome.seed), state, *facts, folder])
    return text_table(["method", "seed", "state", "device", "engine", "started", "folder"], rows, "runs")


def _versions(runs: Sequence[ReportedRun]) -> Html:
    found: dict[str, set[str]] = {}
    for run in runs:
        for name, version in run.facts.get("versions", {}).items():
            found.setdefault(name, set()).add(str(version))
    text = " · ".join(f"{name} {' and '.join(sorted(own))}" for name, own in found.items())
    return joined([element("h3", "Versions"), element("p", text)])


def _plain(value: Any) -> str:
    return "–" if value is None else value if isinstance(value, str) else json.dumps(value, default=str)
