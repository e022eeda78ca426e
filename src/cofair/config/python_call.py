"""Experiment files of runs whose data or model was given in Python: what they lack, and the call that has it again."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from cofair.config.experiment import GIVEN, Experiment
from cofair.config.job import run_name
from cofair.errors import UsageError

_KEYWORDS = {"contribution": "contribution", "run": "execution", "participation": "participation",
             "attack": "attack", "defence": "defence"}  # fmt: skip


def refuse_given(path: Path, tables: Mapping[str, Any]) -> None:
    """Refuse a file that leaves out what was given in Python: its defaults are other data and another model."""
    first = path.read_text(encoding="utf-8").partition("\n")[0]
    if not first.startswith(GIVEN):
        return
    given = first.removeprefix(GIVEN).strip().split(", ")
    experiment = Experiment.from_dict(tables)
    compared = "model" not in given or path.parent.name == run_name(experiment)
    call = _comparison(path, experiment, given) if compared else _run(path, experiment, given)
    what = " and ".join(filter(None, [", ".join(given[:-1]), given[-1]]))
    raise UsageError(
        f"{path} is of a run whose {what} came from Python: there it goes on with the same, {call}. (To use its "
        "settings with data and a model that cofair names, delete the file's first line.)"
    )


def _run(path: Path, experiment: Experiment, given: Collection[str]) -> str:
    """Return the `cofair.run` of such an experiment; what was given is called by its name."""
    own = _changed(experiment.to_dict(), Experiment().with_method(experiment.method.name).to_dict())
    method = own.pop("method", {})
    words = ["model", "federation", repr(experiment.method.name)]
    if any(name.startswith("method.") for name in given):
        words[-1] = "method"
        method = {}
    words += [f"{key}={value!r}" for key, value in own.get("training", {}).items()]
    words += [
        f"{key}={own['run'].pop(key)!r}" for key in ("seed", "held", "loss", "metric") if key in own.get("run", {})
    ]
    words += [f"{name}={name}" for name in ("loss", "metric", "contributions") if name in given]
    words += [f"{keyword}={own[table]!r}" for table, keyword in _KEYWORDS.items() if own.get(table)]
    words += [f"method_settings={method!r}"] if method else []
    words += [f"out={str(path.parent)!r}", "resume=True"] if (path.parent / "run.json").exists() else []
    return f"cofair.run({', '.join(words)})"


def _comparison(path: Path, experiment: Experiment, given: Collection[str]) -> str:
    """Return the `cofair.compare` of such an experiment; what was given is called by its name."""
    words = [f"cofair.Experiment.from_file(Path({str(path)!r}))", repr([experiment.method.name])]
    words += [f"{name}={name}" for name in ("federation", "model", "loss", "metric") if name in given]
    words += [f"out={str(path.parent.parent)!r}", "resume=True"] if (path.parent / "run.json").exists() else []
    return f"cofair.compare({', '.join(words)})"


def _changed(tables: Mapping[str, Mapping[str, Any]], defaults: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    return {
        name: {key: value for key, value in table.items() if defaults.get(name, {}).get(key) != value}
        for name, table in tables.items()
        if table != defaults.get(name)
    }
