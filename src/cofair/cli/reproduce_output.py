"""What `cofair reproduce` does and prints: published against measured."""

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from rich.markup import escape

from cofair.cli.console import new_table, output, print_table
from cofair.cli.progress import counted, sweep_progress
from cofair.errors import UsageError
from cofair.reproduce import approximation, overhead, paper_tables
from cofair.reproduce import measurements as measured
from cofair.reproduce.measurements import Line, Value
from cofair.runs.jobs import all_done, run_jobs, unfinished
from cofair.storage.resume import holds_other

_SMALL = 0.1  # smaller numbers are shown by significant digits


@dataclass(frozen=True)
class Asked:
    """What was asked for: a table, some of its cells and methods, and how it is computed and shown."""

    name: str
    cells: tuple[str, ...]
    methods: tuple[str, ...]
    seeds: int | None
    out: Path
    workers: int
    changes: tuple[str, ...]
    show: bool
    markdown: bool
    as_json: bool
    figure: Path | None


def reproduce(asked: Asked) -> None:
    """Compute a published table, or the rest of it, and show it."""
    name = asked.name
    if name == "list":
        print("\n".join([*paper_tables.names(), approximation.NAME]))
        return
    if any(text.partition("=")[0].strip() == "run.seed" for text in asked.changes):
        raise UsageError("The seeds of a table are chosen by --seeds, not by run.seed.")
    if asked.show and name in (approximation.NAME, overhead.NAME):
        raise UsageError(f"Nothing of {name} is kept that could be shown: leave out --show.")
    if asked.figure is not None:
        from cofair.reproduce.figure import check_kind

        check_kind(asked.figure)
    if name == approximation.NAME:  # no training is behind it
        if asked.cells or asked.methods:
            raise UsageError(f"{name} is computed as a whole: leave out --cells and --methods.")
        lines = approximation.lines(range(asked.seeds or 10))
        _print(asked, lines, (approximation.RULE,))
        _draw(asked, lines)
        return
    whole = paper_tables.table(name)
    table, seeds = paper_tables.chosen(whole, asked.cells, asked.methods), range(asked.seeds or whole.seeds)
    if name == overhead.NAME:  # rounds are timed, and nothing is kept
        lines = overhead.lines(table, seeds, asked.changes, counted)
        _print(asked, lines, (overhead.RULE,))
        _draw(asked, lines)
        return
    jobs = measured.jobs(table, seeds, asked.out, asked.changes)
    if asked.show:
        _tell_others([job.path for job in jobs if holds_other(job.path, job.experiment)], asked.out)
    else:
        left, began = unfinished(jobs), time.monotonic()
        with sweep_progress(len(left)) as listener:
            run_jobs(left, listener, lockstep=True, workers=asked.workers)
        if left:
            print(f"{len(left)} runs in {time.monotonic() - began:.0f} s, {asked.workers} at a time", file=sys.stderr)
    rules = ("last", "best") if table.rule == "last" else ("best", "last")
    lines = measured.lines(table, seeds, asked.out, asked.changes, rules)
    _print(asked, lines, rules)
    if not asked.show:
        all_done(jobs)
    _draw(asked, lines)


def _tell_others(folders: Sequence[Path], out: Path) -> None:
    if folders:
        others = f"{len(folders)} runs in {out} have other settings and are not shown"
        print(f"{others}, as {folders[0].name}", file=sys.stderr)


def _print(asked: Asked, lines: Sequence[Line], rules: Sequence[str]) -> None:
    print_reproduction(asked.name, lines, rules, as_json=asked.as_json, as_markdown=asked.markdown)


def _draw(asked: Asked, lines: Sequence[Line]) -> None:
    if asked.figure is not None:
        from cofair.reproduce import figure

        figure.write(figure.panels(lines), asked.figure)
        print(f"Published against measured: {asked.figure}", file=sys.stderr)


