"""Errors whose message is one sentence: what was wrong, where, and what would be right."""

import difflib
from collections.abc import Iterable


class CofairError(Exception):
    """Something that the user can fix; its text is one sentence, shown without a traceback."""

    exit_code = 1


class UsageError(CofairError, ValueError):
    """Wrong input: an unknown name, a wrong type, data of the wrong shape."""

    exit_code = 2


class RunError(CofairError, RuntimeError):
    """A correct request that failed while it was carried out: a full disk, a broken download."""


class DivergedError(RunError):
    """Training whose numbers are no longer finite; whoever knows the method's settings says what to do."""


def nearest(name: str, valid: Iterable[str]) -> str:
    """Return the end of an error about an unknown name: the nearest valid one, or all of them."""
    valid = list(valid)
    close = difflib.get_close_matches(name, valid, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"choose one of {', '.join(valid)}."
