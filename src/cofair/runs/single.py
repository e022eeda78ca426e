"""A single run: `cofair.run` for a model and data of one's own, `run_experiment` for an experiment file."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from cofair import settings
from cofair.config.experiment import Experiment
from cofair.config.job import Job
from cofair.data.federation import Federation
from cofair.engine import choose, losses
from cofair.engine.losses import Loss
from cofair.errors import UsageError
from cofair.methods import Method
from cofair.results.listener import Callback, Listener, as_listener
from cofair.results.result import Result
from cofair.runs.run import drive, prepare
from cofair.runs.setup import Model, Parts
from cofair.storage.folder import RunFolder
from cofair.storage.journal import open_journal


def run(
    model: Model,
    federation: Federation,
    method: str | Method[Any] = "fedavg",
    *,
    rounds: int = 200,
    steps: int | None = None,
    epochs: int | None = None,
    batch_size: int = 32,
    lr: float = 0.03,
    decay: float = 1.0,
    decay_every: Literal["round", "epoch"] = "round",
    clip: float | None = None,
    optimiser: str = "sgd",
    drop_last: bool = False,
    seed: int = 0,
    loss: Loss | str = "cross_entropy",
    metric: Callable[[Tensor, Tensor], float | Tensor] | str | None = None,
    class_weights: Literal["balanced"] | Sequence[float] | None = None,
    contributions: Sequence[float] | Tensor | None = None,
    method_settings: Mapping[str, Any] | None = None,
    contribution: Mapping[str, Any] | None = None,
    execution: Mapping[str, Any] | None = None,
    participation: Mapping[str, Any] | None = None,
    attack: Mapping[str, Any] | None = None,
    defence: Mapping[str, Any] | None = None,
    held: bool = False,
    out: str | Path | None = None,
    resume: bool = False,
    listener: Listener | Callback | None = None,
) -> Result:
    """Train a model on a federation and give every client its reward.

    Args:
        model: any `nn.Module`, whose weights are the start, or a function that makes one.
        federation: the clients' data, the server's validation set and the test set.
        method: a name, as `cofair methods` lists them, or a method object such as `FedAvg(carry_over=True)`.
        rounds: number of rounds.
        steps: local steps per round; 15 unless `epochs` is given.
        epochs: local epochs per round, instead of `steps`.
        batch_size: samples per batch.
        lr: learning rate.
        decay: factor on the learning rate, applied every `decay_every`.
        decay_every: when the learning rate decays: "round" or "epoch".
        clip: largest gradient norm of a step; None does not clip.
        optimiser: local optimiser; docs/start.md lists them.
        drop_last: leave out a last batch that is not full.
        seed: seed of everything random.
        loss: what clients minimise: "cross_entropy", "bce", "mse", "mae", "huber", "squared_error", a loss of torch or
            a function that returns one loss per sample.
        metric: what rewards are judged by: a name of `cofair.metrics.METRICS`, such as "auroc", or a function. By
            default accuracy for classes, "r2" for real numbers.
        class_weights: what the loss of a sample of each class weighs: one number per class, or "balanced", such that
            all classes of the server's validation set weigh the same.
        contributions: one number per client, instead of measuring them.
        method_settings: settings of a method given by its name.
        contribution: settings of how contributions are measured, the table `contribution` of an experiment.
        execution: engine, device, precision, tests and checkpoints, the table `run` of an experiment.
        participation: who takes part in which round, the table `participation`.
        attack: clients that cheat, in simulation, the table `attack`.
        defence: what the server does against them, the table `defence`.
        held: measure what clients hold in the end, the best that they can make of all they were handed.
        out: a run folder to write to.
        resume: resume the run that was interrupted in `out`.
        listener: a function called with the method, the seed and every tested round, or a `Listener`.

    Returns:
        What was measured and, in `rewards`, every client's model.
    """
    if not isinstance(federation, Federation):
        example = "cofair.Federation(clients=[(x, y), ...], test=(x, y))"
        raise UsageError(
            f"federation must be a cofair.Federation, such as {example}, but is {type(federation).__name__}."
        )
    if metric is None:
        metric = losses.usual_metric(losses.loss(loss), federation.classes)
    training = {
        "rounds": rounds, "steps": steps, "epochs": epochs, "batch_size": batch_size, "lr": lr, "decay": decay,
        "decay_every": decay_every, "clip": clip, "optimiser": optimiser, "drop_last": drop_last,
    }  # fmt: skip
    tables: dict[str, Any] = {
        "training": {name: value for name, value in training.items() if value is not None},
        "contribution": dict(contribution or {}),
        "run": {"seed": seed, **({"held": True} if held else {}), **(execution or {})},
        "participation": dict(participation or {}),
        "attack": dict(attack or {}),
        "defence": dict(defence or {}),
    }
    tables["run"] |= {name: value for name, value in (("loss", loss), ("metric", metric)) if isinstance(value, str)}
    if class_weights is not None:
        listed = getattr(class_weights, "tolist", None)  # of arrays and tensors
        tables["run"]["class_weights"] = class_weights if listed is None else listed()
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
        raise UsageError("resume continues a run in a folder: name it with out.")
    parts = Parts(
        federation, model, None if isinstance(loss, str) else loss, None if isinstance(metric, str) else metric,
        _numbers(contributions),
    )  # fmt: skip
    return run_experiment(experiment, None if out is None else RunFolder(Path(out), resume=resume), listener, parts)


def run_experiment(
    experiment: Experiment, folder: RunFolder | None = None, listener: Listener | Callback | None = None,
    parts: Parts | None = None,
) -> Result:  # fmt: skip
    """Run one experiment, with the parts that are given instead of named; with a folder, write it there."""
    heard, path = as_listener(listener), None if folder is None else folder.path
    with (
        choose.arithmetic(experiment.run.precision),
        open_journal(folder, experiment, keeps_rewards=True, announced=heard is not None) as journal,
    ):
        if heard is not None:
            heard.preparing(Job(experiment, path))
        return drive(prepare(experiment, parts, journal=journal, listener=heard, folder=path)).result()


def _numbers(contributions: Sequence[float] | Tensor | None) -> Tensor | None:
    try:
        return None if contributions is None else torch.as_tensor(contributions, dtype=torch.float64)
    except (TypeError, ValueError):
        raise UsageError(f"contributions must be numbers, one per client, but are {contributions!r}.") from None