def print_reproduction(
    name: str, lines: Sequence[Line], rules: Sequence[str], *, as_json: bool, as_markdown: bool = False
) -> None:
    """Print published against measured, cell by cell."""
    if as_markdown:
        print(markdown(lines, rules))
        return
    if as_json:
        print(json.dumps([asdict(line) for line in lines], indent=1))
        return
    console = output()
    by = f" by the rules {' and '.join(rules)}" if len(rules) > 1 else ""
    console.print(f"[bold]{escape(name)}: published, measured{by}, and the difference[/]")
    shown = new_table()
    for column in ("data", "scene", "method"):
        shown.add_column(column, no_wrap=True)
    for column in ("published", *[text for rule in rules for text in (rule, "difference")]):
        shown.add_column(column, justify="right", no_wrap=True)
    for line in lines:
        own = line.published
        place = own.data if own.clients == 10 else f"{own.data}, {own.clients} clients"
        cells = [_value(Value(own.mean, own.std, 0))]
        for rule in rules:
            difference = line.difference(rule)
            cells += [
                _value(line.measured[rule]),
                "" if difference is None else f"{difference:+.{2 if abs(own.mean) >= 1 else 4}f}",
            ]
        shown.add_row(escape(place), escape(own.scene), escape(_metric(own.metric) + own.method), *cells)
    print_table(console, shown)
    done = [line for line in lines if line.measured[rules[0]] is not None]
    if done:
        gaps = [abs(line.difference(rules[0]) or 0.0) for line in done]
        print(f"{len(done)} of {len(lines)} cells measured; median gap by '{rules[0]}' {np.median(gaps):.3g}.")
    if counts := measured.reached(lines, rules[0]):
        reached = ", ".join(f"{method} {good} of {count}" for method, (good, count) in counts.items())
        print(f"At least the published mean less one standard deviation by '{rules[0]}': {reached}.")


def markdown(lines: Sequence[Line], rules: Sequence[str]) -> str:
    """Return published against measured as a table for a page: one row per cell, one column per method."""
    methods = list(dict.fromkeys(line.published.method for line in lines))
    places: dict[tuple[str, str, str], dict[str, str]] = {}
    for line in lines:
        own = line.published
        where = (
            own.data if own.clients == 10 else f"{own.data}, {own.clients} clients",
            own.scene,
            _metric(own.metric),
        )
        measured = [_short(line.measured[rule], own.metric) for rule in rules]
        places.setdefault(where, {})[own.method] = f"{_published(own.mean)} → {' / '.join(measured)}"
    rows = ["| " + " | ".join(["cell", *methods]) + " |", "| " + " | ".join(["---"] * (len(methods) + 1)) + " |"]
    for (data, scene, metric), cells in places.items():
        name = f"{metric}{data} {scene}".strip()
        rows.append("| " + " | ".join([name, *[cells.get(method, "") for method in methods]]) + " |")
    return "\n".join(row.replace("|r", "\\|r").replace("|q", "\\|q") for row in rows)


def _published(value: float) -> str:
    return f"{value:.3g}" if abs(value) < _SMALL else f"{value:g}"


def _short(value: Value | None, metric: str) -> str:
    if value is None:
        return "–"
    if 0 < abs(value.mean) < _SMALL and not metric.startswith("rate"):
        return f"{value.mean:.3g}"
    return f"{value.mean:.2f}" if abs(value.mean) <= 1 else f"{value.mean:.1f}"


def _metric(name: str) -> str:
    return {
        "mean_test_accuracy_pct": "mean of ", "min_client_test_accuracy_pct_given_rho>95": "min of ",
        "l1diff_vs_exact": "l1 of ", "l2diff_vs_exact": "l2 of ", "mean_psi": "ψ of ",
        "mean_reward_sparsity_pct": "left out, %, of ",
    }.get(name, "")  # fmt: skip


def _value(value: Value | None) -> str:
    if value is None:
        return "–"
    digits = 2 if abs(value.mean) >= 1 else 4 if abs(value.mean) >= _SMALL else 6
    return f"{value.mean:.{digits}f}" if value.std is None else f"{value.mean:.{digits}f} ± {value.std:.{digits}f}"
