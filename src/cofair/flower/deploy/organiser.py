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
    listen: str = setting("0.0.0.0", "address of this machine at which that port is open")  # noqa: S104
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
        """Return the environment of Flower's processes."""
        return environment(self.folder / "home")

    @property
    def admitted(self) -> list[str]:
        """Return the names of the admitted participants."""
        return sorted(path.stem for path in (self.folder / "participants").glob("*.crt"))

    def admit(self, name: str, request: Path) -> str:
        """Issue the certificate of a participant, register its key, and return its fingerprint.

        A participant that is already admitted with the same key gets a new certificate.
        """
        check_name(name)
        wanted = keys.read_request(request)
        key = keys.fingerprint(wanted)
        known = {other: keys.fingerprint(keys.read_certificate(self._file(other, "crt"))) for other in self.admitted}
        if known.get(name, key) != key:
            raise UsageError(
                f"There is already a participant {name!r} with another key: 'cofair deploy remove' removes it."
            )
        if other := next((other for other in known if known[other] == key and other != name), None):
            raise UsageError(f"This is the key of participant {other!r}: each participant needs a key of its own.")
        self._register(name, keys.flower_key(wanted))
        keys.write_certificate(self._file(name, "crt"), keys.issue_certificate(self.folder / "keys", wanted, name))
        self.write_proxy()
        return key

    def _register(self, name: str, key: bytes) -> None:
        """Register a key with Flower, unless that was done before."""
        public = self._file(name, "pub")
        if self._file(name, "node").exists() and public.read_bytes().strip() == key:
            return
        public.write_bytes(key + b"\n")
        answer = self._flower("supernode", "register", str(public), "here", "--name", name, "--format", "json")
        if not answer.get("success", False):
            public.unlink()
            reason = " ".join(str(answer.get("error-message", answer)).split())
            hint = ", which was removed before and needs a new one" if "already in use" in reason else ""
            raise RunError(f"Flower does not accept the key of {name!r}{hint} ({reason}).")
        self._file(name, "node").write_text(str(answer["node-id"]), encoding="ascii")

    def remove(self, name: str) -> None:
        """Stop admitting a participant."""
        check_name(name)
        if not self._file(name, "node").exists():
            raise UsageError(f"There is no participant {name!r}; admitted: {', '.join(self.admitted) or 'nobody'}.")
        self._file(name, "crt").unlink(missing_ok=True)
        self.write_proxy()  # first of all: from now on none of its calls is let through
        node = self._file(name, "node").read_text(encoding="ascii")
        answer = self._flower("supernode", "unregister", node, "here", "--format", "json")
        if not answer.get("success", False):
            reason = answer.get("error-message", answer)
            raise RunError(f"{name} is no longer admitted, but is still registered with Flower: {reason}")
        for ending in ("node", "pub"):
            self._file(name, ending).unlink()

    def write_proxy(self) -> None:
        """Write the proxy's configuration, and reload it if the proxy is running."""
        proxy.write(self.folder, self.settings.listen, self.settings.port, self.settings.inner_port)
        self._nginx("-t", "-q")
        if proxy.is_running(self.folder):
            self._nginx("-s", "reload")

    def _nginx(self, *arguments: str) -> None:
        command = proxy.command(self.folder, *arguments)
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
        if done.returncode:
            emergencies = [line for line in done.stderr.splitlines() if "[emerg]" in line]
            reason = complaint(emergencies[0] if emergencies else done.stderr)
            raise RunError(f"nginx refuses its configuration: {reason}")

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
            raise RunError(f"Flower's SuperLink did not answer within {_SECONDS:g} s: is it running?") from None
        try:
            answer = json.loads(done.stdout)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise RunError(f"Flower failed: {complaint(done.stdout + done.stderr)} (is the SuperLink running?)")
        return answer
