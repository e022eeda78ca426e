"""Folders for an organiser and for participants on machines of their own."""

import base64
import json
import re
from collections.abc import Sequence
from pathlib import Path

import cofair
from cofair.config.experiment import Experiment
from cofair.errors import UsageError
from cofair.flower.ask_texts import ASK_TEXTS
from cofair.flower.asks import asked_by
from cofair.flower.deploy import keys, texts
from cofair.flower.deploy.app import demonstration, experiment_in, hash_of, pack_app, write_app
from cofair.flower.deploy.names import check_name
from cofair.flower.deploy.organiser import FILE as ORGANISER_FILE
from cofair.flower.deploy.organiser import Organiser
from cofair.flower.deploy.participant import FILE as PARTICIPANT_FILE
from cofair.storage.folder import write_whole

_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.:-]{0,251}[A-Za-z0-9])?")
_PARTICIPANT = "participant-"


def write_folders(
    folder: Path, experiment: Experiment | None, names: Sequence[str], host: str, port: int, *,
    inner_port: int | None = None, listen: str = "0.0.0.0",  # noqa: S104  # participants come from other machines
) -> str:  # fmt: skip
    """Write the folders of a federation and return a text that says what to do next."""
    _check(folder, names, host)
    chosen = demonstration(100, None, "fedrac", 0) if experiment is None else experiment
    asked_by(chosen)  # refuses an experiment that cannot be deployed before anything is written
    with keys.private():
        return texts.NEXT.format(folder=folder, app=_write(folder, chosen, names, host, port, inner_port, listen))


def _write(
    folder: Path, chosen: Experiment, names: Sequence[str], host: str, port: int, inner_port: int | None, listen: str
) -> str:
    organiser = folder / "organiser"
    write_app(organiser / "app", chosen)
    for part in ("keys", "home", "participants"):
        (organiser / part).mkdir(mode=0o700)
    known = {
        "host": f"[{host}]" if ":" in host else host, "port": port,
        "version": cofair.__version__, "days": keys.DAYS, "clients": len(names),
        "listen": listen, "inner_port": inner_port or (port + 1 if port < 65535 else port - 1),
    }  # fmt: skip
    keys.certificates(organiser / "keys", list(dict.fromkeys([host, "localhost", "127.0.0.1"])))
    for secret in ("control.token", "superexec.secret"):
        keys.random_secret(organiser / "keys" / secret)
    _write_credential(organiser, f"127.0.0.1:{known['inner_port']}")
    _script(organiser / "superlink.sh", texts.SUPERLINK)
    _script(organiser / "flwr.sh", texts.FLWR.format(**known))
    _unit(organiser, "SuperLink", "superlink.sh", texts.AT_ONCE)
    write_whole(organiser / ORGANISER_FILE, texts.ORGANISER_SETTINGS.format(**known))
    write_whole(organiser / "server.toml", texts.SERVER_SETTINGS.format(**known))
    admit = "\n".join(f"venv/bin/cofair deploy admit {name} PATH/OF/ITS/node.csr" for name in names)
    write_whole(organiser / "STEPS.md", texts.ORGANISER.format(admit=admit, **known))
    for name in names:
        own = folder / f"{_PARTICIPANT}{name}"
        own.mkdir(mode=0o700)
        (own / "ca.crt").write_bytes((organiser / "keys" / "ca.crt").read_bytes())
        _script(own / "start.sh", texts.SUPERNODE)
        _unit(own, "SuperNode", "start.sh", texts.AFTER_A_MINUTE)
        write_whole(own / PARTICIPANT_FILE, texts.PARTICIPANT_SETTINGS.format(name=name, allow="", apps="", **known))
    return pack(folder)


def pack(folder: Path) -> str:
    """Write the organiser's app, as it is now, into every participant's folder, and return its hash.

    A participant that already has its folder must agree to the new app by writing the hash into its own settings.
    """
    Organiser(folder / "organiser")  # refuses any other folder
    app = pack_app(folder / "organiser" / "app")
    chosen, found = experiment_in(app), hash_of(app)
    asks = asked_by(chosen)
    asked = "\n".join(f"- `{name}`: {ASK_TEXTS[name]}" for name in asks)
    (folder / "organiser" / "app.fab").write_bytes(app)
    for own in sorted(folder.glob(f"{_PARTICIPANT}*/")):
        name = own.name.removeprefix(_PARTICIPANT)
        (own / "app.fab").write_bytes(app)
        write_whole(own / "experiment.toml", chosen.to_toml())
        settings = (own / PARTICIPANT_FILE).read_text(encoding="utf-8")
        settings = re.sub(r"(?m)^allow = .*$", f"allow = {json.dumps(list(asks))}", settings)
        settings = re.sub(r"(?m)^apps = .*$", f"apps = {json.dumps([found])}", settings)
        write_whole(own / PARTICIPANT_FILE, settings)
        write_whole(
            own / "STEPS.md",
            texts.PARTICIPANT.format(
                name=name, asked=asked, method=chosen.method.name, app=found, version=cofair.__version__
            ),
        )
    return found


def _check(folder: Path, names: Sequence[str], host: str) -> None:
    if folder.exists():
        raise UsageError(f"{folder} exists already: name another folder.")
    if len(names) < 2 or len(set(names)) < len(names):
        raise UsageError(f"A federation needs two or more participants with different names, not {list(names)!r}.")
    for name in names:
        check_name(name)
    if not _HOST.fullmatch(host):
        raise UsageError(f"{host!r} is neither a host name nor an address.")


def _write_credential(organiser: Path, address: str) -> None:
    """Write the organiser's credential where Flower's own command looks for it (JSON is also YAML)."""
    token = (organiser / "keys" / "control.token").read_bytes()
    known = {"authn-type": b"oidc", "oidc-access-token": token, "oidc-refresh-token": b"none"}
    stored = {
        f"flower.account-auth.{address}.{name}": base64.b64encode(value).decode() for name, value in known.items()
    }
    keys.write_secret(organiser / "home" / "credentials.yaml", json.dumps(stored, indent=1).encode())


def _unit(folder: Path, what: str, script: str, restart: str) -> None:
    name = f"cofair-{what.lower()}.service"
    write_whole(folder / name, texts.UNIT.format(unit=name, what=what, script=script, restart=restart))


def _script(path: Path, text: str) -> None:
    write_whole(path, text)
    path.chmod(0o700)
