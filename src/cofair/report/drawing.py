"""A plot's description drawn with matplotlib at the width of a paper's column.

Fonts are embedded as TrueType. Categories have the colours of Okabe and Ito, order has those of viridis: colour-blind
readers tell both apart.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import Bbox

from cofair.report import labels
from cofair.report.plots import Band, Bars, Heat, Lines, Plot, Points

COLUMN, PAGE = 3.3, 7.0  # inches: a column of a two-column paper, and its page
OKABE_ITO = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#F0E442", "#000000")
NAMED_POINTS = 25  # more names than this hide the points
_POINTS = {"reward outside": ("D", OKABE_ITO[3])}  # shape as well as colour, for black and white prints
_BANDS = ("#DCEAF4", "#A9CDE5", "#6FA9D2")  # wide to narrow: light to dark
_LONGEST_NAME = 16
_STYLE: Any = {
    "font.family": "DejaVu Sans", "font.size": 7.5, "axes.labelsize": 7.5, "xtick.labelsize": 7, "ytick.labelsize": 7,
    "legend.fontsize": 7, "axes.linewidth": 0.6, "xtick.major.width": 0.6, "ytick.major.width": 0.6,
    "xtick.major.size": 2.5, "ytick.major.size": 2.5, "axes.spines.top": False, "axes.spines.right": False,
    "axes.axisbelow": True, "axes.unicode_minus": True, "lines.linewidth": 1.1, "legend.frameon": False,
    "figure.constrained_layout.w_pad": 0.02, "figure.constrained_layout.h_pad": 0.02,
    "pdf.fonttype": 42, "ps.fonttype": 42, "svg.fonttype": "path", "svg.hashsalt": "cofair",
    "savefig.dpi": 300, "text.usetex": False, "text.parse_math": False,  # a client called $x$ stays a name
}  # fmt: skip


def draw(plot: Plot) -> Figure:
    """Return a plot as a figure of column width; a comparison with many names takes the page's."""
    with style():
        names = max((len(mark.labels) for mark in plot.marks if isinstance(mark, Points)), default=0)
        wide = plot.key == "fairness_against_accuracy" and names > 6
        categories = _categories(plot)
        height = 2.3 + (0.055 * max(len(_short(name)) for name in categories) if _upright(categories) else 0)
        figure = Figure(figsize=(PAGE, 3.2) if wide else (COLUMN, height), layout="constrained")
        ax = figure.add_subplot()
        ax.set(xlabel=plot.x_label, ylabel=_wrapped(plot.y_label))
        _marks(ax, plot, {name: k for k, name in enumerate(categories)})
        if categories:
            _name_categories(ax, categories)
        elif not _has(plot, Points):
            ax.xaxis.set_major_locator(MaxNLocator(6, integer=True, steps=[1, 2, 5, 10]))
            ax.margins(x=0.01)
        _legend(figure, ax, plot)
        _point_names(figure, ax, plot)
        return figure


def _marks(ax: Axes, plot: Plot, place: dict[Any, int]) -> None:
    bars = [mark for mark in plot.marks if isinstance(mark, Bars)]
    bands = [mark for mark in plot.marks if isinstance(mark, Band)]
    lines = [mark for mark in plot.marks if isinstance(mark, Lines)]
    many = sum(len(mark.x) for mark in plot.marks if isinstance(mark, Points)) > 100
    ax.use_sticky_edges = not bands  # a reward on the edge of a band is seen whole
    for mark in plot.marks:
        x = [float(place.get(value, 0)) if place else float(value) for value in mark.x]
        if isinstance(mark, Lines):
            colour = _in_order(mark.order) if len(lines) > 1 else "black"
            ax.plot(x, _numbers(mark.y), color=colour, label=mark.name)
            lonely = _lonely(mark.y)
            ax.plot(
                [x[k] for k in lonely],
                [_numbers(mark.y)[k] for k in lonely],
                "o",
                color=colour,
                markersize=2,
                clip_on=False,
            )
        elif isinstance(mark, Bars):
            width, k = 0.8 / len(bars), bars.index(mark)
            colour = OKABE_ITO[0] if len(bars) == 1 else (OKABE_ITO[1], OKABE_ITO[0], *OKABE_ITO[2:])[k]
            ax.bar([v + (k - (len(bars) - 1) / 2) * width for v in x], mark.y, width, color=colour, label=mark.name)
        elif isinstance(mark, Band) and place:
            height = np.subtract(mark.high, mark.low)
            ax.bar(x, height, 0.7, mark.low, color=_BANDS[0], edgecolor=_BANDS[2], linewidth=0.5, label=mark.name)
        elif isinstance(mark, Band):
            shade = _BANDS[bands.index(mark) % len(_BANDS)]
            ax.fill_between(x, mark.low, mark.high, color=shade, linewidth=0, label=mark.name)
        elif isinstance(mark, Heat):
            _heat(ax, mark, x)
        elif isinstance(mark, Points):
            shape, colour = _POINTS.get(mark.name, ("o", OKABE_ITO[0]))
            ax.errorbar(
                x, _numbers(mark.y), xerr=mark.x_spread or None, yerr=mark.y_spread or None, fmt=shape, color=colour,
                markersize=1.8 if many else 3.5, markeredgewidth=0,
                ecolor="0.6", elinewidth=0.6, capsize=1.5, capthick=0.6, label=mark.name,
            )  # fmt: skip


