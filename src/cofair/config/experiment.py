"""An experiment: one short TOML file, read strictly; every setting has a default."""

import tomllib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from cofair import methods
from cofair.contributions import MEASURES
from cofair.data.tables import is_table
from cofair.engine.losses import LOSSES
from cofair.engine.optimisers import OPTIMISERS
from cofair.engine.work import Work
from cofair.errors import UsageError, nearest
from cofair.methods import Method
from cofair.methods.fedavg import FedAvg
from cofair.metrics import METRICS
from cofair.rounds.attacks import AttackSettings
from cofair.rounds.defences import DefenceSettings
from cofair.rounds.participation import ParticipationSettings
from cofair.settings import parse_text, read, setting, values


@dataclass(frozen=True)
class FederationSettings:
    """Which data, and how it is distributed over the clients."""

    data: str = setting("digits", "name of a data set, or a table of one's own: a file such as hospitals.csv")
    label: str | None = setting(None, "column of a table that is predicted")
    by: str | None = setting(None, "column of a table that says whose a row is: each of its values is a client")
    leave_out: tuple[str, ...] = setting((), "columns of a table that are not used, such as identifiers")
    test: float = setting(0.2, "share of a table's rows that makes the test set", above=0, maximum=0.9)
    scene: str = setting("pow", "how data is distributed: uni, pow, cla, dir, dir-class or noisy")
    clients: int = setting(10, "number of clients", minimum=1)
    samples: int | None = setting(
        None, "mean samples per client; by default 2000, or an equal share of the pool if that is less", minimum=1
    )
    alpha: float = setting(3.0, "concentration of the Dirichlet scenes", above=0)
    noise: tuple[float, ...] = setting(
        (0.2, 0.4, 0.6), "shares of wrong labels of the first clients (scene noisy)", minimum=0, maximum=1
    )
    validation: float = setting(
        0.1, "share of the training set that the server holds; 0 for none", minimum=0, maximum=0.9
    )
    resize: int | None = setting(None, "width and height in pixels that images are resized to", minimum=1)

    def unused(self) -> dict[str, str]:
        """Return which of these settings mean nothing for this data, and why."""
        if not is_table(self.data):
            why = f"is about a table, such as hospitals.csv, and federation.data is '{self.data}'"
            return dict.fromkeys(("label", "by", "leave_out", "test"), why)
        unused = {"resize": f"is about images, and '{self.data}' is a table"}
        if self.by is not None:
            why = f"spreads data over clients, and each value of the column '{self.by}' is a client already"
            unused |= dict.fromkeys(("scene", "clients", "samples", "alpha", "noise"), why)
        return unused


@dataclass(frozen=True)
class ModelSettings:
    """Which model."""

    name: str = setting("auto", "mlp, cnn-mnist, cnn-cifar, resnet18 or textcnn; auto: textcnn for text, else mlp")
    hidden: tuple[int, ...] = setting((200, 200), "widths of the hidden layers of the mlp", minimum=1)
    variant: str = setting("cifar", "variant of resnet18: cifar, tiny or emnist")
    pad_value: float = setting(0.0, "standardised value of the pixels with which CNNs and resnet18 pad small images")


@dataclass(frozen=True)
class TrainingSettings:
    """How long and how clients train."""

    rounds: int = setting(200, "number of rounds", minimum=1)
    steps: int | None = setting(None, "local steps per round; 15 unless epochs are given", minimum=1)
    epochs: int | None = setting(None, "local epochs per round, instead of steps", minimum=1)
    batch_size: int = setting(32, "samples per batch", minimum=1)
    lr: float = setting(0.03, "learning rate", above=0)
    decay: float = setting(1.0, "factor on the learning rate", above=0, maximum=1)
    decay_every: Literal["round", "epoch"] = setting("round", "when the learning rate decays")
    clip: float | None = setting(None, "largest gradient norm of a step, or none", above=0)
    optimiser: str = setting("sgd", "local optimiser", choices=OPTIMISERS)
    drop_last: bool = setting(False, "leave out a last batch that is not full")

    def work(self) -> Work:
        """Return the local work of a round."""
        steps = 15 if self.steps is None and self.epochs is None else self.steps
        own = {name: value for name, value in values(self).items() if name != "rounds"}
        return Work(**{**own, "steps": steps})


