"""`cofair report DIR --figures`, as a person types it."""

import shutil
import sys

import pandas as pd
import pytest

from cofair.cli import main
from cofair.config.experiment import Experiment
from cofair.runs.compare import compare

SMALL = Experiment.from_dict(
    {
        "federation": {"clients": 3},
        "model": {"hidden": [8]},
        "training": {"rounds": 3, "steps": 2, "lr": 0.1},
        "contribution": {"epochs": 2},
    }
)


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compared")
    compare(SMALL, ["cgsv", "fedsac"], 2, folder)
    return folder


@pytest.fixture
def call(monkeypatch, capsys):
    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["cofair", "report", *map(str, arguments)])
        try:
            main.main()
        except SystemExit as end:
            return int(end.code or 0), *capsys.readouterr()
        return 0, *capsys.readouterr()

    return run


def test_figures_and_table_lie_beside_the_report(compared, call):
    before = (compared / "summary.csv").read_text()
    code, out, err = call(compared, "--figures", "svg")
    assert (code, err) == (0, "")
    assert out.splitlines()[-1] == str(compared / "report.html")
    assert (compared / "figures" / "fairness_against_accuracy.svg").exists()
    assert (compared / "figures" / "fedsac_contribution_and_reward.svg").exists()
    assert "fedsac &" in (compared / "table.tex").read_text()
    assert (compared / "summary.csv").read_text() == before


def test_several_folders_have_one_summary_of_their_own(compared, call, tmp_path):
    pytest.importorskip("plotly")
    shutil.copytree(compared / "cgsv-seed0", tmp_path / "one")
    shutil.copytree(compared / "fedsac-seed1", tmp_path / "two")
    out = tmp_path / "all" / "report.html"
    code, _, err = call(tmp_path / "one", tmp_path / "two", "--out", out, "--figures", "png")
    assert (code, err) == (0, "")
    table = pd.read_csv(tmp_path / "all" / "summary.csv")
    assert list(table["method"]) == ["cgsv", "fedsac"] * 3
    assert (tmp_path / "all" / "table.tex").exists()
    assert not (tmp_path / "one" / "table.tex").exists()


def test_wrong_use_is_one_sentence(compared, call):
    code, _, err = call(compared, "--figures", "gif")
    assert (code, err) == (2, "error: Unknown kind of figure 'gif': choose one of pdf, png, svg.\n")
    code, _, err = call(compared, "--figures", "pdf", "--client", "1")
    assert code == 2
    assert "leave out --client" in err
