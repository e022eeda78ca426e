import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from cofair.cli.main import app
from cofair.errors import UsageError


def cofair(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "cofair", *arguments], capture_output=True, text=True, timeout=300, check=False
    )


SMALL = [
    "--set",
    "federation.data=digits",
    "--set",
    "training.rounds=4",
    "--set",
    "contribution.epochs=1",
    "--seeds",
    "2",
]
TABLE = ["reproduce", "fedsac-table1", "--cells", "cifar10/pow", "--methods", "FedAvg,FedSAC"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("reproduced")
    done = cofair(*TABLE, *SMALL, "--out", str(out))
    assert done.returncode == 0, done.stderr
    assert "98.80 ± 0.20" in done.stdout
    assert "2 of 2 cells measured" in done.stdout
    return out


def test_what_is_finished_is_kept(folder):
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("summary.json")}
    assert len(before) == 4
    assert cofair(*TABLE, *SMALL, "--out", str(folder)).returncode == 0
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("summary.json")} == before


def test_a_table_can_be_shown_for_machines_and_for_pages(folder):
    lines = json.loads(cofair(*TABLE, *SMALL, "--out", str(folder), "--show", "--json").stdout)
    assert {line["published"]["method"] for line in lines} == {"FedAvg", "FedSAC"}
    assert all(line["measured"]["best"]["seeds"] == 2 for line in lines)
    page = cofair(*TABLE, *SMALL, "--out", str(folder), "--show", "--markdown").stdout
    assert page.startswith("| cell | FedAvg | FedSAC |")


def test_a_table_can_be_drawn(folder, tmp_path):
    drawn = cofair(*TABLE, *SMALL, "--out", str(folder), "--show", "--figure", str(tmp_path / "drawn.svg"))
    assert drawn.returncode == 0, drawn.stderr
    assert (tmp_path / "drawn.svg").stat().st_size > 1000
    refused = cofair(*TABLE, *SMALL, "--out", str(tmp_path / "new"), "--figure", str(tmp_path / "drawn.txt"))
    assert refused.returncode == 2
    assert "drawn.txt" in refused.stderr
    assert not (tmp_path / "new").exists()  # told before anything was computed


def test_a_run_that_fails_is_told_before_a_figure_that_nothing_can_be_drawn_in(tmp_path):
    wild = ["--set", "training.lr=1e30", "--set", "contribution.measure=size"]
    done = cofair(
        *TABLE[:-1], "FedAvg", *SMALL, *wild, "--out", str(tmp_path / "x"), "--figure", str(tmp_path / "x.png")
    )
    assert done.returncode == 1
    assert "runs did not finish" in done.stderr


def test_a_folder_with_other_settings_is_not_overwritten(folder):
    refused = cofair(*TABLE, *SMALL[:-2], "--set", "training.lr=0.07", "--seeds", "2", "--out", str(folder))
    assert refused.returncode == 2
    assert "other settings" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_what_has_other_settings_is_told_and_not_shown(folder):
    shown = cofair(*TABLE, *SMALL, "--set", "training.rounds=5", "--show", "--out", str(folder))
    assert shown.returncode == 0
    assert shown.stderr.startswith(f"4 runs in {folder} have other settings and are not shown")
    assert "cells measured" not in shown.stdout


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["cgsv-table3", "--show"], "Nothing of cgsv-table3 is kept"),
        (["cgsv-figure1", "--cells", "x"], "computed as a whole"),
        (["fedsac-table1", "--set", "run.seed=3"], "chosen by --seeds"),
    ],
)
def test_options_that_would_do_nothing_are_refused(words, sentence):
    done = CliRunner().invoke(app, ["reproduce", *words])
    assert isinstance(done.exception, UsageError)
    assert sentence in str(done.exception)


def test_times_are_measured_as_ratios():
    small = ["--cells", "mnist", "--methods", "FedAvg,CGSV(cosine),ECI"]
    done = cofair(
        "reproduce",
        "cgsv-table3",
        *small,
        *SMALL,
        "--set",
        "model.name=mlp",
        "--set",
        "federation.samples=40",
        "--seeds",
        "1",
        "--json",
    )
    assert done.returncode == 0, done.stderr
    lines = json.loads(done.stdout)
    assert {line["published"]["clients"] for line in lines} == {5, 10, 20}
    ratios = {
        (line["published"]["method"], line["published"]["clients"]): line["measured"]["measured"]["mean"]
        for line in lines
    }
    assert all(value > 0 for value in ratios.values())
    assert ratios["FedAvg", 20] < ratios["ECI", 20]  # which retrains nothing, but scores coalitions
