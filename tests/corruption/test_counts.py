"""A number too many or too few in any list of any record: every command says so in a sentence."""

import io
import json
import shutil
from contextlib import redirect_stdout

import pytest

from cofair.cli import ledger_command
from cofair.config.experiment import Experiment
from cofair.errors import CofairError
from cofair.report import page
from cofair.report.reported_runs import read_methods
from cofair.results.comparison import Comparison
from cofair.runs.folder_rewards import export_from_folder
from cofair.runs.single import run_experiment
from cofair.storage import export
from cofair.storage.folder import RunFolder
from cofair.storage.ledger import FIRST
from cofair.storage.resume import finished_outcome
from tests.corruption.parsers import chained
from tests.storage.test_resume import Stopped

EXPERIMENT = Experiment.from_dict(
    {
        "federation": {"clients": 3}, "model": {"hidden": [8]}, "method": {"name": "contract"},
        "training": {"rounds": 5, "steps": 2, "lr": 0.1}, "contribution": {"epochs": 2, "every": 2},
        "run": {"joint": True, "device": "cpu", "checkpoint_every": 2},
        "attack": {"name": "nan", "clients": [2], "from_round": 4},
    }
)  # fmt: skip
FILES = ("run.json", "history.jsonl", "ledger.jsonl", "summary.json")


def lists_in(value, path=()):
    """Yield the way to every list."""
    if isinstance(value, list):
        yield path
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from lists_in(value[key], (*path, key))


def places(folder):
    """Yield every list of every record: file, line, the way to it; of lines the first and the last."""
    for name in [name for name in FILES if (folder / name).exists()]:
        text = (folder / name).read_text()
        if name.endswith("l"):
            lines = text.splitlines()
            for k in (0, len(lines) - 1):
                yield from ((name, k, path) for path in lists_in(json.loads(lines[k])))
        else:
            yield from ((name, None, path) for path in lists_in(json.loads(text)))


def miscounted(folder, name, k, path, more):
    """Put a number too many into a list, or take one away; hashes are made right, as a cheat would."""
    text = (folder / name).read_text()
    records = [json.loads(line) for line in (text.splitlines() if k is not None else [text])]
    values = records[k or 0]
    for key in path:
        values = values[key]
    if not more and not values:
        return False
    if more:
        values.append(values[-1] if values else 0.5)
    else:
        values.pop()
    if k is None:
        (folder / name).write_text(json.dumps(records[0], indent=1))
        return True
    lines = chained(records) if name == "ledger.jsonl" else [json.dumps(record).encode() for record in records]
    (folder / name).write_bytes(b"".join(line + b"\n" for line in lines))
    if name == "ledger.jsonl" and (folder / "summary.json").exists():
        summary = json.loads((folder / "summary.json").read_text())
        summary["ledger"] = json.loads(lines[-1])["hash"]
        (folder / "summary.json").write_text(json.dumps(summary))
    return True


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("counts") / "run"
    run_experiment(EXPERIMENT, RunFolder(folder))
    page.write_statement(read_methods([folder])[0], "1", folder / "statement.html")
    return folder


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    def stopping(method, seed, record):
        if record is not None and record.round == 4:
            raise Stopped

    folder = tmp_path_factory.mktemp("counts") / "stopped"
    with pytest.raises(Stopped):
        run_experiment(EXPERIMENT, RunFolder(folder), stopping)
    return folder


def compared_again(folder):
    outcome = finished_outcome(folder, EXPERIMENT)
    Comparison((outcome,)).to_frame()
    outcome.summary()


COMMANDS = {
    "report": lambda folder: page.document(read_methods([folder])),
    "statement": lambda folder: page.client_document(read_methods([folder])[0], "1"),
    "verify": lambda folder: ledger_command.verify(folder, None),
    "show": lambda folder: ledger_command.show(folder, "1", as_json=False),
    "check": lambda folder: ledger_command.check(folder, folder / "statement.html"),
    "export": lambda folder: export_from_folder(folder, "1", folder / "mine"),
    "compare": compared_again,
    "resume": lambda folder: run_experiment(EXPERIMENT, RunFolder(folder, resume=True)),
}


def answer_of(command, folder):
    """Return the sentence of a command, or None where it went well."""
    try:
        with redirect_stdout(io.TextIOWrapper(io.BytesIO(), encoding="utf-8")):
            COMMANDS[command](folder)
    except CofairError as error:
        told = str(error)
    else:
        return None
    assert told.endswith((".", "?"))
    assert "\n" not in told
    return told


@pytest.fixture
def unwritten(monkeypatch):
    monkeypatch.setattr(export, "export", lambda *_: None)  # the program of a model takes seconds


@pytest.mark.usefixtures("unwritten")
def test_a_whole_folder_is_read_by_every_command(finished):
    assert [answer_of(command, finished) for command in COMMANDS] == [None] * len(COMMANDS)


@pytest.mark.usefixtures("unwritten")
@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("more", [True, False])
def test_a_number_too_many_or_too_few_is_a_sentence(finished, tmp_path, name, more):
    cases = [place for place in places(finished) if place[0] == name]
    assert len(cases) >= 4
    for number, (_, k, path) in enumerate(cases):
        folder = shutil.copytree(finished, tmp_path / str(number))
        if miscounted(folder, name, k, path, more):
            answers = {command: answer_of(command, folder) for command in COMMANDS}
            if more and name == "ledger.jsonl" and path == ("refused",):
                continue  # how often somebody was refused only the ledger says
            where = {"history.jsonl": "history", "ledger.jsonl": "ledger"}.get(name, name)
            assert where in (answers["verify"] or ""), (k, path)  # nothing of it passes unseen
            assert answers["export"], (k, path)
            assert answers["check"], (k, path)


@pytest.mark.parametrize("name", FILES[:3])
@pytest.mark.parametrize("more", [True, False])
def test_a_run_that_would_go_on_says_so_too(stopped, tmp_path, name, more):
    cases = [place for place in places(stopped) if place[0] == name]
    for number, (_, k, path) in enumerate(cases):
        folder = shutil.copytree(stopped, tmp_path / str(number))
        if miscounted(folder, name, k, path, more):
            for command in ("resume", "report", "statement", "verify", "show"):
                answer_of(command, folder)


def test_a_chain_made_right_begins_as_every_ledger_does(finished):
    lines = (finished / "ledger.jsonl").read_bytes().splitlines()
    assert chained([json.loads(line) for line in lines]) == lines
    assert json.loads(lines[0])["previous"] == FIRST
