"""What a plot shows, said once: the page and the figures for papers draw the same descriptions."""

from dataclasses import dataclass

BARS = 40  # clients; more of them are points


@dataclass(frozen=True)
class Lines:
    """One line. `order` in [0, 1] is its place among its kind, from least to most, for its colour."""

    name: str
    x: tuple[float, ...]
    y: tuple[float | None, ...]
    order: float | None = None


@dataclass(frozen=True)
class Points:
    """Points, optionally each with a name and a spread."""

    name: str
    x: tuple[float | str, ...]
    y: tuple[float | None, ...]
    labels: tuple[str, ...] = ()
    x_spread: tuple[float, ...] = ()
    y_spread: tuple[float, ...] = ()


@dataclass(frozen=True)
class Bars:
    """One bar for each category."""

    name: str
    x: tuple[str, ...]
    y: tuple[float, ...]


@dataclass(frozen=True)
class Band:
    """The area between two curves; over categories, one range each."""

    name: str
    x: tuple[float | str, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


@dataclass(frozen=True)
class Heat:
    """Values (rows × columns) as colours."""

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    z: tuple[tuple[float, ...], ...]


Mark = Lines | Points | Bars | Band | Heat


@dataclass(frozen=True)
class Plot:
    """A plot: its marks, its labels, and a caption that says the same for readers who cannot see it."""

    key: str  # file name of the figure
    title: str
    caption: str  # what one sees, in a sentence or two with the numbers that matter
    x_label: str
    y_label: str
    marks: tuple[Mark, ...]
