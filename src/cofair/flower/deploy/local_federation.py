"""A real federation on this machine: the folders of `cofair deploy init`, started as their owners would start them."""

import json
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from cofair.config.experiment import Experiment
from cofair.errors import RunError
from cofair.flower.ask_texts import ASK_TEXTS
from cofair.flower.deploy import keys
from cofair.flower.deploy.app import hash_of, pack_app
from cofair.flower.deploy.folders import write_folders
from cofair.flower.deploy.organiser import Organiser
from cofair.flower.deploy.participant import FILE
from cofair.flower.deploy.ports import LOOPBACK, free_port, listens
from cofair.flower.deploy.processes import Processes, program

START_SECONDS, COMMAND_SECONDS = 60.0, 60.0


class LocalFederation:
    """Starts a SuperLink and SuperNodes in a folder, and runs apps on them."""

    def __init__(self, folder: Path, experiment: Experiment, names: Sequence[str], host: str = LOOPBACK) -> None:
        """Make everybody's folders in an empty one, and start nothing yet. Participants call the server at `host`."""
        self.folder, self.port, inner_port = folder, free_port(), free_port()
        write_folders(folder / "federation", experiment, names, host, self.port, inner_port=inner_port, listen=host)
        self.organiser = Organiser(folder / "federation" / "organiser")
        (folder / "logs").mkdir(mode=0o700)
        # many processes share the cores
        self.processes = Processes(folder / "logs", {**self.organiser.environment, "OMP_NUM_THREADS": "1"})

    def participant(self, name: str) -> Path:
        """Return the folder of a participant."""
        return self.folder / "federation" / f"participant-{name}"

    def start_superlink(self) -> None:
        """Start the organiser's server and wait until participants can call it."""
        self.processes.start("superlink", ["cofair", "deploy", "superlink", str(self.organiser.folder)])
        until = time.monotonic() + START_SECONDS
        while not (listens(self.port, self.organiser.settings.listen) and listens(self.organiser.settings.inner_port)):
            self.processes.check()
            if time.monotonic() > until:
                raise RunError(f"The server is not listening on port {self.port} after {START_SECONDS:g} s.")
            time.sleep(0.1)

    def admit(self, name: str) -> None:
        """Make the key of a participant, and let the organiser admit it."""
        own = self.participant(name)
        with keys.private():
            keys.node_key(own)
            self.organiser.admit(name, own / "node.csr")
            (own / "node.crt").write_bytes((self.organiser.folder / "participants" / f"{name}.crt").read_bytes())
        self.settings(name, port=free_port())

    def settings(self, name: str, **changes: object) -> None:
        """Change settings in a participant's own file."""
        file = self.participant(name) / FILE
        lines = file.read_text(encoding="utf-8").splitlines()
        known = {key: k for k, line in enumerate(lines) for key in changes if line.startswith(f"{key} = ")}
        for key, value in changes.items():
            lines[known[key]] = f"{key} = {json.dumps(value)}"
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")

    def agree(self, name: str, apps: Collection[Path], allow: Collection[str] = tuple(ASK_TEXTS)) -> None:
        """Make a participant agree to apps, by their hashes, and to what they ask for."""
        self.settings(name, apps=[hash_of(pack_app(app)) for app in apps], allow=list(allow))

    def start_node(self, name: str, within: Sequence[str] = ()) -> None:
        """Start the SuperNode of a participant; `within` is a command that runs it elsewhere."""
        node = [program("cofair"), "deploy", "node", str(self.participant(name))]
        self.processes.start(f"node-{name}", [*within, *node])

    def write_server_settings(self, name: str = "server", **settings: Mapping[str, object] | object) -> None:
        """Write what only the server knows about a run."""
        text = "".join(f"{key} = {json.dumps(value)}\n" for key, value in settings.items())
        (self.organiser.folder / f"{name}.toml").write_text(text, encoding="utf-8")

    def run(self, app: Path | None = None, settings: str = "server") -> int:
        """Submit an app, by default the organiser's own, and return the number of its run."""
        answer = self._flower(
            "run", str(app or "app"), "here", "--format", "json", "--run-config", f"settings='{settings}'"
        )
        if not answer.get("success", False):
            raise RunError(f"Flower did not accept the app: {answer.get('error-message', answer)}")
        return int(answer["run-id"])

    def status(self, run: int) -> str:
        """Return Flower's status of a run, such as running or finished:completed."""
        answer = self._flower("list", "here", "--run-id", str(run), "--format", "json")
        runs = answer.get("runs") or [{}]
        return str(runs[0].get("status", "unknown"))

    def log(self, run: int) -> str:
        """Return the log of a run's ServerApp, which Flower keeps in the SuperLink's database."""
        return self.processes.finish("serverapp", self._command("log", str(run), "here", "--show"), COMMAND_SECONDS)

    def _command(self, *arguments: str) -> list[str]:
        return ["/bin/sh", str(self.organiser.folder / "flwr.sh"), *arguments]

    def _flower(self, *arguments: str) -> dict[str, Any]:
        return dict(json.loads(self.processes.finish(arguments[0], self._command(*arguments), COMMAND_SECONDS)))

    def __enter__(self) -> "LocalFederation":
        return self

    def __exit__(self, *_: object) -> None:
        self.processes.stop()
