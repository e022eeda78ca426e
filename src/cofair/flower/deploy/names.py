"""Names that several sides must spell alike: those of participants, and the variable for the organiser's folder.

A participant's name appears in file names, in its certificate and in the proxy's configuration.
"""

import re

from cofair.errors import UsageError

ORGANISER = "COFAIR_ORGANISER"  # environment variable of the server's processes: the organiser's folder
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


def check_name(name: str) -> None:
    """Refuse a name that does not consist of letters, digits and . _ - or does not start with a letter or digit."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"A participant's name consists of letters, digits and . _ - and starts with a letter or digit, but "
            f"{name!r} does not."
        )
