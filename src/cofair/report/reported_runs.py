"""Read run folders back: what a report is made of."""

import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from cofair import metrics
from cofair.errors import RunError, UsageError
from cofair.results.comparison import Comparison
from cofair.results.result import Outcome, Result
from cofair.results.table_cells import LAST_ROUNDS
from cofair.storage import failures
from cofair.storage.agreement import Audit, audit_folder
from cofair.storage.audit import has_ledger
from cofair.storage.reader import outcome_of, read_facts, read_records, read_tables
from cofair.storage.resume import is_finished, traffic

_UNLABELLED = (
    "run.seed",
    "run.device",
    "run.engine",
    "run.checkpoint_every",
    "run.evaluate_every",
    "run.joint",
    "run.held",
    "method.name",
)


@dataclass(frozen=True)
class ReportedRun:
    """One run: a folder as it was read, or a result in memory."""

    folder: Path | None
    outcome: Outcome
    experiment: dict[str, dict[str, Any]]  # the tables of experiment.toml; what was given in Python is not there
    facts: dict[str, Any]  # run.json

    @cached_property
    def audit(self) -> Audit | None:
        """Return whether its ledger is intact and the folder agrees with it; None if there is no ledger."""
        return audit_folder(self.folder) if self.folder is not None and has_ledger(self.folder) else None

    @property
    def finished(self) -> bool:
        """Return whether the run finished."""
        return self.outcome.history[-1].last

    @property
    def rounds(self) -> int:
        """Return how many rounds were asked for."""
        return int(self.experiment.get("training", {}).get("rounds", self.outcome.history[-1].round))

    @property
    def missing(self) -> tuple[int, ...]:
        """Return the rounds up to the last one that should have been tested and are not in the history."""
        every = int(self.setting("run", "evaluate_every") or 1)
        there = {record.round for record in self.outcome.history}
        final = self.rounds - LAST_ROUNDS
        return tuple(t for t in range(1, max(there)) if t not in there and (t % every == 0 or t > final))

    def setting(self, table: str, key: str) -> Any:
        """Return a setting, or None where the table was given in Python."""
        return self.experiment.get(table, {}).get(key)

    @property
    def contributions_are_accuracies(self) -> bool:
        """Return whether contributions and rewards are measured on one scale."""
        return self.outcome.contributions_are_accuracies

    @property
    def metric(self) -> str:
        """Return the name of the metric, for people."""
        if "metric" in self.facts["given"]:
            return "score"
        return metrics.title(str(self.setting("run", "metric") or "accuracy"))


@dataclass(frozen=True)
class ReportedMethod:
    """The runs of one method with one set of settings, one per seed: a row of the comparison."""

    label: str
    runs: tuple[ReportedRun, ...]

    @property
    def name(self) -> str:
        """Return the method's name alone."""
        return self.runs[0].outcome.method

    @property
    def reference(self) -> bool:
        """Return whether this is training alone, the reference for all others, fair by definition."""
        return self.name == "standalone"

    @property
    def outcomes(self) -> tuple[Outcome, ...]:
        """Return the outcomes under the method's label."""
        return tuple(replace(run.outcome, method=self.label) for run in self.runs)


def read_methods(paths: Iterable[Path]) -> list[ReportedMethod]:
    """Read run folders, or folders that hold some, into the rows of one comparison."""
    runs = {run.folder.resolve(): run for path in paths for run in _runs_in(path) if run.folder is not None}
    return _grouped(list(runs.values()))


def read_failures(paths: Iterable[Path]) -> dict[str, str]:
    """Return which runs of these comparisons failed, and why; a run that has finished since did not fail."""
    found = {path / name: reason for path in paths for name, reason in failures.read(path).items()}
    return {folder.name: reason for folder, reason in found.items() if not is_finished(folder)}


def reported_method(result: Result) -> ReportedMethod:
    """Return a result in memory as a row of its own, read as its folder would be."""
    run = ReportedRun(None, result, tomllib.loads(result.experiment_toml), result.facts)
    return ReportedMethod(result.method, (run,))


