"""Run one experiment: `cofair.run` for a model and data of one's own, `carry_out` for an experiment file."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cofair import settings
from cofair.config.experiment import Experiment
from cofair.data.federation import Federation
from cofair.engine import choose
from cofair.engine.losses import Loss
from cofair.errors import UsageError
from cofair.methods import Method
from cofair.results.record import Listener, Record
from cofair.results.result import Outcome, Result, RewardModels
from cofair.runs.loop import driven
from cofair.runs.setup import Model, Prepared, prepare
from cofair.storage.folder import FORMAT, RunFolder, versions
from cofair.storage.journal import Journal, Past, opened
from cofair.storage.ledger_entries import known_of

Notes = Callable[[str, int, Sequence[str]], None]  # method, seed, what is to be known before the first round


def run(
    model: Model, federation: Federation, method: str | Method[Any] = "fedavg", *, rounds: int = 200, seed: int = 0,
    loss: Loss | str = "cross_entropy", metric: Callable[[Tensor, Tensor], float | Tensor] | str = "accuracy",
    contributions: Sequence[float] | Tensor | None = None, method_settings: Mapping[str, Any] | None = None,
    contribution: Mapping[str, Any] | None = None, execution: Mapping[str, Any] | None = None,
    participation: Mapping[str, Any] | None = None, attack: Mapping[str, Any] | None = None,
    defence: Mapping[str, Any] | None = None,
    out: str | Path | None = None, resume: bool = False, listener: Listener | None = None, **training: Any,
) -> Result:  # fmt: skip
    """Train a model on a federation and give every client its reward.

    `model` is any nn.Module, whose weights are the start, or a factory. `method` is a name, with
    `method_settings`, or a method object. Other keywords are settings of local training: steps or epochs,
    batch_size, lr, decay, clip, optimiser. `contributions` takes the place of the measured ones. The other tables
    of an experiment go by their names: `contribution`, `participation`, `attack`, `defence`. `out` names a run folder;
    with `resume` a run that was interrupted there goes on. `listener` hears of every tested round.
    """
    if not isinstance(federation, Federation):
        example = "cofair.Federation(clients=[(x, y), ...], test=(x, y))"
        raise UsageError(
            f"federation must be a cofair.Federation, such as {example}, but is {type(federation).__name__}."
        )
    tables: dict[str, Any] = {
        "training": {"rounds": rounds, **training},
        "contribution": dict(contribution or {}),
        "run": {"seed": seed, **(execution or {})},
        "participation": dict(participation or {}),
        "attack": dict(attack or {}),
        "defence": dict(defence or {}),
    }
    named = {"loss": loss, "metric": metric}
    for name, choice in named.items():
        if isinstance(choice, str):
            tables["run"][name] = choice
    if isinstance(method, str):
        tables["method"] = {"name": method, **(method_settings or {})}
    elif not isinstance(method, Method) or method_settings:
        raise UsageError(
            "method must be a name, with method_settings, or a method object such as FedAvg(carry_over=True)."
        )
    experiment = Experiment.from_dict(tables)
    if not isinstance(method, str):
        experiment = replace(experiment, method=settings.checked(method, "method"))
    if resume and out is None:
        raise UsageError("resume goes on with a run in a folder: name it with out.")
    folder = None if out is None else RunFolder(Path(out), resume=resume)
    with choose.arithmetic(experiment.run.precision), opened(folder, experiment, keeps_rewards=True) as journal:
        prepared = prepare(
            experiment, federation=federation, model=model, contributions=_numbers(contributions),
            loss=None if isinstance(loss, str) else loss, metric=None if isinstance(metric, str) else metric,
            measured=None if journal is None else journal.contributions,
        )  # fmt: skip
        return carry_out(experiment, prepared, journal, listener)


def _numbers(contributions: Sequence[float] | Tensor | None) -> Tensor | None:
    try:
        return None if contributions is None else torch.as_tensor(contributions, dtype=torch.float64)
    except (TypeError, ValueError):
        raise UsageError(f"contributions must be numbers, one a client, but are {contributions!r}.") from None


def run_experiment(
    experiment: Experiment, folder: RunFolder | None = None, listener: Listener | None = None,
    notes: Notes | None = None,
) -> Result:  # fmt: skip
    """Run an experiment that names its data and model; `notes` hears what its method says before the first round."""
    with choose.arithmetic(experiment.run.precision), opened(folder, experiment, keeps_rewards=True) as journal:
        if listener is not None:
            listener("contributions", experiment.run.seed, None)
        prepared = prepare(experiment, measured=None if journal is None else journal.contributions)
        return carry_out(experiment, prepared, journal, listener, notes)


def carry_out(
    experiment: Experiment, prepared: Prepared, journal: Journal | None = None, listener: Listener | None = None,
    notes: Notes | None = None,
) -> Result:  # fmt: skip
    """Run the experiment's method on what is prepared, or go on with it, writing and telling each tested round."""
    resolved, known = experiment.to_toml(prepared.given), facts(prepared)
    if notes is not None and (told := known.get("notes")):
        notes(experiment.method.name, experiment.run.seed, told)
    past = Past() if journal is None else journal.begin(prepared, resolved, known)
    records, delivered = past.records, past.delivered
    if past.brought is not None and prepared.arrivals is not None:
        prepared = prepared.arrivals.restored(prepared, past.brought)
    if delivered is None:
        for tested in driven(experiment.method, prepared, past.position, None if journal is None else journal.keep):
            records.append(tested.record)
            delivered, prepared = tested.delivered, tested.prepared
            if journal is not None:
                journal.tested(tested, announced=listener is not None)
            if listener is not None:
                listener(experiment.method.name, experiment.run.seed, tested.record)
    assert delivered is not None  # the last round is always tested
    outcome = outcome_of(experiment, prepared, records)
    rewards = RewardModels(delivered, prepared.problem)
    result = Result(**vars(outcome), rewards=rewards, experiment_toml=resolved, facts=known | known_of(prepared))
    if journal is not None and past.delivered is None:
        journal.finish(result.summary(), delivered)
    return result


def outcome_of(experiment: Experiment, prepared: Prepared, records: Sequence[Record]) -> Outcome:
    """Return what a run measured."""
    federation = prepared.problem.federation
    return Outcome(
        experiment.method.name,
        experiment.run.seed,
        federation.names,
        tuple(federation.sizes.tolist()),
        tuple(prepared.server.contributions.tolist()),
        tuple(records),
        contributions_are_accuracies=prepared.contributions_are_accuracies,
    )


def facts(prepared: Prepared, engine: str | None = None) -> dict[str, Any]:
    """Return what a run folder records beside the settings."""
    federation, server = prepared.problem.federation, prepared.server
    device = federation.device
    notes = prepared.experiment.method.notes(server)
    return {
        "format": FORMAT,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "engine": engine or type(getattr(prepared.engine, "engine", prepared.engine)).__name__,
        "given": sorted(prepared.given),
        "model": type(prepared.problem.layout.prototype).__name__,
        "seed": prepared.problem.seed,
        "parameters": prepared.problem.layout.size,
        "validation_samples": len(server.validation.samples) if server.has_validation else 0,
        "test_samples": server.tested_on,
        **({"notes": notes} if notes else {}),
        **known_of(prepared),
        **({} if prepared.attack is None else {"attackers": [federation.names[i] for i in prepared.attack.attackers]}),
    }