@dataclass(frozen=True)
class ContributionSettings:
    """How what a client brings is measured."""

    measure: str = setting(
        "standalone", "what counts as a contribution; docs/contributions.md explains each", choices=MEASURES
    )
    on: Literal["test", "validation"] = setting(
        "test", "samples that models trained alone are measured on: test (as in the papers) or validation"
    )
    epochs: int | None = setting(
        None,
        "epochs that a client trains alone, as in the papers; none: until it stops rising on the validation set (30 "
        "where there is none)",
        minimum=1,
    )
    steps: int = setting(3000, "most steps that a client trains alone, where no epochs are given", minimum=1)
    stage: int = setting(100, "steps after which its model is scored on the validation set", minimum=1)
    patience: int = setting(5, "stages without a better model, after which it has stopped rising", minimum=1)
    permutations: int = setting(150, "random orders of clients that sampled Shapley values average over", minimum=1)
    every: int | None = setting(
        None, "rounds after which clients train alone and are measured again; none: only once, at the start", minimum=1
    )


@dataclass(frozen=True)
class RunSettings:
    """How the experiment is carried out."""

    seed: int = setting(0, "seed of everything random", minimum=0)
    engine: Literal["auto", "loop", "vectorised"] = setting("auto", "how clients are trained; auto: the faster way")
    device: Literal["auto", "cpu", "cuda"] = setting("auto", "where to compute; auto: on a GPU if there is one")
    precision: Literal["float32", "tf32", "float64"] = setting("float32", "arithmetic; tf32 affects only GPUs")
    evaluate_every: int = setting(5, "rounds between two tests of the rewards; the last ten are all tested", minimum=1)
    checkpoint_every: int | None = setting(
        None, "rounds between two checkpoints; 0: never; none: by time, so that they cost little", minimum=0
    )
    joint: bool = setting(False, "score rewards on the validation set too, for the rule 'joint'")
    held: bool = setting(False, "measure what clients hold in the end: the best they can make of all they were handed")
    metric: str = setting("accuracy", ", ".join(METRICS))
    loss: str = setting("cross_entropy", ", ".join(LOSSES))
    class_weights: Literal["balanced"] | tuple[float, ...] | None = setting(
        None,
        "what the loss of a sample of each class weighs: numbers, or balanced, as the server's validation set has them",
        minimum=0,
    )


_TABLES: dict[str, type] = {
    "federation": FederationSettings,
    "model": ModelSettings,
    "training": TrainingSettings,
    "contribution": ContributionSettings,
    "run": RunSettings,
    "participation": ParticipationSettings,
    "attack": AttackSettings,
    "defence": DefenceSettings,
}
TABLES = (*_TABLES, "method")
GIVEN = "# given in Python, not by this file:"  # begins the file of a run that lacks what it names
_WRITTEN_IF_SET = ("participation", "attack", "defence")  # most experiments do without these tables


