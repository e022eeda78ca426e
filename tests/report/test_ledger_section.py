"""The ledger in the report, and a statement that is compared with it later."""

import json
import shutil

import pytest
from typer.testing import CliRunner

from cofair.cli.main import app
from cofair.errors import RunError
from cofair.report import page
from cofair.report.ledger_section import read_statement
from cofair.report.reported_runs import read_methods, read_run
from cofair.storage.ledger import verified_entries
from tests.storage.test_ledger import rehashed
from tests.storage.test_resume import carried_out, experiment_of


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    path = tmp_path_factory.mktemp("finished") / "run"
    carried_out(experiment_of("fedsac"), path)
    return path


@pytest.fixture
def run(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "run")


@pytest.fixture
def statement(run):
    return page.write_statement(read_methods([run])[0], "2", run.parent / "statement.html")


def check(run, statement):
    return CliRunner().invoke(app, ["ledger", "check", str(run), str(statement)])


def rewritten(run, **changes):
    """Change the last round of a history and of its ledger, and make all of the folder agree with that."""
    lines = (run / "ledger.jsonl").read_text().splitlines()
    lines[-1] = rehashed(lines, -1, **changes)
    (run / "ledger.jsonl").write_text("".join(f"{line}\n" for line in lines))
    records = (run / "history.jsonl").read_text().splitlines()
    records[-1] = json.dumps(json.loads(records[-1]) | changes)
    (run / "history.jsonl").write_text("".join(f"{line}\n" for line in records))
    summary = {**read_run(run).outcome.summary(), "ledger": json.loads(lines[-1])["hash"]}
    (run / "summary.json").write_text(json.dumps(summary))


def test_the_report_names_the_head_of_a_ledger_that_holds(run):
    text = page.document(read_methods([run]))
    entries = verified_entries(run / "ledger.jsonl")
    assert f"{len(entries)} entries, nothing altered; says what this page says" in text
    assert entries[-1]["hash"] in text


def test_the_report_says_what_is_wrong_with_a_ledger(run):
    head = verified_entries(run / "ledger.jsonl")[-1]["hash"]
    text = (run / "ledger.jsonl").read_text()
    (run / "ledger.jsonl").write_text(text.replace('"took_part":[2', '"took_part":[1', 1))
    shown = page.document(read_methods([run]))
    assert "Entry 1 of the ledger" in shown
    assert "was altered" in shown
    assert head not in shown


def test_the_report_says_where_the_history_differs_from_the_ledger(run):
    lines = (run / "history.jsonl").read_text().splitlines()
    record = json.loads(lines[2])
    record["accuracies"][1] = 0.99
    (run / "history.jsonl").write_text("\n".join([*lines[:2], json.dumps(record), *lines[3:]]) + "\n")
    shown = page.document(read_methods([run]))
    assert f"0.99 in history.jsonl, round {record['round']}, but" in shown


def test_a_report_without_ledgers_has_no_such_section(run):
    (run / "ledger.jsonl").unlink()
    summary = json.loads((run / "summary.json").read_text())
    summary.pop("ledger")  # else it names the head of a ledger that somebody removed
    (run / "summary.json").write_text(json.dumps(summary))
    assert 'id="ledger"' not in page.document(read_methods([run]))
    assert 'id="ledger"' not in page.client_document(read_methods([run])[0], "2")


def test_a_statement_is_what_the_ledger_says(run, statement):
    last = verified_entries(run / "ledger.jsonl")[-1]
    client, (row,) = read_statement(statement)
    assert client == "2"
    assert float(row["accuracy"]) == last["accuracies"][2]
    assert float(row["contribution"]) == last["contributions"][2]
    assert row["reward"] == last["rewards"][2]
    answer = check(run, statement)
    assert answer.exit_code == 0, answer.exception
    assert answer.output.rstrip().endswith(f"is what the ledger says; head {last['hash']}")
    assert check(run.parent, statement).exit_code == 0  # a folder of several runs


def test_a_ledger_rewritten_after_the_statement_is_found(run, statement):
    rewritten(run, accuracies=[0.9] * 4)
    assert CliRunner().invoke(app, ["ledger", "verify", str(run)]).exit_code == 0  # in itself it is whole
    answer = check(run, statement)
    assert isinstance(answer.exception, RunError)
    assert "cut off or rewritten since" in str(answer.exception)


def test_a_statement_that_says_something_else_than_the_ledger_is_found(run, statement):
    text = statement.read_text()
    accuracy = read_statement(statement)[1][0]["accuracy"]
    statement.write_text(text.replace(f'data-ledger="accuracy">{accuracy}', 'data-ledger="accuracy">0.99'))
    answer = check(run, statement)
    assert f"says that the accuracy of client '2' in round 14 is 0.99, but the ledger in {run} says {accuracy}" in str(
        answer.exception
    )


@pytest.mark.parametrize(("cell", "text"), [("seed", "7"), ("samples", "5000"), ("download", "0.9")])
def test_a_statement_with_another_seed_size_or_download_is_found(run, statement, cell, text):
    own = read_statement(statement)[1][0][cell]
    html = statement.read_text()
    assert f'data-ledger="{cell}">{own}<' in html
    statement.write_text(html.replace(f'data-ledger="{cell}">{own}<', f'data-ledger="{cell}">{text}<'))
    assert f"says that the {cell} of client '2' in round 14 is {text}, but" in str(check(run, statement).exception)


def test_a_statement_of_an_earlier_version_is_checked_as_far_as_it_goes(run, statement):
    row = read_statement(statement)[1][0]
    html = statement.read_text()
    for cell in ("samples", "download"):
        html = html.replace(f'<td data-ledger="{cell}">{row[cell]}</td>', "")
    statement.write_text(html)
    assert len(read_statement(statement)[1][0]) == len(row) - 2
    assert check(run, statement).exit_code == 0


def test_a_statement_beside_a_folder_that_was_edited_since_is_not_confirmed(run, statement):
    facts = json.loads((run / "run.json").read_text())
    facts["samples"][0] += 1
    (run / "run.json").write_text(json.dumps(facts))
    assert "samples of client '0'" in str(check(run, statement).exception)


def test_an_early_statement_stays_true_when_the_run_goes_on(run, tmp_path):
    early = shutil.copytree(run, tmp_path / "early")
    for name, count in (("history.jsonl", 3), ("ledger.jsonl", 4)):
        lines = (run / name).read_text().splitlines(keepends=True)
        (early / name).write_text("".join(lines[:count]))
    (early / "summary.json").unlink()
    statement = page.write_statement(read_methods([early])[0], "0", tmp_path / "early.html")
    assert check(run, statement).exit_code == 0


@pytest.mark.parametrize(
    "text", ["", "<table data-client=2></table>", "<table data-client=2><td data-ledger=seed>0", "\x00"]
)
def test_what_is_no_statement_is_a_sentence(run, tmp_path, text):
    path = tmp_path / "no.html"
    path.write_text(text)
    assert "is no statement" in str(check(run, path).exception)
    assert "Cannot read the statement" in str(check(run, tmp_path / "nowhere").exception)


def test_names_of_clients_come_back_from_the_page_as_they_were(run, statement):
    text = statement.read_text().replace('data-client="2"', 'data-client="&lt;a &amp; b&gt;"')
    statement.write_text(text)
    assert read_statement(statement)[0] == "<a & b>"
    assert "There is no client '<a & b>'" in str(check(run, statement).exception)
