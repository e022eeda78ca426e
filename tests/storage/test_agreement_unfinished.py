"""Folders of runs that were interrupted, or that clients joined, beside their ledgers."""

import json
import shutil
from dataclasses import dataclass, replace

import pytest
import torch

from cofair.config.job import Job
from cofair.data.federation import Federation
from cofair.models import build
from cofair.report import page
from cofair.report.reported_runs import read_methods
from cofair.results.listener import CallbackListener
from cofair.runs.run import Run, drive
from cofair.storage.agreement import audit_folder, checked_against_ledger
from cofair.storage.folder import RunFolder
from cofair.storage.journal import open_journal
from tests.driving import prepare
from tests.storage.test_agreement import edit, lines_of
from tests.storage.test_resume import Stopped, carried_out, experiment_of, small_federation


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory):
    path = tmp_path_factory.mktemp("interrupted") / "run"
    with pytest.raises(Stopped):
        carried_out(experiment_of("fedsac"), path, 11)
    return path


def test_an_interrupted_run_says_what_its_ledger_says(interrupted):
    assert checked_against_ledger(interrupted).remarks == ()


def test_a_run_killed_between_the_two_files_has_one_entry_more(interrupted, tmp_path):
    run = shutil.copytree(interrupted, tmp_path / "run")
    lines_of(run / "history.jsonl", lambda lines: lines[:-1])
    assert checked_against_ledger(run).remarks == (
        "round 11 is only in the ledger, because the run was interrupted there",
    )
    assert "round 11 is only in the ledger" in page.document(read_methods([run]))
    lines_of(run / "history.jsonl", lambda lines: lines[:-1])
    assert (
        "round 10 of the ledger is missing from history.jsonl (the run is not finished: --res"
        in audit_folder(run).fault
    )


def test_an_interrupted_history_shows_nothing_that_no_ledger_says(interrupted, tmp_path):
    run = shutil.copytree(interrupted, tmp_path / "run")
    lines_of(run / "ledger.jsonl", lambda lines: lines[:-1])
    assert "round 11 of history.jsonl is not in the ledger" in audit_folder(run).fault


JOINS = 6  # the round before which the last client comes


@dataclass
class Coming:
    """A client that comes while the run goes on, and the engine that trains whoever is there."""

    smaller: object
    larger: object
    there: bool = False

    def train(self, *given):
        return (self.larger if self.there else self.smaller).engine.train(*given)

    def before(self, setup, server, t):
        if t != JOINS:
            return None
        self.there = True
        return replace(self.larger.setup, engine=self), self.larger.brought

    def restored(self, brought):
        self.there = len(brought) == 4
        now = self.larger if self.there else self.smaller
        return replace(now.setup, engine=self), now.brought


def run_with_newcomer(path, *, resume=False, stop_after=None):
    experiment, everybody = experiment_of("fedrac", training={"lr": 0.3}), small_federation()
    own = [(one.x, one.y) for one in map(everybody.client, range(4))]
    others = {"test": (everybody.test.x, everybody.test.y), "classes": 3}
    others["validation"] = (everybody.validation.x, everybody.validation.y)
    with open_journal(RunFolder(path, resume=resume), experiment, keeps_rewards=True) as journal:
        smaller, larger = (
            prepare(experiment, federation=Federation(own[:n], **others), model=build_model()) for n in (3, 4)
        )
        larger.brought.contributions[:3] = smaller.brought.contributions
        coming = Coming(smaller, larger)

        def listener(method, seed, record):
            if record.round == stop_after:
                raise Stopped

        setup = replace(smaller.setup, engine=coming)
        heard = CallbackListener(listener)
        drive(Run(Job(experiment), setup, smaller.brought, journal=journal, listener=heard, newcomers=coming)).result()


def build_model():
    torch.manual_seed(0)
    return build("mlp", (6,), 3, hidden=(10, 6))


@pytest.fixture(scope="module")
def joined(tmp_path_factory):
    path = tmp_path_factory.mktemp("joined") / "run"
    run_with_newcomer(path)
    return path


def test_who_joined_stands_in_the_ledger_and_in_the_folder_alike(joined):
    assert json.loads((joined / "run.json").read_text())["joined"] == {"3": JOINS}
    assert checked_against_ledger(joined).remarks == ()
    assert "says what this page says" in page.document(read_methods([joined]))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda facts: facts["samples"].__setitem__(3, 21), "samples of client '3': 21 in run.json, but 20 in the"),
        (lambda facts: facts["contributions"].__setitem__(3, 0.99), "contribution of client '3': 0.99 in run.json"),
        (lambda facts: facts.update(joined={"3": 7}), "run.json says that it had 3 clients"),
        (lambda facts: facts.update(joined={"0": 6}), "clients that joined later must come last"),
    ],
)
def test_a_newcomer_with_another_size_contribution_or_round_is_named(joined, tmp_path, change, sentence):
    run = shutil.copytree(joined, tmp_path / "run")
    edit(run / "run.json", change)
    assert sentence in audit_folder(run).fault


def test_a_server_that_is_restarted_leaves_a_folder_that_agrees(joined, tmp_path):
    for stop in (5, 7):
        with pytest.raises(Stopped):
            run_with_newcomer(tmp_path / str(stop), stop_after=stop)
        assert checked_against_ledger(tmp_path / str(stop)).remarks == ()
        run_with_newcomer(tmp_path / str(stop), resume=True)
        assert checked_against_ledger(tmp_path / str(stop)).remarks == ()
        assert (tmp_path / str(stop) / "ledger.jsonl").read_bytes() == (joined / "ledger.jsonl").read_bytes()


def test_a_server_killed_before_it_could_write_who_joined_is_no_forger(joined, tmp_path):
    """The ledger has the newcomer, run.json not yet."""
    run = shutil.copytree(joined, tmp_path / "run")
    (run / "summary.json").unlink()
    lines_of(run / "ledger.jsonl", lambda lines: lines[: 1 + next(k for k, x in enumerate(lines) if '"joined"' in x)])
    lines_of(run / "history.jsonl", lambda lines: [line for line in lines if json.loads(line)["round"] < JOINS])
    edit(run / "run.json", lambda facts: [facts[key].pop() for key in ("clients", "samples", "contributions")])
    edit(run / "run.json", lambda facts: facts.pop("joined"))
    assert audit_folder(run).fault is None
