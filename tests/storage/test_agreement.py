"""A run folder beside its ledger: whoever edits one of its files is named by `ledger verify` and by the report."""

import json
import shutil
import sys

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from cofair.cli.main import app, main
from cofair.config.experiment import Experiment
from cofair.engine.protocol import Delivered
from cofair.errors import RunError
from cofair.report import page
from cofair.report.reported_runs import read_methods, read_run
from cofair.storage import tensor_file
from cofair.storage.agreement import audit_folder, checked_against_ledger
from cofair.storage.folder import REWARDS
from cofair.storage.ledger import FIRST, line_of, verified_entries
from cofair.storage.tensor_file import TensorFile
from tests.storage.test_ledger import rehashed
from tests.storage.test_resume import carried_out, experiment_of

EVERYTHING = experiment_of(
    "contract",
    training={"lr": 0.3, "steps": 3},
    contribution={"epochs": 20, "every": 5},
    run={"joint": True},
    method={"hands": "submodels"},
).to_dict() | {"attack": {"name": "nan", "clients": [3], "from_round": 6}}  # a history with all that there can be


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    path = tmp_path_factory.mktemp("finished") / "run"
    carried_out(Experiment.from_dict(EVERYTHING), path)
    return path


@pytest.fixture
def run(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "run")


def edit(path, change):
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value, indent=1))


def edit_line(path, k, change):
    lines = path.read_text().splitlines()
    value = json.loads(lines[k])
    change(value)
    lines[k] = json.dumps(value)
    path.write_text("".join(f"{line}\n" for line in lines))


def lines_of(path, keep):
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(keep(lines)))


@pytest.fixture
def cofair(capsys, monkeypatch):
    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["cofair", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
        captured = capsys.readouterr()
        return int(end.value.code or 0), captured.out, captured.err

    return call


def assert_named(run, cofair, sentence):
    """The edit is told by `ledger verify`, by the report and by a statement, on the page and in the terminal."""
    code, _, printed = cofair("ledger", "verify", run)
    assert (code, printed.count("\n")) == (1, 1)
    assert sentence in printed
    code, _, printed = cofair("report", run, "--out", run / "page.html")
    assert code == 0
    assert printed.startswith("warning: contract, seed ")
    assert sentence in printed
    shown = (run / "page.html").read_text().split("<script")[0].replace("&#x27;", "'").replace("&quot;", '"')
    assert shown.count(sentence) == 2  # above everything else, and beside the ledger's row
    assert "says what this page says" not in shown
    head = verified_entries(run / "ledger.jsonl")[-1]["hash"]
    assert head not in shown
    _, _, printed = cofair("report", run, "--client", "1", "--out", run / "one.html")
    assert sentence in printed
    assert head not in (run / "one.html").read_text()


def test_a_folder_that_nobody_touched_says_what_its_ledger_says(run):
    assert checked_against_ledger(run).remarks == ()
    assert "and the folder says what they say; head" in CliRunner().invoke(app, ["ledger", "verify", str(run)]).output


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda facts: facts["clients"].__setitem__(2, "mine"), 'name of client 2: "mine" in run.json, but "2" in the'),
        (lambda facts: facts["samples"].__setitem__(1, 31), "samples of client '1': 31 in run.json, but 30 in the"),
        (lambda facts: facts["contributions"].__setitem__(0, 0.99), "contribution of client '0': 0.99 in run.json"),
        (lambda facts: facts.update(joined={"3": 1}), 'who joined, and when: {"3": 1} in run.json, but {} in the'),
        (lambda facts: facts.update(seed=7), "seed: 7 in run.json, but 0 in the ledger"),
        (lambda facts: facts.update(given=["contributions"]), "given: "),
        (lambda facts: facts.pop("notes"), "notes: nothing in run.json, but "),
        (lambda facts: facts.update(parameters=10), "parameters: 10 in run.json, but 157 in the ledger"),
        (lambda facts: facts["versions"].update(cofair="9.9"), 'version of cofair: "9.9" in run.json'),
    ],
)  # fmt: skip
def test_an_edited_run_json_is_named(run, cofair, change, sentence):
    edit(run / "run.json", change)
    assert_named(run, cofair, sentence)


