"""ReportedRun folders as runs write them, from runs made by hand."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cofair.config.experiment import _toml
from cofair.report.reported_runs import ReportedRun
from cofair.storage.folder import FORMAT, RunFolder
from tests.report.made import made_run

NASTY = "<script>alert(1)</script>"


def write_folder(
    folder: Path, run: ReportedRun, *, records: int | None = None, cut: bool = False, **facts: Any
) -> Path:
    """Write a run; with `records` it was interrupted after so many, with `cut` in the middle of the next line."""
    tables = [
        f"[{name}]\n" + "".join(f"{key} = {_toml(value)}\n" for key, value in table.items())
        for name, table in run.experiment.items()
    ]
    own = {
        "format": FORMAT, "started": f"2026-01-01T00:00:0{run.outcome.seed}+00:00", "device": "cpu",
        "engine": "VectorisedEngine", "versions": {"cofair": "0.1.0", "torch": "2.13.0"}, "given": [],
        "seed": run.outcome.seed, "parameters": 1000, "clients": list(run.outcome.names),
        "samples": list(run.outcome.sizes), "contributions": list(run.outcome.contributions),
    }  # fmt: skip
    written = RunFolder(folder)
    written.begin("\n".join(tables), own | facts)
    history = run.outcome.history
    for record in history[:records]:
        written.record(record)
    if cut and records is not None:
        with (folder / "history.jsonl").open("a", encoding="utf-8") as file:
            file.write(history[records].to_json()[:40])
    if records is None:
        written.finish(run.outcome.summary())
    return folder


def write_comparison(folder: Path, methods: Sequence[str], names: Sequence[str], seeds: int = 2, **kind: Any) -> Path:
    """Write a folder for each method and seed, as `cofair compare` does."""
    for method in methods:
        for seed in range(seeds):
            write_folder(folder / f"{method}-seed{seed}", made_run(names, method, seed, **kind))
    return folder
