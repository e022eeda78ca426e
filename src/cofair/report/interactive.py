"""The report's plots drawn with plotly; colours are those of a light page, `DARK` says what they are on a dark one."""

import html
import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import plotly.graph_objects as go

from cofair.report.plots import Band, Bars, Heat, Lines, Mark, Plot, Points

NAMED_POINTS = 25  # more names than this hide the points
_STEPS = 40  # colours of an order
_BLUE, _ORANGE, _VERMILLION, _GREEN = "#0072B2", "#E69F00", "#D55E00", "#009E73"  # Okabe and Ito
_TEXT, _MUTED, _GRID, _PAPER = "#1c2430", "#5a6473", "#e4e7ec", "#ffffff"
_RANGE, _SPREAD = "#c9def0", "#a9b2bf"
_BANDS = ("#dceaf5", "#b3d2e9", "#7fb3d9")  # from all clients to the middle half
_VIRIDIS = ("#7ad151", "#22a884", "#2a788e", "#414487", "#440154")
_IN_ORDER = ("#a5c400", *_VIRIDIS)  # from the least to the most; the palest yellow does not show on white
_IN_ORDER_DARK = ("#fde725", "#7ad151", "#2bb58f", "#4aa3cf", "#7f8cf5", "#bb86fc")
DARK = {
    _BLUE: "#56B4E9", _ORANGE: "#E69F00", _VERMILLION: "#ff8a50", _GREEN: "#2cc295", _TEXT: "#e7eaf0",
    _MUTED: "#a9b2c0", _GRID: "#2d3440", _PAPER: "#12161d", _RANGE: "#23405c", _SPREAD: "#5a6473",
    _BANDS[0]: "#1b2c3d", _BANDS[1]: "#254a69", _BANDS[2]: "#2f6d9c",
}  # fmt: skip
_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"


def dark_colours() -> dict[str, str]:
    """Return the colour on a dark page of every colour that plots have."""
    steps = [k / _STEPS for k in range(_STEPS + 1)]
    return DARK | {_scale(_IN_ORDER, at): _scale(_IN_ORDER_DARK, at) for at in steps}


def figure(plot: Plot) -> go.Figure:
    """Return a plot as a plotly figure, without its title and caption, which the page writes."""
    categories = list(dict.fromkeys(v for mark in plot.marks for v in mark.x if isinstance(v, str)))
    traces = [trace for k, mark in enumerate(plot.marks) for trace in _traces(plot, mark, k)]
    drawn = go.Figure(traces, layout=_layout(plot, categories))
    drawn.layout.template = None
    return drawn


def as_json(plot: Plot) -> dict[str, Any]:
    """Return a plot for the page's script: plain values, no more digits than a screen shows."""
    drawn: dict[str, Any] = _compact(figure(plot).to_plotly_json())
    drawn["layout"].pop("template", None)
    return drawn


def _traces(plot: Plot, mark: Mark, k: int) -> list[Any]:
    name = _text(_short(mark.name, 24))
    x = [_text(value) if isinstance(value, str) else value for value in mark.x]
    if isinstance(mark, Lines):
        colour = _BLUE if mark.order is None else _scale(_IN_ORDER, round(mark.order * _STEPS) / _STEPS)
        return [
            go.Scatter(
                x=x, y=mark.y, name=name, mode="lines", line={"color": colour, "width": 2},
                legendrank=1000 - round(100 * (mark.order or 0)), hovertemplate=f"%{{y:{_digits(plot)}}}",
            )
        ]  # fmt: skip
    if isinstance(mark, Bars):
        bars = [other for other in plot.marks if isinstance(other, Bars)]
        colour = _BLUE if len(bars) == 1 else (_ORANGE, _BLUE, _GREEN)[bars.index(mark) % 3]
        return [
            go.Bar(
                x=x, y=mark.y, name=name, marker={"color": colour, "line": {"width": 0}}, hovertemplate="%{y:.1f}",
            )
        ]  # fmt: skip
    if isinstance(mark, Band):
        return _band(plot, mark, name, x, k)
    if isinstance(mark, Heat):
        small = {"color": _MUTED, "size": 12}
        return [
            go.Heatmap(
                x=x, y=mark.y, z=mark.z, name=name, colorscale="Viridis", zmin=0, zmax=1,
                colorbar={
                    "title": {"text": name, "side": "right", "font": small}, "tickfont": small, "tickformat": ".0%",
                    "thickness": 12, "outlinewidth": 0,
                },
                hovertemplate="round %{x:.0f}, neuron %{y:.0f}: %{z:.0%} of the clients<extra></extra>",
            )
        ]  # fmt: skip
    return [_points(plot, mark, name, x)]


def _band(plot: Plot, mark: Band, name: str, x: list[Any], k: int) -> list[Any]:
    if x and isinstance(x[0], str):
        height = [high - low for low, high in zip(mark.low, mark.high, strict=True)]
        return [
            go.Bar(
                x=x, y=height, base=mark.low, name=name, marker={"color": _RANGE, "line": {"width": 0}}, width=0.6,
                customdata=mark.high, hovertemplate="%{base:.1f} to %{customdata:.1f}",
            )
        ]  # fmt: skip
    colour = _RANGE if not any(isinstance(other, Lines) for other in plot.marks) else _BANDS[k % 3]
    edge = {"width": 0, "color": colour, "shape": "linear"}
    return [
        go.Scatter(x=x, y=mark.low, mode="lines", line=edge, showlegend=False, hoverinfo="skip", legendgroup=name),
        go.Scatter(
            x=x, y=mark.high, name=name, mode="lines", line=edge, fill="tonexty", fillcolor=colour, legendgroup=name,
            customdata=mark.low, hovertemplate=f"%{{customdata:{_digits(plot)}}} to %{{y:{_digits(plot)}}}",
        ),
    ]  # fmt: skip


