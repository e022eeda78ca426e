"""Compare methods on the same federations: one row a method, mean and spread over seeds."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import fields, replace
from pathlib import Path

import torch

from cofair.config.experiment import Experiment
from cofair.engine import choose
from cofair.errors import UsageError
from cofair.results.comparison import Comparison
from cofair.results.record import Listener
from cofair.results.result import Outcome
from cofair.runs.run import Notes, carry_out
from cofair.runs.setup import Prepared, prepare
from cofair.storage.folder import RunFolder, refuse_earlier, write_whole
from cofair.storage.journal import opened
from cofair.storage.lock import locked
from cofair.storage.resume import finished_outcome


def compare(
    experiment: Experiment, names: Sequence[str], seeds: int = 1, out: Path | None = None, *, overwrite: bool = False,
    resume: bool = False, listener: Listener | None = None, notes: Notes | None = None,
) -> Comparison:  # fmt: skip
    """Train every method on the same federations, seeds 0, 1, …; with `out`, a run folder each and the tables.

    The method of the experiment keeps its settings where its name is among those compared. With `resume`, runs that are
    finished in `out` are kept, and one that was interrupted goes on. `notes` hears what methods say before they begin.
    """
    if not names:
        raise UsageError("Name at least one method to compare.")
    chosen = [experiment.with_method(name).method for name in dict.fromkeys(names)]
    if out is not None:
        refuse_earlier(out, ("summary.csv", "clients.csv"), overwrite or resume)
    numbers = range(experiment.run.seed, experiment.run.seed + seeds)
    runs = [[replace(experiment.with_run(seed=seed), method=method) for method in chosen] for seed in numbers]
    names_of = [run_name(run) for one_seed in runs for run in one_seed]
    folders = {name: RunFolder(out / name, overwrite=overwrite, resume=resume) for name in names_of if out is not None}
    with nullcontext() if out is None else locked(out):
        outcomes = [outcome for one_seed in runs for outcome in _one_seed(one_seed, folders, listener, notes)]
        comparison = Comparison(tuple(outcomes))
        if out is not None:
            write_whole(out / "summary.csv", comparison.every_rule().to_csv(index=False))
            write_whole(out / "clients.csv", comparison.clients_frame().to_csv(index=False))
    return comparison


def _one_seed(
    runs: Sequence[Experiment], folders: Mapping[str, RunFolder], listener: Listener | None, notes: Notes | None
) -> Iterator[Outcome]:
    """Carry out the runs of one seed, which share federation and contributions; those that are finished are read."""
    own = [folders.get(run_name(run)) for run in runs]
    found = [
        finished_outcome(folder.path, run) if folder is not None and folder.resume else None
        for run, folder in zip(runs, own, strict=True)
    ]
    left = [run.method for run, outcome in zip(runs, found, strict=True) if outcome is None]
    if left and listener is not None:
        listener("contributions", runs[0].run.seed, None)
    measured = [torch.tensor(o.contributions, dtype=torch.float64) for o in found if o is not None]
    prepared: Prepared | None = None
    for run, folder, outcome in zip(runs, own, found, strict=True):
        if outcome is not None:
            yield outcome
            continue
        with choose.arithmetic(run.run.precision), opened(folder, run) as journal:
            if prepared is None:
                measured += [] if journal is None or journal.contributions is None else [journal.contributions]
                prepared = prepare(run, methods=left, measured=measured[0] if measured else None)
            result = carry_out(run, replace(prepared, experiment=run), journal, listener, notes)
        yield Outcome(**{f.name: getattr(result, f.name) for f in fields(Outcome)})


def run_name(experiment: Experiment) -> str:
    """Return the name of a run's folder in that of its comparison."""
    return f"{experiment.method.name}-seed{experiment.run.seed}"
