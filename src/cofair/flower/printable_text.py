"""Text from others, made safe to print."""


def printable(text: object, most: int = 200) -> str:
    """Return text from a participant as one short line: none of its control characters reach a log or a terminal."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in str(text)[:most])
