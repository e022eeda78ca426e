"""Ports of this machine: which are free, which are taken."""

import socket

from cofair.errors import UsageError

LOOPBACK = "127.0.0.1"


def free_port() -> int:
    """Return a port of loopback that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def listens(port: int, host: str = LOOPBACK) -> bool:
    """Return whether something listens on a port of this machine."""
    with socket.socket() as probe:
        probe.settimeout(0.5)
        return probe.connect_ex((host, port)) == 0


def refuse_taken(port: int, host: str, setting: str) -> None:
    """Refuse a port that something already listens on; `setting` says where it is set."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            reason = (error.strerror or "it cannot be used").lower()
            raise UsageError(f"Port {port} of {host} cannot be opened ({reason}): set another in {setting}.") from None
