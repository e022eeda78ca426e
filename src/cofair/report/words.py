"""Numbers and lists in words."""

from collections.abc import Sequence


def count(number: int, noun: str) -> str:
    """Return "1 client", "2 clients"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def listed(names: Sequence[str], most: int | None = None) -> str:
    """Return "a, b and c"; of more than `most` names the rest is counted."""
    if most is not None and len(names) > most:
        names = [*names[:most], f"{len(names) - most:,} more"]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def data_size(number: float) -> str:
    """Return bytes in a convenient unit."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.0f} {unit}" if unit == "bytes" else f"{number:.1f} {unit}"
        number /= 1000
    return f"{number:.1f} TB"


def ranges(numbers: Sequence[int]) -> str:
    """Return "3, 5–9" for 3, 5, 6, 7, 8, 9."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(low) if low == high else f"{low}–{high}" for low, high in runs)


def signed(value: float) -> str:
    """Return a change with its sign, a true minus included, and two digits that matter."""
    return f"{'+' if value > 0 else '−' if value < 0 else ''}{abs(value):.2g}"
