"""The environment of Flower's processes on both sides, and a filter for what they log."""

import logging
import os
import re
import sys
from pathlib import Path

from cofair.flower.printable_text import printable

_LOOPBACK = "127.0.0.1,localhost"
_LONGEST = 2000  # characters of a line


def environment(home: Path) -> dict[str, str]:
    """Return the environment of Flower's processes: no telemetry, a home folder, and no proxy on loopback.

    A proxy that the machine needs for the outside world would otherwise see what its own processes send each other,
    including tokens.
    """
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    direct = ",".join(filter(None, [_LOOPBACK, os.environ.get("NO_PROXY") or os.environ.get("no_proxy")]))
    return {
        "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0",
        "FLWR_HOME": str(home), "PATH": path, "NO_PROXY": direct, "no_proxy": direct,
    }  # fmt: skip


class PrintableFilter(logging.Filter):
    """Removes control characters from what others have sent before it reaches a terminal or a log.

    Flower logs names and reasons as they came. Its own messages may have several lines: all but the first are
    indented, so that none of them looks like a message of its own.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Clean a record, and let it pass."""
        lines = re.split(r"[\r\n]+", record.getMessage())
        record.msg, record.args = "\n    ".join(printable(line, _LONGEST) for line in lines), ()
        if record.exc_info:
            record.exc_text = None
        return True


def print_safely() -> None:
    """Let everything that Flower logs in this process go through `PrintableFilter`."""
    logger = logging.getLogger("flwr")
    for place in (logger, *logger.handlers):
        place.addFilter(PrintableFilter())
