import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest

from cofair.results.sweep_result import grouped, paired
from tests.cli.test_cli import cofair  # noqa: F401 (a fixture)

GRID = """
[federation]
data = "digits"
clients = 3
[model]
hidden = [8]
[training]
rounds = 3
steps = 2
[contribution]
epochs = 1
[grid]
run.seed = [0, 1]
method = ["fedavg", {name = "fedsac", beta = 5}]
"""


def frame(*rows):
    columns = ["run.seed", "federation.scene", "method.name", "rule", "fairness", "max", "mean", "min", "rate"]
    return pd.DataFrame([[*row, 0.5, 0.5, 0.5] for row in rows], columns=columns)


RUNS = frame(
    (0, "pow", "a", "last", 80.0, 0.5), (1, "pow", "a", "last", 90.0, 0.6), (2, "pow", "a", "last", None, 0.7),
    (0, "pow", "b", "last", 81.0, 0.4), (1, "pow", "b", "last", 94.0, 0.5), (2, "pow", "b", "last", 99.0, 0.6),
    (0, "cla", "a", "last", 50.0, 0.5), (0, "cla", "b", "last", 40.0, 0.5),
)  # fmt: skip
VARIED = ["run.seed", "federation.scene", "method.name"]


def test_a_row_is_the_mean_over_seeds():
    table = grouped(RUNS, VARIED)
    first = table.iloc[0]
    assert (first["federation.scene"], first["method.name"], first["seeds"]) == ("pow", "a", 3)
    assert first["fairness"] == pytest.approx(85)  # a fairness that is undefined is left out
    assert first["max_std"] == pytest.approx(0.1)


