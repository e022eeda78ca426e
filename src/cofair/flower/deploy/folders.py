"""Folders for an organiser and for participants on machines of their own."""

import re
from collections.abc import Sequence
from pathlib import Path

import cofair
from cofair.errors import UsageError
from cofair.flower.asks import asked_by
from cofair.flower.deploy import keys, texts
from cofair.flower.deploy.app import write_app
from cofair.flower.deploy.demo import experiment as demonstration
from cofair.flower.explained import EXPLAINED
from cofair.runs.experiment import Experiment
from cofair.runs.folder import write_whole

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.:-]{0,251}[A-Za-z0-9])?")


def write_folders(folder: Path, experiment: Path | None, names: Sequence[str], host: str, port: int) -> str:
    """Write the folders of a federation and return what to do next."""
    _check(folder, names, host)
    clients = len(names)
    chosen = demonstration(100, clients, "fedrac", 0) if experiment is None else Experiment.from_file(experiment)
    asks = asked_by(chosen)
    organiser = folder / "organiser"
    write_app(organiser / "app", chosen, clients)
    for part in ("keys", "home", "public-keys"):
        (organiser / part).mkdir(mode=0o700)
    keys.certificates(organiser / "keys", list(dict.fromkeys([host, "localhost", "127.0.0.1"])))
    known = {"host": host, "port": port, "version": cofair.__version__, "days": keys.DAYS}
    _script(organiser / "superlink.sh", texts.SUPERLINK.format(**known))
    _script(organiser / "flwr.sh", texts.FLWR.format(**known))
    _unit(organiser, "SuperLink", "superlink.sh", texts.AT_ONCE)
    register = "\n".join(f"sh flwr.sh supernode register public-keys/{name}.pub here --name {name}" for name in names)
    write_whole(organiser / "STEPS.md", texts.ORGANISER.format(register=register, **known))
    asked = "\n".join(f"- `{name}`: {EXPLAINED[name]}" for name in asks)
    for name in names:
        own = folder / f"participant-{name}"
        own.mkdir()
        (own / "ca.crt").write_bytes((organiser / "keys" / "ca.crt").read_bytes())
        write_whole(own / "experiment.toml", chosen.to_toml())
        write_whole(own / "settings.sh", texts.SETTINGS.format(name=name, allow=" ".join(asks), **known))
        _script(own / "start.sh", texts.SUPERNODE)
        _unit(own, "SuperNode", "start.sh", texts.AFTER_A_MINUTE)
        method = chosen.method.name
        write_whole(own / "STEPS.md", texts.PARTICIPANT.format(name=name, asked=asked, method=method, **known))
    return texts.NEXT.format(folder=folder)


def _check(folder: Path, names: Sequence[str], host: str) -> None:
    if folder.exists():
        raise UsageError(f"{folder} exists already: name another folder.")
    if len(names) < 2 or len(set(names)) < len(names):
        raise UsageError(f"A federation needs two or more participants of different names, but got {list(names)!r}.")
    for name in names:
        if not _NAME.fullmatch(name):
            raise UsageError(f"A participant's name is made of letters, digits and . _ -, but {name!r} is not.")
    if not _HOST.fullmatch(host):
        raise UsageError(f"{host!r} is neither a host's name nor an address.")


def _unit(folder: Path, what: str, script: str, restart: str) -> None:
    name = f"cofair-{what.lower()}.service"
    write_whole(folder / name, texts.UNIT.format(unit=name, what=what, script=script, restart=restart))


def _script(path: Path, text: str) -> None:
    write_whole(path, text)
    path.chmod(0o755)
