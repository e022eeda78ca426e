"""A real federation on this machine: SuperLink and SuperNodes with TLS and node authentication, on loopback only."""

import json
import socket
import time
from collections.abc import Sequence
from pathlib import Path

from cofair.errors import RunError
from cofair.flower.deploy import keys
from cofair.flower.deploy.processes import Processes, complaint

LOOPBACK = "127.0.0.1"
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0",
    "OMP_NUM_THREADS": "1",  # many processes share the cores
}  # fmt: skip
START_SECONDS, COMMAND_SECONDS = 60.0, 60.0


class LocalFederation:
    """Starts a SuperLink and SuperNodes in a folder, and runs apps on them."""

    def __init__(self, folder: Path) -> None:
        """Make keys and settings in an empty folder; starts nothing yet."""
        self.folder, self.port = folder, free_port()
        for name in ("home", "logs", "keys"):
            (folder / name).mkdir(mode=0o700)
        keys.certificates(folder / "keys", [LOOPBACK, "localhost"])
        self._ca = str(folder / "keys" / "ca.crt")
        (folder / "home" / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "{self.address}"\n'
            f"root-certificates = {json.dumps(self._ca)}\n",
            encoding="utf-8",
        )
        self.processes = Processes(folder / "logs", {**QUIET, "FLWR_HOME": str(folder / "home")})

    @property
    def address(self) -> str:
        """Return where the SuperLink listens."""
        return f"{LOOPBACK}:{self.port}"

    def start_superlink(self) -> None:
        """Start the SuperLink and wait until it listens."""
        own = self.folder / "keys"
        self.processes.start(
            "superlink",
            [
                "flower-superlink", "--ssl-ca-certfile", self._ca, "--ssl-certfile", str(own / "server.crt"),
                "--ssl-keyfile", str(own / "server.key"), "--enable-supernode-auth", "--host", LOOPBACK,
                "--port", str(self.port), "--disable-runtime-dependency-installation",
                "--database", str(self.folder / "superlink.db"),
            ],
        )  # fmt: skip
        until = time.monotonic() + START_SECONDS
        while not listens(self.port):
            self.processes.check()
            if time.monotonic() > until:
                raise RunError(f"The SuperLink does not listen on {self.address} after {START_SECONDS:g} s.")
            time.sleep(0.1)

    def register(self, name: str) -> None:
        """Make the key of a node and register it."""
        key = keys.node_key(self.folder / "keys", name)
        command = ["flwr", "supernode", "register", f"{key}.pub", "here", "--name", name, "--format", "json"]
        text = self.processes.finish(f"register-{name}", command, COMMAND_SECONDS)
        if not json.loads(text).get("success", False):
            raise RunError(f"The key of {name!r} was not registered: {complaint(text)}")

    def start_node(self, name: str, config: str) -> None:
        """Start a SuperNode with the key of that name."""
        self.processes.start(
            f"node-{name}",
            [
                "flower-supernode", "--root-certificates", self._ca, "--superlink", self.address, "--host", LOOPBACK,
                "--port", str(free_port()), "--auth-supernode-private-key", str(self.folder / "keys" / name),
                "--node-config", config,
            ],
        )  # fmt: skip

    def run(self, app: Path, config: Sequence[str]) -> int:
        """Submit an app and return the number of its run."""
        command = ["flwr", "run", str(app), "here", "--format", "json"]
        for text in config:
            command += ["--run-config", text]
        told = json.loads(self.processes.finish("run", command, COMMAND_SECONDS))
        if not told.get("success", False):
            raise RunError(f"Flower did not take the app: {told.get('error-message', told)}")
        return int(told["run-id"])

    def status(self, run: int) -> str:
        """Return what Flower says of a run, such as running or finished:completed."""
        command = ["flwr", "list", "here", "--run-id", str(run), "--format", "json"]
        told = json.loads(self.processes.finish("list", command, COMMAND_SECONDS))
        runs = told.get("runs") or [{}]
        return str(runs[0].get("status", "unknown"))

    def log(self, run: int) -> str:
        """Return what the ServerApp of a run has logged; Flower keeps that in the SuperLink's database."""
        return self.processes.finish("serverapp", ["flwr", "log", str(run), "here", "--show"], COMMAND_SECONDS)

    def __enter__(self) -> "LocalFederation":
        return self

    def __exit__(self, *_: object) -> None:
        self.processes.stop()


def free_port() -> int:
    """Return a port of loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def listens(port: int) -> bool:
    """Tell whether somebody listens on a port of loopback."""
    with socket.socket() as probe:
        probe.settimeout(0.5)
        return probe.connect_ex((LOOPBACK, port)) == 0
