"""A participant's folder: its settings, and whether it can start."""

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

from cofair.errors import UsageError
from cofair.flower.ask_texts import ASK_TEXTS
from cofair.flower.deploy import keys
from cofair.flower.deploy.names import check_name
from cofair.settings import read, setting

FILE = "settings.toml"


@dataclass(frozen=True)
class ParticipantSettings:
    """What a participant allows."""

    name: str = setting("", "name under which the organiser admitted this participant")
    superlink: str = setting("", "the organiser's server, as host:port")
    data: str = setting("data.npz", "a .npz file with the arrays x (inputs) and y (labels); relative to this folder")
    allow: tuple[str, ...] = setting(
        (), "what may be sent besides updates; an experiment that asks for more is refused"
    )
    apps: tuple[str, ...] = setting((), "SHA-256 of the apps that may run here; no other is ever started")
    port: int = setting(
        9094, "port of this machine that the SuperNode uses for itself, on 127.0.0.1 only", minimum=1, maximum=65535
    )


class Participant:
    """A folder that `cofair deploy init` has written for a participant."""

    def __init__(self, folder: Path) -> None:
        """Read its settings."""
        self.folder = folder.resolve()
        path = folder / FILE
        try:
            given = tomllib.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise UsageError(f"{folder} is not a participant's folder: it has no {FILE}.") from None
        except (OSError, ValueError) as error:
            raise UsageError(f"Cannot read {path}: {error}") from None
        self.settings = read(ParticipantSettings, given, FILE)
        check_name(self.settings.name)
        for app in self.settings.apps:
            if not re.fullmatch("[0-9a-f]{64}", app):
                raise UsageError(f"{path}: apps are SHA-256 hashes of 64 hexadecimal digits, but {app!r} is not.")
        for name in self.settings.allow:
            if name not in ASK_TEXTS:
                raise UsageError(f"{path}: allow names {name!r}: choose from {', '.join(ASK_TEXTS)}.")

    @property
    def data(self) -> Path:
        """Return where the data is."""
        return self.folder / self.settings.data

    def check(self) -> None:
        """Refuse to start if something is missing, with an error that says what to do."""
        if not (self.folder / "node.key").exists():
            raise UsageError(f"There is no node.key in {self.folder}: make it with 'venv/bin/cofair deploy key'.")
        if not (self.folder / "node.crt").exists():
            raise UsageError(
                f"There is no node.crt in {self.folder}: send node.csr to the organiser, who returns your node.crt."
            )
        if (fault := keys.certificate_fault(self.folder)) is not None:
            raise UsageError(f"node.crt cannot be used: {fault}. Ask the organiser for a new one.")
        if not self.data.exists():
            raise UsageError(f"There is no {self.data}: put your data there, or set its place in {FILE} (data).")
        if not self.settings.apps:
            raise UsageError(f"{FILE} names no app that may run here (apps): ask the organiser for the app's hash.")