def test_a_client_less_in_every_list_is_named(run, cofair):
    edit(run / "run.json", lambda facts: [facts[key].pop() for key in ("clients", "samples", "contributions")])
    lists = ("accuracies", "validation", "reputation", "download", "promised", "validated", "contributions")
    for k in range(len((run / "history.jsonl").read_text().splitlines())):
        edit_line(run / "history.jsonl", k, lambda line: [line[key].pop() for key in lists if key in line])
    assert_named(run, cofair, "run.json names 3 clients, but the ledger names 4")


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("lr = 0.3", "lr = 0.2", "training.lr: 0.2 in experiment.toml, but 0.3 in the ledger"),
        ("joint = true", "", "run.joint: nothing in experiment.toml, but true in the ledger"),
        ('device = "auto"', 'device = "cpu"', 'run.device: "cpu" in experiment.toml, but "auto" in the ledger'),
        ("[attack]", "[elsewhere]", 'attack: nothing in experiment.toml, but {"clients": [3]'),
        ("[attack]", "[defence]\nbound = 3.0\n[attack]", 'defence: {"bound": 3.0} in experiment.toml, but nothing in'),
    ],
)
def test_another_experiment_is_named(run, cofair, old, new, sentence):
    text = (run / "experiment.toml").read_text()
    assert old in text
    (run / "experiment.toml").write_text(text.replace(old, new))
    assert_named(run, cofair, sentence)


@pytest.mark.parametrize(
    ("keep", "sentence"),
    [
        (lambda lines: lines[:-1], "round 14 of the ledger is missing from history.jsonl."),
        (lambda lines: lines[:-3], "round 12 of the ledger is missing from history.jsonl."),
        (lambda lines: lines[:3] + lines[4:], "round 6 of the ledger is missing from history.jsonl."),
        (lambda lines: lines[1:], "round 2 of the ledger is missing from history.jsonl."),
    ],
)
def test_a_shortened_history_is_named(run, cofair, keep, sentence):
    lines_of(run / "history.jsonl", keep)
    assert_named(run, cofair, sentence)


def test_a_line_too_many_is_named(run, cofair):
    lines_of(run / "history.jsonl", lambda lines: [lines[0].replace('"round": 2', '"round": 1'), *lines])
    assert_named(run, cofair, "round 1 of history.jsonl is not in the ledger.")
    lines_of(run / "history.jsonl", lambda lines: [*lines[:-1], lines[-1].replace('"round": 14', '"round": 15')])
    lines_of(run / "history.jsonl", lambda lines: lines[1:])
    assert_named(run, cofair, "round 15 of history.jsonl is not in the ledger.")
    lines_of(run / "history.jsonl", lambda lines: [lines[1], *lines[1:]])
    code, _, printed = cofair("ledger", "verify", run)
    assert code == 1
    assert "Line 2 of the history" in printed
    assert "rounds must increase" in printed


LISTS = ("accuracies", "validation", "reputation", "download", "promised", "validated", "contributions")


@pytest.mark.parametrize("k", [8, -1])
@pytest.mark.parametrize("name", LISTS)
def test_one_changed_number_in_a_list_of_a_line_is_named(run, cofair, name, k):
    line = json.loads((run / "history.jsonl").read_text().splitlines()[k])
    edit_line(run / "history.jsonl", k, lambda line: line[name].__setitem__(1, 0.123))
    sentence = f"{name} of client '1': 0.123 in history.jsonl, round {line['round']}, but {line[name][1]} in the ledger"
    assert_named(run, cofair, sentence)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"fairness": 99.0}, "fairness: 99.0 in history.jsonl, round 6, but "),
        ({"last": True}, "last: true in history.jsonl, round 6, but nothing in the ledger"),
        ({"allocation": [0.5] * 16}, "allocation: "),
        ({"refused": {"3": "it was tired"}}, 'who was refused, and why: {"3": "it was tired"} in history.jsonl'),
        ({"refused": None}, "who was refused, and why: {} in history.jsonl, round 6, but "),
        ({"promised": None}, "promised: nothing in history.jsonl, round 6, but "),
        ({"contributions": None}, "contributions of client "),
    ],
)  # fmt: skip
def test_any_other_change_of_a_line_is_named(run, cofair, change, sentence):
    def changed(line):
        line |= {key: value for key, value in change.items() if value is not None}
        for key in [key for key, value in change.items() if value is None]:
            del line[key]

    assert json.loads((run / "history.jsonl").read_text().splitlines()[3])["round"] == 6
    edit_line(run / "history.jsonl", 3, changed)
    assert_named(run, cofair, sentence)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda summary: summary["cells"]["last"].update(fairness=100.0), "cells.last.fairness in summary.json"),
        (lambda summary: summary["clients"][2].update(accuracy=0.99), "clients[2].accuracy in summary.json"),
        (lambda summary: summary["clients"].pop(), "clients in summary.json is not what follows from history.jsonl"),
        (lambda summary: summary.pop("download"), "download in summary.json"),
        (lambda summary: summary.update(seconds=1.0), "seconds in summary.json"),
    ],
)
def test_an_edited_summary_is_named(run, cofair, change, sentence):
    edit(run / "summary.json", change)
    assert_named(run, cofair, sentence)


