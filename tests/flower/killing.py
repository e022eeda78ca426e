"""Real processes as the long tests watch and kill them."""

import os
import signal
import time
from pathlib import Path

from cofair.flower.deploy.processes import MARK

# on the command lines of apps; that of a SuperExec names its kind of app as well, and has no file with a token
SERVER_APP, CLIENT_APP = ("flwr-serverapp", "--token-file"), ("flwr-clientapp", "--token-file")


def ours():
    """Return the processes of deployments, whoever started them."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            environment = (entry / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if any(part.startswith(MARK.encode() + b"=") for part in environment):
            found.add(int(entry.name))
    return found


def until(condition, seconds, what):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"{what} took more than {seconds} s"
        time.sleep(0.3)


def named(processes, *parts):
    """Return the processes of a deployment whose command line holds all of these."""
    found = []
    for number in processes.left():
        try:
            command = Path(f"/proc/{number}/cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if all(part in command for part in parts):
            found.append(number)
    return found


def kill(processes, *parts):
    """Kill processes as a power cut would, and return how many."""
    numbers = named(processes, *parts)
    for number in numbers:
        os.kill(number, signal.SIGKILL)
    return len(numbers)
