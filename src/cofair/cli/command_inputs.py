"""What commands do before any training: load methods, build the experiment, refuse options that contradict."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cofair.errors import UsageError, nearest

if TYPE_CHECKING:
    from cofair.config.experiment import Experiment


def load_methods(files: Sequence[Path] | None) -> None:
    """Register the methods of installed packages and of a user's files."""
    from cofair.methods import load_file, load_installed

    load_installed()
    for file in files or ():
        load_file(file)


def experiment_of(path: Path | None, options: dict[str, Any], changes: Sequence[str] | None) -> "Experiment":
    """Return an experiment from a file, command-line options and --set, in rising priority."""
    from cofair.config.experiment import Experiment, override, read_file
    from cofair.config.python_call import refuse_given

    values = {} if path is None else read_file(path)
    if path is not None:
        refuse_given(path, values)
    for key, value in options.items():
        if value is not None:
            table, _, name = key.partition(".")
            own = values.setdefault(table, {})
            if isinstance(own, dict):
                own[name] = value
    return Experiment.from_dict(override(values, changes or ()))


def of_methods(changes: Sequence[str] | None, compared: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """Divide what --set changes into settings of the experiment, and those of single methods that are compared."""
    from cofair.config.experiment import TABLES, override
    from cofair.methods import METHODS

    shared, own = [], []
    for text in changes or ():
        table = text.partition("=")[0].partition(".")[0].strip()
        if table in TABLES or "." not in text.partition("=")[0]:
            shared.append(text)
        elif table in compared:
            own.append(text)
        elif table in METHODS:
            raise UsageError(f"--set {text} is for '{table}', which is not compared: add it to --methods.")
        else:
            raise UsageError(f"Unknown table or method '{table}': {nearest(table, (*TABLES, *compared))}")
    return shared, override({}, own)


def table_options(data: str | None, label: str | None, by: str | None, leave_out: str | None) -> dict[str, Any]:
    """Return the options that say which data, and what the columns of a table mean."""
    return {
        "federation.data": data, "federation.label": label, "federation.by": by,
        "federation.leave_out": names_in(leave_out) or None,
    }  # fmt: skip


def names_in(text: str | None) -> tuple[str, ...]:
    """Return names that are separated by commas."""
    return tuple(name.strip() for name in (text or "").split(",") if name.strip())


def check_rule(rule: str, valid: Sequence[str]) -> None:
    """Refuse a rule that the command does not know."""
    if rule not in valid:
        raise UsageError(f"Unknown rule {rule!r}: valid are {', '.join(valid)}")


def check_resume(resume: bool, out: Path | None, overwrite: bool) -> None:
    """Refuse to resume without a folder, or what is to be overwritten."""
    if resume and out is None:
        raise UsageError("--resume continues what is in a folder: name it with --out.")
    if resume and overwrite:
        raise UsageError("--resume keeps what is there and --overwrite replaces it: choose one.")