def swapped(path, change):
    file = TensorFile(path)
    tensor_file.write(path, file.facts, change(file.value(Delivered, torch.device("cpu"))))


def test_a_swapped_reward_is_named(run, cofair):
    swapped(run / REWARDS, lambda d: Delivered(d.parameters.flip(0) + 1, d.neuron_masks, d.promised, d.validated))
    assert_named(run, cofair, f"the models in {REWARDS} are not those whose hashes the ledger has")


def test_another_submodel_is_named(run, cofair):
    swapped(run / REWARDS, lambda d: Delivered(d.parameters, ~d.neuron_masks, d.promised, d.validated))
    assert_named(run, cofair, f"the models in {REWARDS} are not those")


def test_models_that_were_deleted_are_told_but_no_forgery(run):
    assert load_file(run / REWARDS)
    (run / REWARDS).unlink()
    assert checked_against_ledger(run).remarks == (f"{REWARDS} is no longer there",)


def test_a_ledger_that_was_deleted_is_missed(run):
    (run / "ledger.jsonl").unlink()
    assert "is missing: summary.json names the head that it had" in page.document(read_methods([run]))


@pytest.mark.parametrize("name", ["run.json", "history.jsonl", "experiment.toml"])
def test_a_file_that_is_gone_is_a_sentence(run, cofair, name):
    (run / name).unlink()
    code, _, printed = cofair("ledger", "verify", run)
    assert code == 1
    assert name in printed


def test_a_ledger_by_itself_is_verified_by_itself(run, tmp_path):
    (tmp_path / "alone").mkdir()
    shutil.copy(run / "ledger.jsonl", tmp_path / "alone")
    assert checked_against_ledger(tmp_path / "alone").remarks == ("there is nothing to compare the ledger with",)


def test_what_a_finished_run_is_read_back_from_is_compared(run):
    edit(run / "run.json", lambda facts: facts["contributions"].__setitem__(0, 0.99))
    with pytest.raises(RunError, match=r"contribution of client '0': 0\.99 in run\.json"):
        carried_out(Experiment.from_dict(EVERYTHING), run, resume=True)


def test_the_ledger_of_an_earlier_version_is_compared_as_far_as_it_goes(run):
    """Earlier versions wrote no sizes and settings, and of the history accuracies and reputations."""
    entries = verified_entries(run / "ledger.jsonl")
    left = ("samples", "settings", "facts", "fairness", "validation", "download", "allocation", "promised", "validated")
    texts, previous = [], FIRST
    for entry in entries:
        old = {key: value for key, value in entry.items() if key not in (*left, "last", "kept")}
        texts.append(rehashed([line_of(old)], 0, previous=previous))
        previous = json.loads(texts[-1])["hash"]
    (run / "ledger.jsonl").write_text("".join(f"{text}\n" for text in texts))
    edit(run / "summary.json", lambda summary: summary.update(ledger=previous))
    assert [remark[:45] for remark in checked_against_ledger(run).remarks] == [
        "an earlier version of cofair wrote it, withou"
    ]
    edit_line(run / "history.jsonl", 3, lambda line: line["accuracies"].__setitem__(1, 0.123))
    assert "accuracies of client '1': 0.123 in history.jsonl, round 6" in audit_folder(run).fault


def test_whoever_rewrites_everything_is_found_only_by_a_head_kept_elsewhere(run):
    """The folder proves nothing by itself: a head that somebody else has is what binds."""
    head = verified_entries(run / "ledger.jsonl")[-1]["hash"]
    edit_line(run / "history.jsonl", -1, lambda line: line["accuracies"].__setitem__(1, 0.99))
    got = read_run(run).outcome.history[-1].accuracies
    lines_of(run / "ledger.jsonl", lambda lines: [*lines[:-1], rehashed(lines, -1, accuracies=got) + "\n"])
    forged = json.loads((run / "ledger.jsonl").read_text().splitlines()[-1])["hash"]
    (run / "summary.json").write_text(json.dumps({**read_run(run).outcome.summary(), "ledger": forged}))
    assert checked_against_ledger(run).entries[-1]["accuracies"][1] == 0.99
    with pytest.raises(RunError, match="cut off or rewritten"):
        checked_against_ledger(run, head)
