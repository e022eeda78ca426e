"""What the pages show as printed is what the commands print.

Numbers are compared as closely as another processor allows; those that take minutes, in the long tests.
"""

import contextlib
import json
import re
import sys

import pytest

from cofair.cli import console
from cofair.cli.main import main
from tests.pages import PAGES, ROOT, blocks, each, name_of, read

READ = "mean of the final ten rounds|models delivered in the end"
TITLE = re.compile(rf"(\S+), scene (\S+), \d+ clients, \d+ rounds \(({READ})\)")
NEAR = {"fairness γ": 2.0, "held γ": 2.0, "rate": 0.11}  # and a point for percentages; ten clients make a rate
README, START = ROOT / "README.md", ROOT / "docs" / "start.md"


@pytest.fixture
def cofair(capsys, monkeypatch, tmp_path):
    """Call the command line in this process and in a folder of its own; return what 80 columns show of it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(console, "PIPE_WIDTH", 80)

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["cofair", *words])
        with contextlib.suppress(SystemExit):
            main()
        captured = capsys.readouterr()
        return captured.out + captured.err

    return call


def tables(text):
    """Return the tables of a printed text: the names of columns, and rows of cells, which two spaces part."""
    lines, found = text.split("\n"), []
    for number, line in enumerate(lines):
        if line.strip() and not line.strip(" ─"):
            rows = []
            for row in lines[number + 1 :]:
                if not row.strip():
                    break
                rows += [cells(row)] if row.strip() != "…" else []
            found.append((cells(lines[number - 1]), rows))
    return found


def cells(line):
    return re.split(r" {2,}", line.strip())


def comparisons(page):
    return [text for _, text in blocks(page, "") if TITLE.match(text)]


def shown(page, data):
    """Return the one table of a comparison on a data set that a page shows."""
    (text,) = [text for text in comparisons(page) if text.startswith(data)]
    return text, *tables(text)[0]


def compare(cofair, *names):
    words = "--data", "digits", "--scene", "pow", "--methods", ",".join(names), "--rounds", "60", "--held"
    return cofair("compare", *words)


def assert_close(columns, row, printed):
    """Compare a row with the printed one: the first cell is a name, in others the first number counts."""
    assert row[0] == printed[0]
    for column, cell, other in zip(columns[1:], row[1:], printed[1:], strict=False):
        if cell == "undefined" or (row[0] == "cgsv" and column == "fairness γ"):  # its γ is noise, the pages say
            continue
        number, measured = (float(re.match(r"[+-]?[\d.]+", text)[0]) for text in (cell, other))
        assert abs(number - measured) <= NEAR.get(column, 1.0), f"{row[0]}, {column}: {cell}, now {other}"


def assert_rows_are_printed(page, printed):
    title, columns, rows = shown(page, "digits")
    now = {row[0]: row for row in tables(printed)[0][1]}
    assert title.split("\n")[0] in printed
    assert columns == tables(printed)[0][0]
    for row in rows:
        if row[0] in now:
            assert_close(columns, row, now[row[0]])


def test_the_first_table_is_what_compare_prints(cofair):
    printed = compare(cofair, "standalone", "contract")
    for page in (README, START):
        assert_rows_are_printed(page, printed)
    note = re.search(r"^    (contract, seed 0: .+) …$", read(ROOT / "docs/methods/contract.md"), re.MULTILINE)[1]
    assert note in " ".join(printed.split())


@pytest.mark.long
@pytest.mark.parametrize("page", [README, START], ids=name_of)
def test_every_row_of_the_first_table_is_what_compare_prints(page, cofair):
    assert_rows_are_printed(page, compare(cofair, *(row[0] for row in shown(page, "digits")[2])))


@each(PAGES, comparisons)
def test_comparisons_have_the_columns_that_compare_prints(page, cofair):
    quick = ["--rounds", "1", "--set", "contribution.epochs=1", "--set", "training.steps=1"]
    columns = tables(cofair("compare", "--methods", "standalone", *quick))[0][0]
    held = tables(cofair("compare", "--methods", "standalone", "--held", *quick))[0][0]
    for text in comparisons(page):
        assert tables(text)[0][0] in (columns, columns[:-1], held)


def sweep(cofair, tmp_path, *changes):
    """Run the sweep of the start page; return what the page shows and what is printed."""
    (settings,) = [text for _, text in blocks(START, "toml") if "[grid]" in text]
    (tmp_path / "sweep.toml").write_text(settings)
    (text,) = [text for _, text in blocks(START, "") if text.startswith(" scene")]
    sets = [word for change in changes for word in ("--set", change)]
    return tables(text), tables(cofair("sweep", "sweep.toml", "--out", "swept", *sets))


def test_the_sweep_prints_such_tables(cofair, tmp_path):
    """Shorter, so that numbers differ: columns and names of rows are those of the page."""
    said, printed = sweep(cofair, tmp_path, "training.rounds=2", "contribution.epochs=1", "grid.run.seed=[0, 1]")
    assert [columns for columns, _ in said] == [columns for columns, _ in printed]
    for (columns, rows), (_, now) in zip(said, printed, strict=True):
        named = 4 if columns[2] == "against" else 2
        assert [row[:named] for row in rows] == [row[:named] for row in now]


@pytest.mark.long
def test_the_sweep_prints_these_numbers(cofair, tmp_path):
    said, printed = sweep(cofair, tmp_path)
    columns, rows = said[0]
    for row, now in zip(rows, printed[0][1], strict=True):
        assert_close([columns[1], *columns[3:]], row[1:2] + row[-6:], now[1:2] + now[-6:])


def test_the_ledger_says_these_sentences(cofair, tmp_path):
    """Reliability quotes what `ledger verify` says of a changed contribution, and of a round that is missing."""
    sentences = re.findall(r"^    (error: runs/a does not say .+)$", read(ROOT / "docs/reliability.md"), re.MULTILINE)
    assert len(sentences) == 2
    (tmp_path / "experiment.toml").write_text(
        '[federation]\nclients = 4\n[method]\nname = "fedavg"\n[model]\nhidden = [8]\n'
        "[training]\nrounds = 12\nsteps = 1\n[contribution]\nepochs = 1\n"
    )
    cofair("run", "experiment.toml", "--out", "runs/a")
    for name, sentence in zip(("run.json", "history.jsonl"), sentences, strict=True):
        file = tmp_path / "runs" / "a" / name
        before = file.read_text()
        if name == "run.json":
            facts = json.loads(before)
            facts["contributions"][3] = 0.9
            file.write_text(json.dumps(facts))
        else:
            file.write_text("".join(line for line in before.splitlines(True) if json.loads(line)["round"] != 12))
        printed = " ".join(cofair("ledger", "verify", "runs/a").split())
        assert re.sub(r"0\.\d+", "#", sentence) in re.sub(r"0\.\d+", "#", printed)
        file.write_text(before)
