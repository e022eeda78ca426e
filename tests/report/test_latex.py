"""The table for papers: it is well-formed, and says what the comparison says."""

import re

import pandas as pd
import pytest

from cofair.report import latex
from cofair.report.reported_runs import comparison
from tests.report.made import made_method

FIVE = ["a", "b", "c", "d", "e"]


def frame(**columns):
    count = len(columns["method"])
    base = {"rule": ["last"] * count, "seeds": [2] * count}
    for name in ("fairness", "max", "mean", "min", "rate"):
        base |= {name: [0.5] * count, f"{name}_std": [None] * count}
    return pd.DataFrame(base | columns)


def rows(text):
    """The cells of the table's body."""
    body = text.split(r"\midrule")[1].split(r"\bottomrule")[0]
    return [re.split(r"(?<!\\)&", line.removesuffix(r"\\")) for line in body.strip().splitlines()]


def test_a_table_is_balanced_and_every_row_has_its_columns():
    text = latex.table(comparison([made_method("a & b_{%", FIVE), made_method("\\end{tabular}", FIVE)]).to_frame())
    unescaped = re.sub(r"\\[\\{}$&%#_]", "", "".join(line for line in text.splitlines(True) if line[0] != "%"))
    depth = 0
    for sign in unescaped:
        depth += (sign == "{") - (sign == "}")
        assert depth >= 0
    assert depth == 0
    assert unescaped.count("$") % 2 == 0
    assert re.findall(r"\\(begin|end)\{(\w+)\}", text) == [("begin", "tabular"), ("end", "tabular")]
    columns = re.search(r"\\begin\{tabular\}\{(\w+)\}", text)[1]
    assert [len(row) for row in rows(text)] == [len(columns), len(columns)] == [8, 8]
    assert "%" not in text.replace(r"\%", "").split("\n", 2)[2]  # a comment would swallow the rest of its row


def test_the_best_of_each_column_is_bold_as_it_is_printed():
    text = latex.table(frame(method=["a", "b", "c"], fairness=[91.04, 91.01, 90.0], max=[0.5, 0.7, 0.6]))
    cells = rows(text)
    assert [r"\mathbf" in row[1] for row in cells] == [True, True, False]  # both read 91.0
    assert [row[2].strip() for row in cells] == ["$50.0$", r"$\mathbf{70.0}$", "$60.0$"]


def test_a_reference_is_not_ranked():
    text = latex.table(frame(method=["standalone", "b", "c"], fairness=[100.0, 80.0, 70.0]), ["standalone"])
    assert [r"\mathbf" in row[1] for row in rows(text)] == [False, True, False]


def test_spread_over_seeds_and_what_is_undefined():
    text = latex.table(
        frame(method=["a", "b"], fairness=[None, 50.0], max=[0.5, 0.4], max_std=[0.0123, None], rate=[0.25, 0.5])
    )
    first, second = rows(text)
    assert first[1].strip() == "--"
    assert first[2].strip() == r"$\mathbf{50.0} \pm 1.2$"
    assert second[2].strip() == "$40.0$"
    assert second[5].strip() == r"$\mathbf{0.50}$"


def test_one_method_alone_is_not_the_best():
    assert "mathbf" not in latex.table(frame(method=["a"]))


@pytest.mark.parametrize(
    ("text", "expected"),
    [("50 % of_a", r"50 \% of\_a"), ("\\x", r"\textbackslash{}x"), ("fedrac · β 5", r"fedrac $\cdot$ $\beta$ 5"),
     ("a\n\nb\x00", "a b"), ("[2] a~b^c", r"{[}2{]} a\textasciitilde{}b\textasciicircum{}c"), ("{$#&}", r"\{\$\#\&\}")],
)  # fmt: skip
def test_special_characters_are_printed_as_they_are(text, expected):
    assert latex.escaped(text) == expected


def test_tables_are_written_and_an_earlier_summary_is_kept(tmp_path):
    entries = [made_method("cgsv", FIVE), made_method("fedsac", FIVE)]
    assert [path.name for path in latex.write_tables(entries, tmp_path / "new")] == ["table.tex", "summary.csv"]
    written = pd.read_csv(tmp_path / "new" / "summary.csv")
    assert list(written["method"]) == ["cgsv", "fedsac"] * 3
    assert list(written["rule"]) == ["delivered", "delivered", "last", "last", "best", "best"]
    (tmp_path / "summary.csv").write_text("mine")
    assert [path.name for path in latex.write_tables(entries, tmp_path)] == ["table.tex"]
    assert (tmp_path / "summary.csv").read_text() == "mine"
