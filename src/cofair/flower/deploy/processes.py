"""Processes that are all stopped at the end: after success, on failure and on Ctrl-C.

Every process gets a mark in its environment, which its children inherit. At the end, every process with the mark is
stopped, because Flower's processes start others of their own.
"""

import contextlib
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from cofair.errors import RunError

MARK = "COFAIR_DEPLOYMENT"
PATIENCE = 8.0  # seconds between asking a process to end and killing it
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_FAILURE = re.compile(r"error(?!.*exit code)|fail|refus|denied|cannot|not found", re.IGNORECASE)


class Processes:
    """Starts processes, each with a log file of its own, and stops them all."""

    def __init__(self, logs: Path, environment: Mapping[str, str]) -> None:
        """Write logs to a folder."""
        self.logs, self.mark = logs, secrets.token_hex(8)
        # Flower's processes look for Flower's other commands on the path, which lacks an environment not activated
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
        self.environment = {**os.environ, "PATH": path, **environment, MARK: self.mark}
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> "Processes":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self, name: str, command: Sequence[str], **extra: str) -> subprocess.Popen[bytes]:
        """Start a process that keeps running."""
        with (self.logs / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [program(command[0]), *command[1:]], stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                env={**self.environment, **extra}, start_new_session=True,
            )  # fmt: skip
        self._running[name] = process
        return process

    def finish(self, name: str, command: Sequence[str], seconds: float) -> str:
        """Run a process to its end and return what it printed."""
        try:
            done = subprocess.run(
                [program(command[0]), *command[1:]], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, env=self.environment, timeout=seconds, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise RunError(f"{name} did not end within {seconds:g} s.") from None
        text = done.stdout.decode(errors="replace")
        with (self.logs / f"{name}.log").open("a", encoding="utf-8") as log:
            log.write(text)
        if done.returncode:
            raise RunError(f"{name} failed: {complaint(text)}")
        return text

    def check(self) -> None:
        """Raise an error if a process that should still run has ended."""
        for name, process in self._running.items():
            if process.poll() is not None:
                text = (self.logs / f"{name}.log").read_text(encoding="utf-8", errors="replace")
                raise RunError(f"{name} ended early (exit code {process.returncode}): {complaint(text)}")

    def forget(self, name: str) -> subprocess.Popen[bytes]:
        """Return a process that may now end at any time; if it does not, it is still stopped at the end."""
        return self._running.pop(name)

    def stop(self) -> None:
        """Ask all processes to end, wait a little, and kill those that did not; a second Ctrl-C does not stop this."""
        main = threading.current_thread() is threading.main_thread()
        before = signal.signal(signal.SIGINT, signal.SIG_IGN) if main else None
        try:
            self._stop()
        finally:
            if main:
                signal.signal(signal.SIGINT, before)

    def _stop(self) -> None:
        for ask in (signal.SIGTERM, signal.SIGKILL):
            until = time.monotonic() + PATIENCE
            for number in self.left():
                _signal(number, ask)
            while self.left() and time.monotonic() < until:
                time.sleep(0.05)
        for process in self._running.values():
            process.wait(timeout=PATIENCE)

    def left(self) -> list[int]:
        """Return the processes that are still running."""
        for process in self._running.values():
            process.poll()  # so that one that has ended is not taken for a running one
        marked = _marked(self.mark)
        return sorted({*marked, *[process.pid for process in self._running.values() if process.returncode is None]})


def program(name: str) -> str:
    """Return where a command of this installation is: beside Python, or on the path."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise RunError(f"The command {name!r} is missing: pip install 'cofair[flower]'.")
    return found


def complaint(text: str) -> str:
    """Return the last line of a log that mentions a failure (Flower logs more after it), or else the last line."""
    lines = [line.strip() for line in _COLOUR.sub("", text).splitlines() if line.strip()]
    complaining = [line for line in lines if _FAILURE.search(line)]
    return (complaining or lines or ["it printed nothing"])[-1]


def _marked(mark: str) -> list[int]:
    """Return the processes whose environment has a mark; without /proc, none is found and only children are known."""
    wanted, found = f"{MARK}={mark}".encode(), []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            has_mark = wanted in (entry / "environ").read_bytes().split(b"\0")
            ended = (entry / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
        except (OSError, IndexError):
            continue
        if has_mark and not ended and int(entry.name) != os.getpid():
            found.append(int(entry.name))
    return found


def _signal(number: int, ask: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(number, ask)
