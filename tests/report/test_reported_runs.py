"""ReportedRun folders as they are found: whole, interrupted, damaged, from another version."""

import json
import re

import pytest

from cofair.errors import RunError, UsageError
from cofair.report.reported_runs import read_methods, read_run
from tests.report.folders import write_comparison, write_folder
from tests.report.made import made_run


def one_sentence(error):
    text = str(error.value)
    assert text.endswith((".", "?"))
    assert "\n" not in text
    return text


def test_a_folder_reads_back_as_it_was_written(tmp_path):
    run = made_run(["a", "b"], neurons=3)
    read = read_run(write_folder(tmp_path / "run", run))
    assert read.outcome == run.outcome
    assert read.experiment == run.experiment
    assert read.finished
    assert read.missing == ()


def test_runs_of_a_comparison_are_rows_with_a_run_for_each_seed(tmp_path):
    entries = read_methods([write_comparison(tmp_path, ["fedavg", "cgsv"], ["a", "b"], seeds=3)])
    assert sorted((entry.label, len(entry.runs)) for entry in entries) == [("cgsv", 3), ("fedavg", 3)]


def test_a_folder_named_twice_counts_once(tmp_path):
    write_comparison(tmp_path, ["cgsv"], ["a", "b"], seeds=2)
    (entry,) = read_methods([tmp_path, tmp_path / "cgsv-seed0"])
    assert len(entry.runs) == 2


def test_runs_with_other_clients_are_rows_of_their_own(tmp_path):
    folders = [write_folder(tmp_path / names, made_run(list(names))) for names in ("ab", "abc")]
    entries = read_methods(folders)
    assert [len(entry.runs[0].outcome.names) for entry in entries] == [2, 3]
    assert len({entry.label for entry in entries}) == 2


def test_what_differs_is_in_the_label(tmp_path):
    slow, fast = made_run(["a", "b"]), made_run(["a", "b"])
    slow.experiment["training"]["lr"], fast.experiment["training"]["lr"] = 0.01, 0.5
    folders = [write_folder(tmp_path / "slow", slow), write_folder(tmp_path / "fast", fast)]
    assert [entry.label for entry in read_methods(folders)] == ["fedsac · lr 0.01", "fedsac · lr 0.5"]


def test_a_history_cut_in_the_middle_of_a_line_is_an_interrupted_run(tmp_path):
    run = read_run(write_folder(tmp_path / "run", made_run(["a"], rounds=range(1, 9)), records=5, cut=True))
    assert not run.finished
    assert run.outcome.history[-1].round == 5
    assert run.rounds == 8


def test_missing_rounds_are_found(tmp_path):
    run = read_run(write_folder(tmp_path / "run", made_run(["a"], rounds=(1, 2, 5, 6))))
    assert run.missing == (3, 4)


@pytest.mark.parametrize("given", ["nothing", "file", "empty"])
def test_a_folder_without_a_run_is_one_sentence(tmp_path, given):
    path = tmp_path / given
    if given == "file":
        path.write_text("")
    elif given == "empty":
        path.mkdir()
    with pytest.raises(UsageError) as error:
        read_methods([path])
    assert str(path) in one_sentence(error)


def changed_facts(**changes):
    def change(folder):
        facts = json.loads((folder / "run.json").read_text())
        (folder / "run.json").write_text(json.dumps(facts | changes))

    return change


def without(name):
    return lambda folder: (folder / name).unlink()


def with_text(name, text):
    return lambda folder: (folder / name).write_text(text)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (with_text("run.json", '{"format": 1,'), "not valid JSON"),
        (with_text("run.json", "[]"), "damaged"),
        (with_text("run.json", '{"format": 1}'), "no longer read"),
        (changed_facts(format=99, versions={"cofair": "9.1"}), "written by cofair 9.1"),
        (changed_facts(clients=["a"]), "one contribution and one size for each client"),
        (
            changed_facts(clients=["a", "b", "c"], samples=[1] * 3, contributions=[0.5] * 3),
            "run.json says that it had 3 clients",
        ),
        (with_text("experiment.toml", "[run"), "not valid TOML"),
        (without("experiment.toml"), "No such file"),
        (without("history.jsonl"), "no tested round yet"),
        (with_text("history.jsonl", ""), "no tested round yet"),
        (with_text("history.jsonl", '{"round"\n{"round": 2}\n'), "Line 1 of the history"),
    ],
)
def test_damage_is_one_sentence(tmp_path, damage, words):
    folder = write_folder(tmp_path / "run", made_run(["a", "b"]))
    damage(folder)
    with pytest.raises(RunError, match=re.escape(words)) as error:
        read_methods([folder])
    assert str(folder) in one_sentence(error)
