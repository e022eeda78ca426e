"""What clients hold in a run folder: read back, in the ledger, and refused where it is damaged."""

import json

import numpy as np
import pytest

from cofair.errors import RunError
from cofair.report.reported_runs import read_run
from cofair.results.record import Record
from cofair.runs.single import run_experiment
from cofair.storage.agreement import audit_folder, checked_against_ledger
from cofair.storage.folder import RunFolder
from cofair.storage.reader import read_facts, read_records
from tests.storage.test_resume import experiment_of

NAN = float("nan")


@pytest.fixture
def run(tmp_path):
    chosen = experiment_of("fedrac").with_run(held=True)
    return run_experiment(chosen, RunFolder(tmp_path / "run")), tmp_path / "run"


def changed(folder, **values):
    """Change fields of the last line of a history."""
    path = folder / "history.jsonl"
    *lines, last = path.read_text().splitlines()
    path.write_text("\n".join([*lines, json.dumps(json.loads(last) | values)]) + "\n")


def test_what_is_held_is_read_back_and_agrees_with_the_ledger(run):
    result, folder = run
    checked_against_ledger(folder)
    again = read_run(folder).outcome.held
    assert again.chosen == result.held.chosen
    assert np.array_equal(again.accuracies, result.held.accuracies)
    assert {name: own.tolist() for name, own in again.parts.items()} == {
        name: own.tolist() for name, own in result.held.parts.items()
    }
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["held_weakest"] == result.held.weakest


def test_another_choice_or_part_contradicts_the_ledger(run):
    result, folder = run
    name = "averaged" if result.held.chosen[0] != "averaged" else "ahead"
    parts = {part: own.tolist() for part, own in result.held.parts.items()}
    parts[name][0] = 0.123
    changed(folder, held_parts=parts)
    assert "held_parts" in audit_folder(folder).fault


@pytest.mark.parametrize(
    "values",
    [
        {"held": None}, {"held": [0.5]}, {"held_as": ["kept"]}, {"held_as": None}, {"held_parts": {"kept": [0.1]}},
        {"held_parts": None},
    ],
)  # fmt: skip
def test_a_line_that_does_not_say_it_of_all_clients_is_damaged(run, values):
    _, folder = run
    changed(folder, **values)
    with pytest.raises(RunError, match="damaged"):
        read_records(folder, read_facts(folder))


def test_a_choice_that_is_not_what_is_held_is_damaged(run):
    result, folder = run
    worst = min(result.held.parts, key=lambda name: result.held.parts[name][0])
    best = max(result.held.parts, key=lambda name: result.held.parts[name][0])
    other = worst if result.held.accuracies[0] != result.held.parts[worst][0] else best
    changed(folder, held_as=[other, *result.held.chosen[1:]])
    with pytest.raises(RunError, match="hold nothing of what they chose among"):
        read_records(folder, read_facts(folder))


@pytest.mark.parametrize("values", [{"held_as": [1]}, {"held_parts": {"kept": 1}}, {"held_parts": [["kept"]]}])
def test_a_line_of_other_types_is_no_record(values):
    line = {"round": 1, "accuracies": [0.5], "download": [1.0], "seconds": 1.0, "last": True, "held": [0.5], **values}
    with pytest.raises(TypeError):
        Record.from_json(json.dumps(line))


def test_a_client_that_joined_later_has_gaps():
    record = Record(
        1, None, [0.5], None, None, [1.0], 1.0, True, held=[0.5], held_parts={"kept": [0.5]}, held_as=["kept"]
    )  # fmt: skip
    longer = record.of(2)
    assert longer.held == [0.5, pytest.approx(NAN, nan_ok=True)]
    assert longer.held_parts == {"kept": [0.5, pytest.approx(NAN, nan_ok=True)]}
    assert longer.held_as == ["kept", "delivered"]
