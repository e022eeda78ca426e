"""The power goes at the moment when somebody is told of a round: everything that was told is on the disk."""

from dataclasses import replace

import pytest

from cofair.config.experiment import Experiment
from cofair.config.job import Job
from cofair.results.listener import Listener
from cofair.runs.lockstep_batch import run_in_lockstep
from cofair.runs.single import run_experiment
from cofair.storage.agreement import checked_against_ledger
from cofair.storage.folder import AppendOnly, RunFolder, write_whole
from cofair.storage.history import read_history
from cofair.storage.journal import FolderJournal
from cofair.storage.ledger import verified_entries
from tests.storage.power import Disk
from tests.storage.test_resume import DIGITS, carried_out, experiment_of, written


@pytest.fixture
def disk(monkeypatch, tmp_path):
    watched = Disk(monkeypatch, tmp_path)
    yield watched
    watched.close()


def without_seconds(records):
    return [replace(record, seconds=0.0) for record in records]


@pytest.mark.parametrize("every", [0, 2, None])
def test_a_round_that_a_listener_hears_of_is_on_the_disk(disk, tmp_path, every):
    heard, left = [], {}

    def listener(method, seed, record):
        if record is not None:
            heard.append(record)
            left[record.round] = disk.left(tmp_path / "new" / "run", tmp_path / "left" / str(record.round))
            assert read_history(left[record.round] / "history.jsonl") == heard
            entries = checked_against_ledger(left[record.round]).entries  # settings and facts are there, too
            assert [entry["round"] for entry in entries] == [0, *[one.round for one in heard]]

    result = run_experiment(DIGITS.with_run(checkpoint_every=every), RunFolder(tmp_path / "new" / "run"), listener)
    assert tuple(heard) == result.history
    end = disk.left(tmp_path / "new" / "run", tmp_path / "left" / "end")
    # the summary names the head, and the models are those of the ledger
    assert checked_against_ledger(end).remarks == ()
    after = RunFolder(left[9], resume=True)
    again = run_experiment(DIGITS.with_run(checkpoint_every=every), after)
    assert without_seconds(again.history) == without_seconds(result.history)
    assert written(left[9]) == written(tmp_path / "new" / "run")


def test_without_syncing_a_power_cut_would_take_what_was_announced(disk, tmp_path, monkeypatch):
    monkeypatch.setattr(AppendOnly, "sync", lambda self: None)

    def listener(method, seed, record):
        if record is not None:
            left = disk.left(tmp_path / "run", tmp_path / "left")
            assert (left / "run.json").exists()
            assert not (left / "history.jsonl").exists()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_experiment(DIGITS, RunFolder(tmp_path / "run"), listener)


@pytest.mark.parametrize("every", [0, 3])
def test_a_head_that_participants_are_told_is_on_the_disk(disk, tmp_path, monkeypatch, every):
    heads, keep = [], FolderJournal.keep

    def noted(journal, state):
        keep(journal, state)
        heads.append(journal.head)
        left = disk.left(tmp_path / "run", tmp_path / "left" / str(state.round))
        assert heads[-1] in {entry["hash"] for entry in verified_entries(left / "ledger.jsonl")}

    monkeypatch.setattr(FolderJournal, "keep", noted)
    carried_out(experiment_of("fedavg", run={"checkpoint_every": every}), tmp_path / "run")
    assert len(set(heads)) == {0: 13, 3: 5}[every]


def test_a_run_that_begins_again_elsewhere_keeps_the_head_that_was_told(tmp_path):
    """Before the first checkpoint a run has nothing but its first entry, which everybody may have been told."""
    begun = experiment_of("fedavg", run={"checkpoint_every": 0})
    with pytest.raises(RuntimeError):
        run_stopped(begun, tmp_path)
    first = verified_entries(tmp_path / "ledger.jsonl")[0]
    elsewhere = experiment_of("fedavg", run={"checkpoint_every": 0, "engine": "loop"})
    carried_out(elsewhere, tmp_path, resume=True)
    assert checked_against_ledger(tmp_path).entries[0] == first


def run_stopped(experiment, path):
    def stopping(journal, state):
        raise RuntimeError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FolderJournal, "keep", stopping)
        carried_out(experiment, path)


def test_a_file_that_was_renamed_into_place_and_its_new_folder_are_on_the_disk(disk, tmp_path):
    folder = RunFolder(tmp_path / "a" / "b")
    folder.begin("[run]\n", {})
    write_whole(tmp_path / "a" / "b" / "summary.json", "{}")
    left = disk.left(tmp_path / "a" / "b", tmp_path / "left")
    assert sorted(path.name for path in left.iterdir()) == ["experiment.toml", "run.json", "summary.json"]


def test_a_sweep_in_which_nobody_hears_of_rounds_waits_for_the_disk_only_at_the_ends_of_runs(disk, tmp_path):
    syncs = []
    for rounds in (3, 9):
        tables = DIGITS.to_dict()
        tables["training"]["rounds"] = rounds
        before = disk.syncs
        job = Job(Experiment.from_dict(tables).with_run(checkpoint_every=0), tmp_path / str(rounds))
        run_in_lockstep([job], Listener())
        syncs.append(disk.syncs - before)
        assert checked_against_ledger(disk.left(job.folder, tmp_path / "left" / str(rounds))).remarks == ()
    assert syncs[0] == syncs[1]