def _heat(ax: Axes, mark: Heat, x: Sequence[float]) -> None:
    """Draw a cell from one tested round to the next; as pixels, for a file of a reasonable size."""
    across, up = [0.5, *(value + 0.5 for value in x)], _edges(mark.y)
    mesh = ax.pcolormesh(across, up, np.array(mark.z), cmap="viridis", vmin=0, vmax=1, rasterized=True)
    ax.yaxis.set_major_locator(MaxNLocator(6, integer=True, steps=[1, 2, 5, 10]))
    bar = ax.figure.colorbar(mesh, ax=ax, pad=0.02, aspect=30)
    bar.set_label(mark.name)
    bar.outline.set_linewidth(0)


def _edges(centres: Sequence[float]) -> list[float]:
    half = (centres[1] - centres[0]) / 2 if len(centres) > 1 else 0.5
    return [centres[0] - half, *(value + half for value in centres)]


def _legend(figure: Figure, ax: Axes, plot: Plot) -> None:
    """Explain marks next to the axes or above them, where it covers nothing."""
    lines = [mark for mark in plot.marks if isinstance(mark, Lines)]
    if len(lines) > 1:
        _clients_in_order(figure, ax, lines)
    elif len(plot.marks) > 1:
        handles, names = ax.get_legend_handles_labels()
        columns = len(names) if sum(map(len, names)) <= 40 else 2
        figure.legend(handles, names, loc="outside upper center", ncols=columns, handlelength=1.2, columnspacing=1)


def _clients_in_order(figure: Figure, ax: Axes, lines: Sequence[Lines]) -> None:
    """Name lines by a scale: the clients in the order of what they brought."""
    ranked = sorted(lines, key=lambda line: line.order or 0)
    norm = BoundaryNorm(np.arange(len(ranked) + 1) - 0.5, len(ranked))
    colours = ListedColormap([_in_order(line.order) for line in ranked])
    bar = figure.colorbar(ScalarMappable(norm, colours), ax=ax, pad=0.02, aspect=30, drawedges=False)
    bar.set_ticks(list(range(len(ranked))), labels=[_short(line.name) for line in ranked])
    bar.ax.tick_params(length=0, labelsize=7 if len(ranked) <= 16 else 6)
    bar.minorticks_off()
    bar.set_label("client, from least to most brought")
    bar.outline.set_linewidth(0)


def _name_categories(ax: Axes, names: Sequence[str]) -> None:
    """Write names below the axis, upright where they would overlap."""
    short = [_short(name) for name in names]
    ax.set_xticks(
        range(len(names)), short, rotation=90 if _upright(names) else 0, fontsize=7 if len(names) <= 24 else 5.5
    )
    ax.tick_params(axis="x", length=0)
    ax.set_xlim(-0.6, len(names) - 0.4)


def _upright(names: Sequence[str]) -> bool:
    return sum(len(_short(name)) + 2 for name in names) > 52  # characters that a column is wide for


def _point_names(figure: Figure, ax: Axes, plot: Plot) -> None:
    named = [mark for mark in plot.marks if isinstance(mark, Points) and 0 < len(mark.labels) <= NAMED_POINTS]
    if not named:
        return
    ax.margins(0.15, 0.12)
    figure.draw_without_rendering()  # the layout decides where points are, and with them where names can be
    figure.set_layout_engine("none")
    for mark in named:
        x, y = [float(value) for value in mark.x], _numbers(mark.y)
        spreads = []
        for k, at in enumerate(zip(x, y, strict=True)):
            for across, up in ((_of(mark.x_spread, k), 0.0), (0.0, _of(mark.y_spread, k))):
                ends = ax.transData.transform([(at[0] - across, at[1] - up), (at[0] + across, at[1] + up)])
                spreads.append(Bbox(ends))
        labels.place(ax, list(zip(x, y, strict=True)), [_short(name, 28) for name in mark.labels], spreads)


def _of(values: Sequence[float], k: int) -> float:
    return float(values[k]) if values else 0.0


def _numbers(values: Sequence[float | None]) -> list[float]:
    return [float("nan") if value is None else float(value) for value in values]


def _lonely(values: Sequence[float | None]) -> list[int]:
    """Return where a value has no neighbours, so that no line would show it."""
    padded = [None, *values, None]
    return [k for k, value in enumerate(values) if value is not None and padded[k] is None and padded[k + 2] is None]


def _in_order(order: float | None) -> Any:
    """Return viridis from bright (least) to dark (most), without its palest end, which is invisible on white."""
    return mpl.colormaps["viridis"](0.88 * (1 - (order or 0)))


def _short(name: str, longest: int = _LONGEST_NAME) -> str:
    """Cut a long name in its middle: most names differ at one of their ends."""
    one_line, half = " ".join(name.split()), (longest - 1) // 2
    return one_line if len(one_line) <= longest else f"{one_line[:half]}…{one_line[-half:]}"


def _wrapped(label: str) -> str:
    return label if len(label) <= 32 else label.replace(", ", ",\n", 1)


def _categories(plot: Plot) -> list[str]:
    texts = [value for mark in plot.marks for value in mark.x if isinstance(value, str)]
    return list(dict.fromkeys(texts))


def _has(plot: Plot, kind: type) -> bool:
    return any(isinstance(mark, kind) for mark in plot.marks)


@contextmanager
def style() -> Iterator[None]:
    """Draw and save in the style of these figures, and leave matplotlib's own settings as they were."""
    with mpl.rc_context(_STYLE):
        yield
