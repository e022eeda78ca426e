"""A process that another one needs: restarted when it ends, and stopped with the process that started it."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

_PATIENCE = 8.0  # seconds between asking it to end and killing it
_ENDS, _WITHIN = 5, 30.0  # a process that ends so often within so many seconds is given up


class SupervisedProcess:
    """Runs a command, watched by a thread of its own, and restarts it a second after it ends."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        """Start it."""
        self._command = [*die_with_parent("TERM"), *command]
        self._name = Path(command[0]).name
        self._environment = None if environment is None else {**os.environ, **environment}
        self._process: subprocess.Popen[bytes] | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._keep, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ask it to end, and kill it if it does not; it is not restarted."""
        self._over.set()
        if self._process is not None:
            self._signal(signal.SIGTERM)
        self._thread.join(timeout=_PATIENCE)
        if self._thread.is_alive():
            self._signal(signal.SIGKILL)

    def _keep(self) -> None:
        ends: list[float] = []
        while not self._over.is_set():
            # in a session of its own, so that Ctrl-C reaches it only through `stop`, and its children die with it
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, env=self._environment, start_new_session=True
            )
            if self._over.is_set():  # `stop` came between the check and the start
                self._signal(signal.SIGTERM)
            self._process.wait()
            self._signal(signal.SIGKILL)
            if self._over.wait(1.0):
                return
            ends = [*ends, time.monotonic()][-_ENDS:]
            print(f"{self._name} ended ({self._process.returncode}) and is restarted.", file=sys.stderr, flush=True)
            if len(ends) == _ENDS and ends[-1] - ends[0] < _WITHIN:
                print(f"{self._name} ended {_ENDS} times: its output above says why.", file=sys.stderr, flush=True)
                os.kill(
                    os.getpid(), signal.SIGTERM
                )  # nothing works without it; the supervisor of this process restarts it
                return

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)


def die_with_parent(by: str) -> list[str]:
    """Return a command prefix that makes Linux signal a process when its parent is gone; nothing on other systems."""
    found = shutil.which("setpriv")
    return [found, "--pdeathsig", by, "--"] if found else []
