"""Results in a notebook: what one sees of few and of many clients, and that names stay names."""

from html.parser import HTMLParser

from cofair.results.comparison import Comparison
from tests.report.made import made_run


class Reader(HTMLParser):
    """Collects tags, and the cells of a table."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.rows = [], [], []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag != "br":
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] in ("td", "th"):
            self.rows[-1][-1] += data


def test_a_run_shows_what_each_client_brought_and_got():
    run = made_run(["north", "<script>alert(1)</script>", "c & d"], "a<b>").outcome
    read = Reader(run._repr_html_())
    assert [row[0] for row in read.rows] == ["client", "north", "<script>alert(1)</script>", "c & d"]
    assert read.rows[1][2:] == [f"{run.contributions[0]:.3f}", f"{run.accuracies[0]:.3f}"]
    assert "script" not in read.tags
    assert read.tags.count("b") == 1  # the title's own


def test_many_clients_are_summarised():
    run = made_run([str(i) for i in range(1000)]).outcome
    read = Reader(run._repr_html_())
    assert [row[0] for row in read.rows] == [
        "1,000 clients",
        "least",
        "lower quarter",
        "median",
        "upper quarter",
        "most",
    ]
    assert read.rows[1][3] == f"{min(run.accuracies):.3f}"
    assert read.rows[5][2] == f"{max(run.contributions):.3f}"
    assert len(run._repr_html_()) < 4000


def test_a_comparison_is_one_row_a_method():
    names = ["a", "b", "c"]
    outcomes = [made_run(names, method, seed).outcome for method in ("cgsv", "<i>") for seed in (0, 1)]
    outcomes.append(made_run(names, "equal", spread=0.0).outcome)
    comparison = Comparison(tuple(outcomes))
    read = Reader(comparison._repr_html_())
    assert [row[0] for row in read.rows] == ["method", "cgsv", "<i>", "equal"]
    frame = comparison.to_frame().set_index("method")
    assert read.rows[1][2] == f"{100 * frame.loc['cgsv', 'max']:.1f} ± {100 * frame.loc['cgsv', 'max_std']:.1f}"
    assert read.rows[3][1] == "undefined"
    assert "3 methods" in comparison._repr_html_()
