"""What others say, as it may be printed."""


def printable(said: object, most: int = 200) -> str:
    """Return what a participant said as one short line: no control character of its reaches a log or a terminal."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in str(said)[:most])