def test_lists_can_be_varied(cofair, tmp_path):  # noqa: F811
    (tmp_path / "grid.toml").write_text(GRID.replace("run.seed = [0, 1]", "model.hidden = [[8], [6, 4]]"))
    done = cofair("sweep", str(tmp_path / "grid.toml"), "--out", str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    table = pd.read_csv(tmp_path / "out" / "summary.csv")
    assert set(table["model.hidden"]) == {"[8]", "[6, 4]"}


def test_a_variant_that_fails_in_every_run_leaves_the_table_of_the_others(tmp_path, cofair):  # noqa: F811
    grid, out = tmp_path / "grid.toml", tmp_path / "out"
    grid.write_text(GRID.replace('{name = "fedsac", beta = 5}', '{name = "cgsv", gamma = 1e30}'))  # it diverges
    done = cofair("sweep", str(grid), "--out", str(out))
    assert done.returncode == 1
    table, failed = done.stdout.split("failed: seed0-cgsv", 1)
    assert "fedavg" in table
    assert "cgsv" not in table
    assert "failed: seed1-cgsv-gamma1e_30: Training diverged by round 1" in failed
    assert list(pd.read_csv(out / "failures.csv")["run"]) == ["seed0-cgsv-gamma1e_30", "seed1-cgsv-gamma1e_30"]
    table = pd.read_csv(out / "summary.csv")
    assert set(table["method.name"]) == {"fedavg"}
    assert table["method.gamma"].isna().all()
    assert set(table["seeds"]) == {2}
    first, second, sentence = done.stderr.strip().splitlines()
    assert first.startswith("seed0-cgsv-gamma1e_30: Training diverged by round 1")
    assert second.startswith("seed1-cgsv-gamma1e_30: Training diverged by round 1")
    assert sentence == (
        "error: 2 of 4 runs did not finish, for the reasons above: seed0-cgsv-gamma1e_30, seed1-cgsv-gamma1e_30."
    )


def test_a_scene_that_fails_in_every_run_leaves_the_comparison_in_the_others(tmp_path, cofair):  # noqa: F811
    grid = tmp_path / "grid.toml"
    tables = 'training = [{lr = 0.1}, {lr = 1e30, decay = 0.5}]\nmethod = ["fedavg", "fedsac"]\n'
    grid.write_text(GRID.replace("epochs = 1", 'measure = "size"').partition("[grid]")[0] + "[grid]\n" + tables)
    done = cofair("sweep", str(grid), "--out", str(tmp_path / "out"), "--json")
    assert done.returncode == 1
    assert "2 of 4 runs did not finish" in done.stderr
    (first, _) = json.loads(done.stdout)["paired"]
    assert (first["method"], first["against"], first["pairs"]) == ("fedsac", "fedavg", 1)


def test_methods_are_compared_seed_by_seed_within_a_scene():
    pairs = paired(RUNS, VARIED, "last").set_index(["federation.scene", "quantity"])
    assert pairs.loc[("pow", "fairness"), "pairs"] == 2
    assert pairs.loc[("pow", "fairness"), "difference"] == pytest.approx(2.5)
    assert pairs.loc[("pow", "max"), "difference"] == pytest.approx(-0.1)
    assert pairs.loc[("cla", "fairness"), "difference"] == pytest.approx(-10)
    assert set(pairs["against"]) == {"a"}


def test_without_methods_there_is_nothing_to_compare():
    assert paired(RUNS, ["run.seed"], "last").empty


def test_a_sweep_is_run_continued_and_printed(tmp_path, cofair):  # noqa: F811
    grid, out = tmp_path / "grid.toml", tmp_path / "out"
    grid.write_text(GRID)
    done = cofair("sweep", str(grid), "--out", str(out))
    assert done.returncode == 0, done.stderr
    assert "fedsac beta 5 " in done.stdout  # and not 5.0, though fedavg has no beta
    assert sorted(path.name for path in out.iterdir() if path.is_dir()) == [
        "seed0-fedavg", "seed0-fedsac-beta5", "seed1-fedavg", "seed1-fedsac-beta5",
    ]  # fmt: skip
    assert len(pd.read_csv(out / "runs.csv")) == 8  # by two rules
    refused = cofair("sweep", str(grid), "--out", str(out))
    assert refused.returncode == 2
    (out / "seed0-fedavg" / "summary.json").unlink()
    before = (out / "seed1-fedavg" / "summary.json").stat().st_mtime_ns
    again = cofair("sweep", str(grid), "--out", str(out), "--resume", "--json")
    assert again.returncode == 0, again.stderr
    assert {row["method.name"] for row in json.loads(again.stdout)["table"]} == {"fedavg", "fedsac"}
    assert (out / "seed1-fedavg" / "summary.json").stat().st_mtime_ns == before


def test_workers_give_the_same_table_also_of_a_method_from_a_file(tmp_path, cofair):  # noqa: F811
    grid = tmp_path / "grid.toml"
    grid.write_text(GRID.replace('"fedavg",', '"fedavg", "ranked",'))
    own = Path(__file__).parents[2] / "examples" / "my_method.py"
    tables = []
    for workers in ("1", "2"):
        out = tmp_path / workers
        done = cofair("sweep", str(grid), "--load", str(own), "--out", str(out), "--workers", workers)
        assert done.returncode == 0, done.stderr
        tables.append(pd.read_csv(out / "summary.csv"))
    pd.testing.assert_frame_equal(*tables)


@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGTERM])
def test_workers_end_with_the_process_that_started_them(tmp_path, blow):
    grid = tmp_path / "grid.toml"
    grid.write_text(GRID.replace("rounds = 3", "rounds = 100000"))
    words = [sys.executable, "-m", "cofair", "sweep", str(grid), "--out", str(tmp_path / "out"), "--workers", "2"]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as sweep:
        within(60, lambda: len(children(sweep.pid)) >= 2 and any((tmp_path / "out").glob("*/history.jsonl")))
        workers = children(sweep.pid)
        sweep.send_signal(blow)
        sweep.wait(timeout=30)
    within(20, lambda: not any(running(worker) for worker in workers))


