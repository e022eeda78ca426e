"""Figures for papers: which files there are, and that what is drawn can be read."""

import itertools
import warnings
from string import ascii_letters, digits

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Annotation, Text
from PIL import Image

from cofair.errors import UsageError
from cofair.report import drawing, figure_files, figures
from cofair.report.plots import Band, Lines, Plot, Points
from tests.report.made import made_method

FIVE = ["a", "b", "c", "d", "e"]


def names(figure):
    return [child for child in figure.axes[0].get_children() if isinstance(child, Annotation)]


@pytest.mark.parametrize("kind", ["pdf", "png", "svg"])
def test_every_plot_of_a_report_is_a_file(tmp_path, kind):
    entries = [made_method("cgsv", FIVE), made_method("fedsac", FIVE, neurons=4)]
    written = figure_files.write_figures(entries, tmp_path, kind)
    expected = {"fairness_against_accuracy"}
    for entry in entries:
        expected |= {f"{entry.label}_{plot.key}" for plot in figures.of_method(entry)}
    assert {path.stem for path in written} == expected
    assert "fedsac_neuron_allocation" in expected
    assert all(path.parent == tmp_path / "figures" and path.suffix == f".{kind}" for path in written)
    assert all(path.stat().st_size > 1000 for path in written)


def test_fonts_are_embedded_as_true_type_and_the_caption_goes_with_the_file(tmp_path):
    written = figure_files.write_figures([made_method("cgsv", FIVE)], tmp_path, "pdf")
    content = written[0].read_bytes()
    assert b"/CIDFontType2" in content or b"/TrueType" in content
    assert b"/Type3" not in content
    assert b"/Subject" in content


def test_the_same_run_gives_the_same_file(tmp_path):
    for kind in ("pdf", "svg"):
        first, second = (
            figure_files.write_figures([made_method("cgsv", FIVE)], tmp_path / folder, kind)[0].read_bytes()
            for folder in ("one", "two")
        )
        assert first == second


def test_figures_are_as_wide_as_a_column(tmp_path):
    written = figure_files.write_figures([made_method("cgsv", FIVE)], tmp_path, "png")
    assert all(Image.open(path).width == pytest.approx(3.3 * 300, abs=1) for path in written)


def test_an_unknown_kind_is_a_sentence(tmp_path):
    with pytest.raises(UsageError, match="did you mean 'pdf'"):
        figure_files.write_figures([made_method("cgsv", FIVE)], tmp_path, "pfd")


def test_labels_of_any_characters_become_different_file_names():
    names = figure_files.safe_names(["fedrac · beta 0.5", "a/b", "a:b", "A-B", "../..", "", "γ", "x" * 300])
    assert names[:4] == ["fedrac-beta-0-5", "a-b", "a-b-2", "A-B-3"]  # some file systems know no capitals
    assert len({name.lower() for name in names}) == len(names)
    assert all(name and set(name) <= set(ascii_letters + digits + "-_") for name in names)
    assert max(map(len, names)) < 80


def test_matplotlib_keeps_its_own_settings(tmp_path):
    before = dict(mpl.rcParams)
    figure_files.write_figures([made_method("cgsv", FIVE)], tmp_path, "png")
    assert dict(mpl.rcParams) == before


@pytest.mark.parametrize(
    "clients",
    [["alone"], [f"hospital of St. Mary {i}" for i in range(20)], ["$x_{", "_b", "<script>", "a%b", "\\alpha"],
     [f"c{i}" for i in range(40)], [f"client {i}" for i in range(300)]],
    ids=["one", "long names", "odd names", "forty", "many"],
)  # fmt: skip
def test_federations_of_any_size_and_names_are_drawn_without_a_warning(tmp_path, clients):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for measure in ("standalone", "cosine"):
            entry = made_method("fedsac", clients, neurons=3, measure=measure)
            assert figure_files.write_figures([entry], tmp_path / measure, "png")


def test_long_names_stay_different():
    plot = figures.accuracy_over_rounds(made_method("cgsv", [f"hospital of St. Mary {i}" for i in range(20)]).runs[0])
    texts = [label.get_text() for label in drawing.draw(plot).axes[1].get_yticklabels()]
    assert len(set(texts)) == 20


@pytest.mark.parametrize("seed", range(6))
def test_names_of_crowded_points_cover_neither_each_other_nor_the_points(seed):
    random = np.random.default_rng(seed)
    x, y = random.normal(95, 0.4, 16), random.normal(90, 3, 16)
    labels = tuple(f"method {i}" for i in range(16))
    spread = tuple(0.1 * random.random(16))
    plot = Plot(
        "fairness_against_accuracy", "", "", "x", "y", (Points("m", tuple(x), tuple(y), labels, spread, spread),)
    )
    figure = drawing.draw(plot)
    figure.draw(FigureCanvasAgg(figure).get_renderer())
    points = figure.axes[0].transData.transform(np.column_stack([x, y]))
    texts = [Text.get_window_extent(text) for text in names(figure)]  # without the lines that lead to the points
    assert len(texts) == 16
    assert not [pair for pair in itertools.combinations(range(16), 2) if texts[pair[0]].overlaps(texts[pair[1]])]
    assert not [1 for box in texts for point in points if box.contains(*point)]


def test_a_legend_covers_no_part_of_the_axes():
    figure = drawing.draw(figures.bounds(made_method("cgsv", FIVE)))
    renderer = FigureCanvasAgg(figure).get_renderer()
    figure.draw(renderer)
    legend = figure.legends[0].get_window_extent(renderer)
    assert not legend.overlaps(figure.axes[0].get_window_extent(renderer))
    assert legend.x0 >= 0
    assert legend.x1 <= figure.bbox.x1


def test_more_points_than_can_be_named_have_no_names():
    plot = figures.contribution_and_reward(made_method("cgsv", [str(i) for i in range(100)], measure="cosine"))
    assert not names(drawing.draw(plot))


def test_a_round_between_two_gaps_is_seen_as_a_point():
    lines = (Lines("a", (1, 2, 3, 4, 5), (0.1, None, 0.3, None, 0.5), 0.0), Lines("b", (1, 2), (0.1, 0.2), 1.0))
    drawn = drawing.draw(Plot("k", "", "", "round", "y", lines)).axes[0].lines
    dots = [line for line in drawn if line.get_marker() == "o"]
    assert [len(line.get_xdata()) for line in dots] == [3, 0]


def test_rewards_inside_and_outside_differ_in_shape_and_colour():
    band = Band("what it is entitled to", ("a", "b"), (1.0, 1.0), (2.0, 2.0))
    for order in ("reward inside", "reward outside"), ("reward outside",):
        marks = tuple(Points(name, ("a",), (1.5,)) for name in order)
        figure = drawing.draw(Plot("bounds", "", "", "client", "%", (band, *marks)))
        look = {c.get_label(): (c[0].get_marker(), c[0].get_color()) for c in figure.axes[0].containers if c.get_label()
                and hasattr(c[0], "get_marker")}  # fmt: skip
        assert look["reward outside"] == ("D", "#D55E00")
        assert look.get("reward inside", ("o", "#0072B2")) == ("o", "#0072B2")


def test_where_fairness_is_undefined_for_all_there_is_no_empty_figure(tmp_path):
    entries = [made_method(name, FIVE, spread=0.0) for name in ("fedavg", "q-ffl")]
    written = figure_files.write_figures(entries, tmp_path, "png")
    assert written
    assert not [path for path in written if path.stem == "fairness_against_accuracy"]