def _points(plot: Plot, mark: Points, name: str, x: list[Any]) -> Any:
    outside = mark.name.endswith("outside")
    named = 0 < len(mark.labels) <= NAMED_POINTS
    spread = {"color": _SPREAD, "thickness": 1, "width": 3}
    over_names = bool(x) and isinstance(x[0], str)
    labels = [_text(label) for label in mark.labels]
    hover = "%{y:.1f}" if over_names else "%{text}: %{x:.4~g}, %{y:.4~g}<extra></extra>"
    return go.Scatter(
        x=x, y=mark.y, name=name, mode="markers", text=labels or None, meta="named" if named else None,
        marker={
            "color": _VERMILLION if outside else _BLUE, "symbol": "diamond" if outside else "circle",
            "size": 9 if len(x) <= 100 else 5, "line": {"color": _PAPER, "width": 1 if len(x) <= 100 else 0},
        },
        error_x={"array": mark.x_spread, **spread} if mark.x_spread else None,
        error_y={"array": mark.y_spread, **spread} if mark.y_spread else None,
        hovertemplate=hover if labels or over_names else "%{y:.1f}",
    )  # fmt: skip


def _layout(plot: Plot, categories: Sequence[str]) -> dict[str, Any]:
    kinds = {type(mark) for mark in plot.marks}
    axis: dict[str, Any] = {
        "automargin": True, "gridcolor": _GRID, "linecolor": _GRID, "zeroline": False, "ticks": "",
        "tickfont": {"color": _MUTED, "size": 12}, "title": {"font": {"color": _MUTED, "size": 13}, "standoff": 12},
    }  # fmt: skip
    x_axis = axis | {"title": {**axis["title"], "text": plot.x_label}, "showgrid": Points in kinds and not categories}
    y_axis = axis | {"title": {**axis["title"], "text": plot.y_label}, "showgrid": Heat not in kinds}
    if categories:
        names = [_text(name) for name in categories]
        x_axis |= {"type": "category", "categoryorder": "array", "categoryarray": names, "tickvals": names}
        x_axis |= {"ticktext": [_text(_short(name)) for name in categories]}
        y_axis |= {"rangemode": "tozero"}
    elif Lines in kinds or Heat in kinds:
        rounds = [float(value) for mark in plot.marks for value in mark.x]
        few = bool(rounds) and max(rounds) - min(rounds) <= 8
        x_axis |= {"tickformat": ",d", **({"dtick": 1} if few else {"nticks": 9})}
    clients = sum(isinstance(mark, Lines) for mark in plot.marks)
    many = clients > 1 and not plot.key.startswith("client_")  # else all lines are about one client
    legend: dict[str, Any] = {"font": {"color": _TEXT, "size": 12}, "bgcolor": "rgba(0,0,0,0)"}
    if many:
        legend |= {"title": {"text": "client", "font": {"color": _MUTED, "size": 12}}, "x": 1.01, "y": 1}
    else:
        legend |= {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"}
    return {
        "height": 460 if plot.key == "fairness_against_accuracy" else 380,
        "margin": {"l": 8, "r": 12, "t": 16 if many or len(plot.marks) == 1 else 36, "b": 8},
        "paper_bgcolor": "rgba(0,0,0,0)", "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": _FONT, "size": 13, "color": _TEXT},
        "xaxis": x_axis, "yaxis": y_axis, "legend": legend, "showlegend": len(plot.marks) > 1,
        "bargap": 0.25, "bargroupgap": 0.06, "barmode": "group",
        "hovermode": "closest" if {Heat, Points} & kinds and not categories else "x unified" if clients != 1 else "x",
        "hoverlabel": {"bgcolor": _PAPER, "bordercolor": _GRID, "font": {"color": _TEXT, "size": 12}, "namelength": 40},
    }  # fmt: skip


def _digits(plot: Plot) -> str:
    return ".1f" if "%" in plot.y_label else ".3~g"


def _text(value: str) -> str:
    """Return a name escaped for plotly's own markup."""
    return html.escape(value, quote=False)


def _short(name: str, longest: int = 14) -> str:
    return name if len(name) <= longest else name[: longest - 1] + "…"


@cache
def _scale(colours: tuple[str, ...], at: float) -> str:
    """Return the colour at a place in [0, 1] of a scale."""
    place = at * (len(colours) - 1)
    k = min(int(place), len(colours) - 2)
    pairs = zip(_channels(colours[k]), _channels(colours[k + 1]), strict=True)
    return "#" + "".join(f"{round(a + (place - k) * (b - a)):02x}" for a, b in pairs)


def _channels(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def _compact(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _compact(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [_compact(item) for item in value]
    if isinstance(value, float):
        return float(f"{value:.5g}") if math.isfinite(value) else None
    return value
