"""Errors whose message is one sentence: what was wrong, where, and what would be right."""

import difflib
import re
from collections.abc import Iterable

# what other libraries call it
_MEANT = {
    "gpu": "cuda", "learning_rate": "lr", "num_rounds": "rounds", "local_steps": "steps", "local_epochs": "epochs",
    "optimizer": "optimiser", "grad_clip": "clip", "max_grad_norm": "clip", "num_clients": "clients",
}  # fmt: skip
_LISTED = 40  # names; a sentence has no room for more
_SHORT = 3  # letters: a replaced one makes another word


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
    """Return the end of an error about an unknown name: the valid one that was meant, or all of them.

    Only what may be a misspelling is suggested: `weight_decay` is not `decay`, and `gpu` is not `cpu`.
    """
    valid = list(valid)
    meant = _MEANT.get(name.casefold())
    close = [meant] if meant in valid else [one for one in valid if _may_be(one, name)]
    if close:
        best = max(close, key=lambda one: _likeness(one, name))
        return f"did you mean {best!r}?"
    more = f", … ({len(valid)} in all)" if len(valid) > _LISTED else ""
    return f"choose one of {', '.join(valid[:_LISTED])}{more}."


def _may_be(valid: str, name: str) -> bool:
    """Say whether a name may be a misspelling: word by word, and in all, it is nearly the same."""
    whole, words = [re.sub(r"[^\w]|_", "", one) for one in (valid, name)], [_words(one) for one in (valid, name)]
    if len(words[0]) != len(words[1]):
        return _likeness(*whole) >= 0.9  # a separator was left out, or put in
    return all(_like(*pair) for pair in zip(*words, strict=True))


def _like(valid: str, word: str) -> bool:
    """Say whether a word may be a misspelling of another: another number is not, nor is one of three other letters."""
    if valid.isdigit() and word.isdigit():
        return valid == word
    if max(len(valid), len(word)) <= _SHORT:
        return sorted(valid.casefold()) == sorted(word.casefold()) or _likeness(valid, word) >= 0.75
    return _likeness(valid, word) >= 0.6


def _words(name: str) -> list[str]:
    return re.split(r"[^\w]|_", name)


def _likeness(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one.casefold(), other.casefold()).ratio()