@dataclass(frozen=True)
class Experiment:
    """Everything that decides a run."""

    federation: FederationSettings = field(default_factory=FederationSettings)
    model: ModelSettings = field(default_factory=ModelSettings)
    training: TrainingSettings = field(default_factory=TrainingSettings)
    contribution: ContributionSettings = field(default_factory=ContributionSettings)
    run: RunSettings = field(default_factory=RunSettings)
    participation: ParticipationSettings = field(default_factory=ParticipationSettings)
    attack: AttackSettings = field(default_factory=AttackSettings)
    defence: DefenceSettings = field(default_factory=DefenceSettings)
    method: Method[Any] = field(default_factory=FedAvg)

    @classmethod
    def from_dict(cls, tables: Mapping[str, Any]) -> "Experiment":
        """Read nested settings, refusing any that is unknown, of the wrong type or out of range."""
        parts: dict[str, Any] = {}
        for name, table in tables.items():
            if name not in TABLES:
                if name in methods.METHODS:
                    raise UsageError(f"'{name}' is a method: the settings of an experiment's method are method.…=….")
                raise UsageError(f"Unknown table '{name}': {nearest(name, TABLES)}")
            if not isinstance(table, Mapping):
                raise UsageError(f"'{name}' must be a table of settings, but is {table!r}.")
            if name == "method":
                own = dict(table)
                chosen = own.pop("name", "fedavg")
                if not isinstance(chosen, str):
                    raise UsageError(f"method.name must be text, but is {chosen!r}.")
                parts[name] = methods.make(chosen, own)
            else:
                parts[name] = read(_TABLES[name], table, name)
        experiment = cls(**parts)
        for key, why in experiment.federation.unused().items():
            if key in tables.get("federation", {}):
                raise UsageError(f"federation.{key} {why}: leave it out.")
        experiment.training.work()  # steps given together with epochs fail now, not in the first round
        experiment.attack.check()
        return experiment

    @classmethod
    def from_file(cls, path: Path, overrides: Iterable[str] = ()) -> "Experiment":
        """Read a TOML file, then apply overrides such as "training.lr=0.1"."""
        return cls.from_dict(override(read_file(path), overrides))

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Return all settings, resolved, as nested plain values; rarely used tables only if they are set."""
        off = [name for name in _WRITTEN_IF_SET if getattr(self, name) == _TABLES[name]()]
        tables = {name: values(getattr(self, name)) for name in _TABLES if name not in off}
        for key in self.federation.unused():
            del tables["federation"][key]
        if self.contribution.every is None:
            del tables["contribution"]["every"]
        if not self.run.held:
            del tables["run"]["held"]
        tables["training"]["steps"] = self.training.work().steps
        tables["method"] = {"name": self.method.name, **values(self.method)}
        return {name: {key: _plain(value) for key, value in table.items()} for name, table in tables.items()}

    def to_toml(self, given: Collection[str] = ()) -> str:
        """Return the resolved experiment as a TOML file; a comment names what was `given` in Python instead."""
        lines: list[str] = []
        if given:
            lines += [f"{GIVEN} {', '.join(sorted(given))}", ""]
        for name, table in self.to_dict().items():
            if name in given:
                continue
            lines.append(f"[{name}]")
            lines += [f"{key} = {_toml(value)}" for key, value in table.items()]
            lines.append("")
        return "\n".join(lines)

    def with_method(self, name: str, settings: Mapping[str, Any] | None = None) -> "Experiment":
        """Return this experiment with the method of that name and some settings; its own method keeps the others."""
        method = self.method if name == self.method.name else methods.make(name, {})
        if settings:
            own = read(type(method), {**values(method), **settings}, name)
            method = replace(method, **{key: getattr(own, key) for key in settings})  # type: ignore[type-var]
        return replace(self, method=method)

    def with_run(self, **changes: Any) -> "Experiment":
        """Return this experiment with some settings of the table `run` changed."""
        return replace(self, run=replace(self.run, **changes))


def read_file(path: Path) -> dict[str, Any]:
    """Return the tables of a TOML file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"Cannot read the experiment {path}: {error.strerror}.") from None
    except (ValueError, RecursionError) as error:  # also numbers of thousands of digits, deeply nested brackets
        raise UsageError(f"The experiment {path} is not valid TOML: {error}") from None


def override(tables: Mapping[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """Return nested settings with "table.key=value" texts applied."""
    merged = {name: dict(table) if isinstance(table, Mapping) else table for name, table in tables.items()}
    for text in overrides:
        path, separator, value = text.partition("=")
        table, _, key = path.strip().partition(".")
        if not separator or not table or not key:
            raise UsageError(f"'{text}' is not of the form table.key=value, such as training.lr=0.1.")
        own = merged.setdefault(table, {})
        if not isinstance(own, dict):
            raise UsageError(f"'{table}' must be a table of settings, but is {own!r}.")
        own[key] = parse_text(value.strip())
    return merged


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _toml(value: Any) -> str:
    if value is None:
        return '"none"'  # TOML has no null
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return '"' + "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in escaped) + '"'
    if isinstance(value, list):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    return repr(value)
