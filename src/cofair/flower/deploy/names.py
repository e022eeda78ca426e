"""Names that several sides must spell alike: those of participants, and where the organiser's folder is named.

A participant's name stands in file names, in its certificate and in the proxy's configuration.
"""

import re

from cofair.errors import UsageError

ORGANISER = "COFAIR_ORGANISER"  # environment variable of the server's processes: the organiser's folder
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


def check_name(name: str) -> None:
    """Refuse a name that is not letters, digits and . _ -, beginning with a letter or digit."""
    if not _NAME.fullmatch(name):
        raise UsageError(f"A participant's name is made of letters, digits and . _ -, but {name!r} is not.")
