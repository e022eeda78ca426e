"""Published against measured, as a picture: what is on the line is reproduced."""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from cofair.errors import UsageError
from cofair.report import drawing
from cofair.reproduce.measurements import Line
from cofair.storage.folder import explaining_write_errors

KINDS = (".png", ".pdf", ".svg")
_SHAPES = ("o", "s", "^", "D", "v")  # five of them and eight colours: no two methods look the same
_COLOURS = (*drawing.OKABE_ITO[:6], "#000000", "#F0E442")  # yellow, the least visible, comes last
_TITLE = 34  # letters in a line
_TITLES = {
    "fairness_pearson_x100": "fairness γ", "max_test_accuracy_pct": "best client's accuracy, %",
    "mean_test_accuracy_pct": "mean accuracy, %", "rate_alphaBCF": "rate",
}  # fmt: skip


@dataclass(frozen=True)
class Pair:
    """A cell of a table: its method, the published number, and what was measured by each rule."""

    method: str
    published: float
    measured: Mapping[str, float]


Panels = Mapping[str, Sequence[Pair]]  # by title


def panels(lines: Sequence[Line]) -> Panels:
    """Return the cells of a table that are measured, those of one metric together."""
    found: dict[str, list[Pair]] = {}
    for line in lines:
        measured = {rule: value.mean for rule, value in line.measured.items() if value is not None}
        if measured:
            title = _TITLES.get(line.published.metric, line.published.metric.replace("_", " "))
            found.setdefault(title, []).append(Pair(line.published.method, line.published.mean, measured))
    return found


def check_kind(path: Path) -> None:
    """Refuse a file type that figures cannot have, before anything is computed."""
    if path.suffix.lower() not in KINDS:
        raise UsageError(f"A figure is written to a file that ends in {', '.join(KINDS)}, not to {path.name!r}.")


def write(found: Panels, path: Path) -> None:
    """Draw panels side by side into a file: published across, measured up, a filled mark by the first rule."""
    check_kind(path)
    kind = path.suffix[1:].lower()
    methods = list(dict.fromkeys(pair.method for pairs in found.values() for pair in pairs))
    rules = list(dict.fromkeys(rule for pairs in found.values() for pair in pairs for rule in pair.measured))
    if not rules:
        raise UsageError("Nothing of this table is measured yet, so there is nothing to draw.")
    with drawing.style(), explaining_write_errors(path.parent):
        figure = Figure(figsize=(2.6 * len(found) + 1.3, 2.75), layout="constrained")
        for ax, (title, pairs) in zip(figure.subplots(1, len(found), squeeze=False)[0], found.items(), strict=True):
            _draw(ax, title, pairs, methods, rules)
        figure.legend(handles=_keys(methods, rules), loc="outside right center")
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, format=kind, dpi=200)


def _draw(ax: Axes, title: str, pairs: Sequence[Pair], methods: Sequence[str], rules: Sequence[str]) -> None:
    values = [value for pair in pairs for value in (pair.published, *pair.measured.values())]
    low, high = min(values), max(values)
    room = 0.04 * ((high - low) or 1.0)
    ends = low - room, high + room
    ax.plot(ends, ends, color="0.6", linewidth=0.8, zorder=0)
    for k, rule in reversed(list(enumerate(rules))):  # the paper's own rule on top
        for pair in pairs:
            if rule in pair.measured:
                shape, colour = _look(methods.index(pair.method))
                ax.plot(
                    pair.published, pair.measured[rule], shape, markersize=3.2, markeredgewidth=0.7,
                    markeredgecolor=colour, markerfacecolor=colour if k == 0 else "none", alpha=0.9 if k == 0 else 0.6,
                )  # fmt: skip
    ax.set(
        xlim=ends, ylim=ends, xlabel="published", ylabel="measured", title=textwrap.fill(title, _TITLE), aspect="equal"
    )
    ax.title.set_fontsize(8)


def _keys(methods: Sequence[str], rules: Sequence[str]) -> list[Line2D]:
    looks = [(*_look(i), True, method) for i, method in enumerate(methods)]
    looks += [("o", "0.3", k == 0, f"by {rule}") for k, rule in enumerate(rules)]
    return [
        Line2D(
            [], [], linestyle="none", marker=shape, markersize=3.5, markeredgecolor=colour,
            markerfacecolor=colour if filled else "none", label=label,
        )
        for shape, colour, filled, label in looks
    ]  # fmt: skip


def _look(i: int) -> tuple[str, str]:
    """Return a shape and a colour for the i-th method."""
    return _SHAPES[i % len(_SHAPES)], _COLOURS[i % len(_COLOURS)]