def _grouped(runs: Sequence[ReportedRun]) -> list[ReportedMethod]:
    """Group runs by label and by clients, over which means are taken."""
    groups: dict[tuple[str, tuple[str, ...]], list[ReportedRun]] = {}
    for run, label in zip(runs, _labels(runs), strict=True):
        groups.setdefault((label, run.outcome.names), []).append(run)
    labels = [label for label, _ in groups]
    return [
        ReportedMethod(label if labels.count(label) == 1 else f"{label} · {own[0].folder}", tuple(own))
        for (label, _), own in groups.items()
    ]


def comparison(methods: Sequence[ReportedMethod]) -> Comparison:
    """Return all outcomes as a comparison, whose methods are called by their labels."""
    return Comparison(tuple(outcome for method in methods for outcome in method.outcomes))


def read_run(folder: Path) -> ReportedRun:
    """Read one run folder, finished or interrupted."""
    facts = {"given": [], **read_facts(folder)}
    experiment = read_tables(folder)
    _check_settings(folder / "experiment.toml", experiment)
    records = read_records(folder, facts)
    if not records:
        raise RunError(f"{folder} has no tested round yet: the run was stopped before its first test.")
    outcome = outcome_of(experiment, facts, records)
    travelled = traffic(folder)
    return ReportedRun(folder, outcome, experiment, facts | ({"traffic": travelled} if travelled else {}))


def _runs_in(path: Path) -> list[ReportedRun]:
    if not path.exists():
        raise UsageError(f"There is no folder {path}.")
    if not path.is_dir():
        raise UsageError(f"{path} is a file: name the folder of a run or of a comparison.")
    if (path / "run.json").exists():
        return [read_run(path)]
    folders = sorted(child for child in path.iterdir() if (child / "run.json").exists())
    if not folders:
        raise UsageError(
            f"{path} holds no run: name a folder that 'cofair run --out' or 'cofair compare --out' has written."
        )
    started = [folder for folder in folders if (folder / "history.jsonl").exists()]
    failed = read_failures([path])
    if not started and not failed:
        raise RunError(f"No run in {path} has a tested round yet.")
    compared = [folder for folder in started if folder.name not in failed]
    if not compared:
        name, reason = next(iter(failed.items()))
        raise RunError(f"No run in {path} has come to its end: {name} failed. {reason}")
    runs = [read_run(folder) for folder in compared]
    return sorted(runs, key=lambda run: (str(run.facts.get("started", "")), str(run.folder)))


def _check_settings(path: Path, experiment: dict[str, Any]) -> None:
    """Refuse settings that are not the numbers a report needs; a method's own may be anything."""
    if not all(isinstance(table, dict) for table in experiment.values()):
        raise RunError(f"{path} is damaged: it has settings outside of its tables.")
    for table, key in (("training", "rounds"), ("run", "evaluate_every")):
        value = experiment.get(table, {}).get(key, 1)
        if not _is(value, int) or value < 1:
            raise RunError(f"{path} is damaged: {table}.{key} is {value!r}.")


def _is(value: Any, kind: Any) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _labels(runs: Sequence[ReportedRun]) -> list[str]:
    """Name runs by their method, and by what else differs among them except the seed."""
    flat = [
        {
            f"{table}.{key}": value
            for table, own in run.experiment.items()
            for key, value in own.items()
            if f"{table}.{key}" not in _UNLABELLED
        }
        for run in runs
    ]
    labels = []
    for run, own in zip(runs, flat, strict=True):
        differing = [
            key
            for key, value in own.items()
            if any(
                key in other and other[key] != value
                for rival, other in zip(runs, flat, strict=True)
                if not key.startswith("method.") or rival.outcome.method == run.outcome.method
            )
        ]
        parts = [
            str(own[key]) if key in _SPEAK_FOR_THEMSELVES else f"{key.partition('.')[2]} {own[key]}"
            for key in differing
        ]
        labels.append(" · ".join([run.outcome.method, *parts]))
    return labels


_SPEAK_FOR_THEMSELVES = ("federation.data", "federation.scene", "model.name")