def children(pid):
    """The processes that a process started, and that are still running."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split() if running(child)]


def running(pid):
    """Whether a process runs; one that ended and that nobody asked about does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def within(seconds, condition):
    """Wait until something is so."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.1)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [("[grid]\nrun.seed = 3", "must be a list"), ("[grid", "not valid TOML"), ('[run]\nengine = "loop"', "lockstep")],
)
def test_a_grid_that_cannot_run_is_told(tmp_path, cofair, text, sentence):  # noqa: F811
    grid = tmp_path / "grid.toml"
    grid.write_text(text)
    told = cofair("sweep", str(grid), "--out", str(tmp_path / "out"))
    assert told.returncode == 2
    assert sentence in told.stderr


def test_a_sweep_has_what_a_comparison_has(tmp_path, cofair):  # noqa: F811
    """Workers, notes, trackers and a report; tests/runs/test_compare.py has the workers of a comparison."""
    grid, out = tmp_path / "grid.toml", tmp_path / "out"
    grid.write_text(GRID.replace('{name = "fedsac", beta = 5}', '"contract"'))
    done = cofair("sweep", str(grid), "--out", str(out), "--workers", "2", "--track", "tensorboard")
    assert done.returncode == 0, done.stderr
    assert f"Report: {out / 'report.html'}" in done.stdout
    assert f"Tracked: tensorboard --logdir {out / 'tensorboard'}" in done.stdout
    assert len(list((out / "tensorboard").glob("seed?-contract/events.*"))) == 2
    assert done.stderr.count("A model chosen on 143 samples") == 1


DIVERGES = [
    "--clients", "3", "--rounds", "2", "--set", "method.name=cgsv", "--set", "method.gamma=1e30", "--methods",
    "cgsv,fedavg", "--set", "contribution.measure=size",
]  # fmt: skip


def test_a_comparison_in_which_a_run_fails_prints_the_others_and_says_which(tmp_path, cofair):  # noqa: F811
    out = tmp_path / "out"
    done = cofair("compare", *DIVERGES, "--out", str(out))
    assert done.returncode == 1
    table, failed = done.stdout.split("failed: cgsv-seed0: Training diverged by round 1", 1)
    assert "fedavg" in table
    assert "cgsv" not in table
    # its own setting is named first: the others trained with the same learning rate
    assert "the cause may be method.gamma = 1e+30, by default 0.5; if not, lower training.lr" in failed
    reason, sentence = done.stderr.strip().splitlines()
    assert reason.startswith("cgsv-seed0: Training diverged by round 1")
    assert sentence == "error: 1 of 2 runs did not finish, for the reasons above: cgsv-seed0."
    assert list(pd.read_csv(out / "failures.csv")["run"]) == ["cgsv-seed0"]
    for written in ("report.html", "again.html"):
        page = (out / written).read_text()
        assert "Runs that failed" in page
        assert "method.gamma = 1e+30" in page
        assert cofair("report", str(out), "--out", str(out / "again.html")).returncode == 0
    calm = cofair("compare", *DIVERGES, "--set", "method.gamma=0.5", "--out", str(out), "--overwrite")
    assert calm.returncode == 0, calm.stderr
    assert not (out / "failures.csv").exists()
    assert "Runs that failed" not in (out / "report.html").read_text()


def test_a_run_that_fails_ends_only_itself_with_workers_and_in_json_too(cofair):  # noqa: F811
    done = cofair("compare", *DIVERGES, "--workers", "2", "--json")
    assert done.returncode == 1
    found = json.loads(done.stdout)
    assert [row["method"] for row in found["methods"]] == ["fedavg"]
    assert found["failures"]["cgsv-seed0"].startswith("Training diverged by round 1")


def test_a_sweep_in_which_everything_fails_is_an_empty_table(tmp_path, cofair):  # noqa: F811
    grid, out = tmp_path / "grid.toml", tmp_path / "out"
    grid.write_text(GRID.replace('["fedavg", {name = "fedsac", beta = 5}]', '[{name = "cgsv", gamma = 1e30}]'))
    done = cofair("sweep", str(grid), "--out", str(out), "--json")
    assert done.returncode == 1
    found = json.loads(done.stdout)
    assert found["table"] == found["paired"] == []
    assert list(found["failures"]) == ["seed0-cgsv-gamma1e_30", "seed1-cgsv-gamma1e_30"]
