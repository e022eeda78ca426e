"""`cofair report`, and the reports that `compare` and `run` leave behind."""

import sys

import pytest

from cofair.cli import report_command
from cofair.cli.main import main
from tests.report.folders import NASTY, write_comparison, write_folder
from tests.report.made import made_run

QUICK = ["--rounds", "2", "--clients", "3", "--set", "training.steps=1", "--set", "contribution.epochs=1"]


@pytest.fixture
def cofair(capsys, monkeypatch):
    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["cofair", *map(str, arguments)])
        code = 0
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def test_a_report_lies_in_the_first_folder_and_its_path_is_printed(tmp_path, cofair):
    first = write_comparison(tmp_path / "first", ["cgsv"], ["a", "b"])
    second = write_comparison(tmp_path / "second", ["fedsac"], ["a", "b"])
    assert cofair("report", first, second) == (0, f"{first / 'report.html'}\n", "")
    assert "2 methods" in (first / "report.html").read_text(encoding="utf-8")
    code, out, _ = cofair("report", first, second, "--method", "fedsac", "--out", tmp_path / "x.html")
    assert (code, out) == (0, f"{tmp_path / 'x.html'}\n")
    assert "got with fedsac" in (tmp_path / "x.html").read_text(encoding="utf-8")


def test_a_client_has_a_page_of_its_own(tmp_path, cofair):
    folder = write_folder(tmp_path / "run", made_run(["3", NASTY]))
    assert cofair("report", folder, "--client", "3")[1] == f"{folder / 'statement-3.html'}\n"
    (code, out, _) = cofair("report", folder, "--client", NASTY)
    assert code == 0
    assert out.startswith(f"{folder}/statement-script_alert_1_script-")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--client", "a"], "choose with --method"),
        (["--client", "z", "--method", "cgsv"], "There is no client 'z': the clients are a and b."),
        (["--method", "cgsw"], "did you mean 'cgsv'?"),
    ],
)
def test_wrong_names_are_one_sentence(tmp_path, cofair, arguments, words):
    folder = write_comparison(tmp_path, ["cgsv", "fedsac"], ["a", "b"])
    code, out, error = cofair("report", folder, *arguments)
    assert (code, out) == (2, "")
    assert error.startswith("error: ")
    assert words in error
    assert error.count("\n") == 1


def test_compare_and_run_end_with_the_path_of_their_report(tmp_path, cofair):
    out = tmp_path / "compared"
    code, printed, _ = cofair("compare", "--methods", "fedavg,cgsv", *QUICK, "--out", out)
    assert code == 0
    assert printed.splitlines()[-1] == f"Report: {out / 'report.html'}"
    assert (out / "report.html").exists()
    again = tmp_path / "again"
    code, printed, _ = cofair("run", out / "cgsv-seed0" / "experiment.toml", "--out", again)
    assert code == 0
    assert printed.splitlines()[-1] == f"Report: {again / 'report.html'}"


def test_without_plotly_one_line_says_how_to_get_it(tmp_path, cofair, monkeypatch):
    monkeypatch.setattr(report_command, "find_spec", lambda name: None)
    code, printed, error = cofair("compare", "--methods", "cgsv", *QUICK, "--out", tmp_path / "out")
    assert (code, error) == (0, "")
    assert printed.splitlines()[-1] == "The report needs plotly: pip install 'cofair[report]'."
    assert not (tmp_path / "out" / "report.html").exists()

    monkeypatch.setitem(sys.modules, "plotly", None)
    monkeypatch.setitem(sys.modules, "plotly.graph_objects", None)
    monkeypatch.delitem(sys.modules, "cofair.report.interactive", raising=False)
    monkeypatch.delattr("cofair.report.interactive", raising=False)
    code, printed, error = cofair("report", tmp_path / "out")
    assert (code, printed, error) == (2, "", "error: The report needs plotly: pip install 'cofair[report]'.\n")
