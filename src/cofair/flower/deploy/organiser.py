"""The organiser's folder: who is admitted, and how the organiser's own commands reach Flower."""

import json
import os
import subprocess
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cofair.errors import RunError, UsageError
from cofair.flower.deploy import keys, proxy
from cofair.flower.deploy.environment import environment
from cofair.flower.deploy.names import check_name
from cofair.flower.deploy.processes import complaint
from cofair.settings import read, setting

FILE = "organiser.toml"
_SECONDS = 120.0


@dataclass(frozen=True)
class OrganiserSettings:
    """Where participants find the server."""

    port: int = setting(8443, "port that participants call", minimum=1, maximum=65535)
    listen: str = setting("0.0.0.0", "address of this machine on which that port is open")  # noqa: S104
    inner_port: int = setting(8444, "port of the SuperLink itself, on 127.0.0.1 only", minimum=1, maximum=65535)


class Organiser:
    """A folder that `cofair deploy init` has written."""

    def __init__(self, folder: Path) -> None:
        """Read its settings."""
        self.folder = folder.resolve()
        try:
            given = tomllib.loads((folder / FILE).read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise UsageError(f"{folder} is not an organiser's folder: it has no {FILE}.") from None
        except (OSError, ValueError) as error:
            raise UsageError(f"Cannot read {folder / FILE}: {error}") from None
        self.settings = read(OrganiserSettings, given, FILE)

    @property
    def environment(self) -> dict[str, str]:
        """Return what Flower's processes need to know."""
        return environment(self.folder / "home")

    @property
    def admitted(self) -> list[str]:
        """Return who is admitted."""
        return sorted(path.stem for path in (self.folder / "participants").glob("*.crt"))

    def admit(self, name: str, request: Path) -> str:
        """Issue the certificate of a participant, register its key, and return its fingerprint.

        Who is admitted already, with the same key, is given a new certificate.
        """
        check_name(name)
        wanted = keys.requested(request)
        key = keys.fingerprint(wanted)
        known = {other: keys.fingerprint(keys.read_certificate(self._file(other, "crt"))) for other in self.admitted}
        if known.get(name, key) != key:
            raise UsageError(f"There is a participant {name!r} with another key: 'cofair deploy remove' takes it out.")
        if other := next((other for other in known if known[other] == key and other != name), None):
            raise UsageError(f"This is the key of participant {other!r}: each has a key of its own.")
        self._register(name, keys.flower_key(wanted))
        keys.write_certificate(self._file(name, "crt"), keys.issued(self.folder / "keys", wanted, name))
        self.write_proxy()
        return key

    def _register(self, name: str, key: bytes) -> None:
        """Register a key with Flower, unless that was done before."""
        public = self._file(name, "pub")
        if self._file(name, "node").exists() and public.read_bytes().strip() == key:
            return
        public.write_bytes(key + b"\n")
        told = self._flower("supernode", "register", str(public), "here", "--name", name, "--format", "json")
        if not told.get("success", False):
            public.unlink()
            said = " ".join(str(told.get("error-message", told)).split())
            hint = ": it was removed before, and makes a new one" if "already in use" in said else ""
            raise RunError(f"Flower does not take the key of {name!r}{hint} ({said}).")
        self._file(name, "node").write_text(str(told["node-id"]), encoding="ascii")

    def remove(self, name: str) -> None:
        """Let a participant in no more."""
        check_name(name)
        if not self._file(name, "node").exists():
            raise UsageError(f"There is no participant {name!r}; admitted: {', '.join(self.admitted) or 'nobody'}.")
        self._file(name, "crt").unlink(missing_ok=True)
        self.write_proxy()  # first of all: from now on nothing of it is let through
        node = self._file(name, "node").read_text(encoding="ascii")
        told = self._flower("supernode", "unregister", node, "here", "--format", "json")
        if not told.get("success", False):
            raise RunError(f"{name} is let in no more, but is still registered: {told.get('error-message', told)}")
        for ending in ("node", "pub"):
            self._file(name, ending).unlink()

    def write_proxy(self) -> None:
        """Write the proxy's configuration, and let it read it where it is running."""
        proxy.write(self.folder, self.settings.listen, self.settings.port, self.settings.inner_port)
        self._nginx("-t", "-q")
        if proxy.is_running(self.folder):
            self._nginx("-s", "reload")

    def _nginx(self, *arguments: str) -> None:
        command = proxy.command(self.folder, *arguments)
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
        if done.returncode:
            said = [line for line in done.stderr.splitlines() if "[emerg]" in line]
            raise RunError(f"nginx refuses its configuration: {complaint(said[0] if said else done.stderr)}")

    def _file(self, name: str, ending: str) -> Path:
        return self.folder / "participants" / f"{name}.{ending}"

    def _flower(self, *arguments: str) -> dict[str, Any]:
        """Run Flower's own command with the organiser's credential."""
        try:
            done = subprocess.run(
                ["/bin/sh", str(self.folder / "flwr.sh"), *arguments], capture_output=True, text=True,
                env={**os.environ, **self.environment}, timeout=_SECONDS, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise RunError(f"Flower's SuperLink does not answer within {_SECONDS:g} s: is it running?") from None
        try:
            told = json.loads(done.stdout)
        except ValueError:
            told = None
        if not isinstance(told, dict):
            raise RunError(f"Flower failed: {complaint(done.stdout + done.stderr)} (is the SuperLink running?)")
        return told
