"""Names next to points that cover neither each other nor the points."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.transforms import Bbox

_DIRECTIONS = (0, 180, 90, 270, 35, 145, 325, 215, 65, 115, 245, 295)  # degrees; right of the point reads best
_RINGS = (4, 8, 13, 19, 26, 34, 44, 56, 70)  # points of distance; from the second, a thin line leads there
_AROUND_POINT, _AROUND_NAME = 3.5, 1.0  # points that are kept free
_SWEEPS = 4  # how often every name looks for a better place among the others
# worst first: leave the frame, cover a name or a point, lead across one, across another line, lie over an error bar
_OUTSIDE, _COVERED, _CROSSED, _TANGLED, _OVER_SPREAD, _FAR = 1e5, 2e4, 1e4, 3e3, 300.0, 10.0
_Place = tuple[float, float]


@dataclass(frozen=True)
class _Spot:
    """A place for a name, in pixels; `led` if a line has to connect it to its point."""

    box: Bbox
    point: _Place
    far: float
    led: bool

    @property
    def leader(self) -> tuple[_Place, _Place]:
        return ((self.box.x0 + self.box.x1) / 2, (self.box.y0 + self.box.y1) / 2), self.point


def place(ax: Axes, at: Sequence[_Place], names: Sequence[str], spreads: Sequence[Bbox]) -> None:
    """Write a name next to each point (data coordinates); `spreads` are the error bars' boxes in pixels."""
    canvas: Any = FigureCanvasAgg(ax.figure.get_figure(root=True))
    renderer, pixels = canvas.get_renderer(), canvas.figure.dpi / 72
    points = [(float(x), float(y)) for x, y in ax.transData.transform(list(at))]
    texts = [
        ax.annotate(
            name, where, xytext=(0, 0), textcoords="offset points", fontsize=7, annotation_clip=False, zorder=5,
            arrowprops={"arrowstyle": "-", "lw": 0.4, "color": "0.45", "shrinkA": 0, "shrinkB": 2.5},
        )
        for name, where in zip(names, at, strict=True)
    ]  # fmt: skip
    sizes = [text.get_window_extent(renderer).padded(_AROUND_NAME * pixels) for text in texts]
    chosen = _arranged(points, sizes, spreads, ax.get_window_extent(renderer), pixels)
    for text, spot in zip(texts, chosen, strict=True):
        across, up = spot.box.x0 - spot.point[0], spot.box.y0 - spot.point[1]
        text.set_position((across / pixels + _AROUND_NAME, up / pixels + _AROUND_NAME))
        if not spot.led and text.arrow_patch is not None:
            text.arrow_patch.set_visible(False)


def _arranged(
    points: Sequence[_Place], sizes: Sequence[Bbox], spreads: Sequence[Bbox], frame: Bbox, pixels: float
) -> list[_Spot]:
    """Choose a spot for every name: the crowded ones first, then all again until none finds a better one."""
    free = _AROUND_POINT * pixels
    dots = [Bbox.from_extents(x - free, y - free, x + free, y + free) for x, y in points]
    lines = [box for box in spreads if box.width or box.height]
    spots = [_spots(point, size, pixels) for point, size in zip(points, sizes, strict=True)]
    alone = [  # what a spot costs whatever the other names do
        [
            _FAR * spot.far
            + _OUTSIDE * (not _inside(spot.box, frame))
            + _COVERED * sum(bool(spot.box.overlaps(dot)) for dot in dots)
            + _OVER_SPREAD * sum(bool(spot.box.overlaps(line)) for line in lines)
            + _CROSSED * sum(spot.led and k != i and _crosses(spot.leader, dot) for k, dot in enumerate(dots))
            for spot in own
        ]
        for i, own in enumerate(spots)
    ]
    crowded_first = sorted(
        range(len(points)), key=lambda i: -sum(math.dist(points[i], other) < 40 * pixels for other in points)
    )
    chosen: dict[int, _Spot] = {}
    for _ in range(_SWEEPS):
        before = dict(chosen)
        for i in crowded_first:
            others = [spot for k, spot in chosen.items() if k != i]
            costs = [own + sum(_between(spot, o) for o in others) for own, spot in zip(alone[i], spots[i], strict=True)]
            chosen[i] = spots[i][costs.index(min(costs))]
        if chosen == before:
            break
    return [chosen[i] for i in range(len(points))]


def _spots(point: _Place, size: Bbox, pixels: float) -> list[_Spot]:
    spots = []
    for ring in _RINGS:
        for degrees in _DIRECTIONS:
            across, up = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
            # the side of the box that faces the point is at the ring's distance
            x = point[0] + across * ring * pixels + (across - 1) * size.width / 2
            y = point[1] + up * ring * pixels + (up - 1) * size.height / 2
            box = Bbox.from_bounds(x, y, size.width, size.height)
            spots.append(_Spot(box, point, ring + abs(up) + 1e-3 * degrees, ring > _RINGS[0]))
    return spots


def _between(a: _Spot, b: _Spot) -> float:
    """Return what two names cost each other."""
    cost = _COVERED * bool(a.box.overlaps(b.box))
    if a.led:
        cost += _CROSSED * _crosses(a.leader, b.box)
    if b.led:
        cost += _CROSSED * _crosses(b.leader, a.box)
    return cost + _TANGLED * (a.led and b.led and _meet(*a.leader, *b.leader))


def _inside(box: Bbox, frame: Bbox) -> bool:
    return bool(box.x0 >= frame.x0 and box.x1 <= frame.x1 and box.y0 >= frame.y0 and box.y1 <= frame.y1)


def _crosses(leader: tuple[_Place, _Place], box: Bbox) -> bool:
    """Return whether a straight line crosses a box, checked at twenty points."""
    (x0, y0), (x1, y1) = leader
    if max(x0, x1) < box.x0 or min(x0, x1) > box.x1 or max(y0, y1) < box.y0 or min(y0, y1) > box.y1:
        return False
    steps = ((k + 0.5) / 20 for k in range(20))
    return any(box.x0 <= x0 + s * (x1 - x0) <= box.x1 and box.y0 <= y0 + s * (y1 - y0) <= box.y1 for s in steps)


def _meet(a: _Place, b: _Place, c: _Place, d: _Place) -> bool:
    """Return whether two straight lines cross."""

    def turn(p: _Place, q: _Place, r: _Place) -> float:
        return (q[0] - p[0]) * (r[1] - p[1]) - (q[1] - p[1]) * (r[0] - p[0])

    return turn(a, b, c) * turn(a, b, d) < 0 and turn(c, d, a) * turn(c, d, b) < 0
