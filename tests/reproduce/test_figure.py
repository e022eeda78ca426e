import pytest
from benchmarks import pages
from matplotlib.figure import Figure

from cofair.errors import UsageError
from cofair.reproduce import figure
from cofair.reproduce.figure import Pair
from cofair.reproduce.measurements import Line, Value
from cofair.reproduce.paper_numbers import Number

CELLS = {"fairness γ": [Pair("FedAvg", -20.0, {"best": 60.0, "last": 5.0}), Pair("FedRAC", 99.0, {"best": 98.5})]}


@pytest.mark.parametrize("kind", ["png", "pdf", "svg"])
def test_a_figure_is_written_as_its_file_is_called(tmp_path, kind):
    path = tmp_path / "new folder" / f"drawn.{kind}"
    figure.write(CELLS, path)
    begins = {"png": b"\x89PNG", "pdf": b"%PDF", "svg": b"<?xml"}[kind]
    assert path.read_bytes().startswith(begins)


def test_every_number_stands_where_it_belongs_and_the_line_is_where_both_are_equal(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(Figure, "savefig", lambda self, *args, **settings: drawn.append(self))
    figure.write(CELLS, tmp_path / "drawn.png")
    (ax,) = drawn[0].axes
    line, *points = ax.lines
    assert list(line.get_xdata()) == list(line.get_ydata()) == list(ax.get_xlim()) == list(ax.get_ylim())
    found = {(float(p.get_xdata()[0]), float(p.get_ydata()[0]), p.get_markerfacecolor() != "none") for p in points}
    assert found == {(-20.0, 60.0, True), (-20.0, 5.0, False), (99.0, 98.5, True)}
    (legend,) = drawn[0].legends
    assert [text.get_text() for text in legend.get_texts()] == ["FedAvg", "FedRAC", "by best", "by last"]


def test_cells_of_one_metric_share_a_panel_and_what_is_not_measured_is_left_out():
    def line(metric, method, value):
        return Line(Number(metric, "MNIST", 10, "POW", method, 90.0, None), {"last": value, "best": None})

    measured = Value(91.0, None, 1)
    found = figure.panels(
        [
            line("max_test_accuracy_pct", "DW", measured),
            line("mean_test_accuracy_pct", "DW", None),
            line("max_test_accuracy_pct", "RR", measured),
        ]
    )
    assert found == {
        "best client's accuracy, %": [Pair("DW", 90.0, {"last": 91.0}), Pair("RR", 90.0, {"last": 91.0})],
    }


def test_methods_look_different():
    assert len({figure._look(i) for i in range(40)}) == 40


def test_a_file_of_another_kind_and_an_empty_table_are_told(tmp_path):
    with pytest.raises(UsageError, match=r"ends in .png, .pdf, .svg, not to 'drawn.gif'"):
        figure.check_kind(tmp_path / "drawn.gif")
    with pytest.raises(UsageError, match="nothing to draw"):
        figure.write({}, tmp_path / "drawn.png")
    assert not list(tmp_path.iterdir())


PAGE = """# A page
## Table 1: fairness γ

| cell | FedAVE\\|r- | FedAvg |
| --- | --- | --- |
| MNIST POW | 97.24 → 90.0 / -3.7 |  |
| MNIST CLA | 93 → – / – | -4.18 → 7.9 / – |

| another | of | three columns |
| x | 1 → 2 / 3 | 4 → 5 / 6 |

## Table 2: something else
| cell | x |
"""


def test_a_page_is_read_cell_by_cell():
    title, rows = pages.table(PAGE, 1)
    assert title == "fairness γ"
    assert pages.pairs(rows, ("best", "last")) == [
        Pair("FedAVE|r-", 97.24, {"best": 90.0, "last": -3.7}),
        Pair("FedAvg", -4.18, {"best": 7.9}),
    ]
    with pytest.raises(SystemExit, match="no Table 3"):
        pages.table(PAGE, 3)
