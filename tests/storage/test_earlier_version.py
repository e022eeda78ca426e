"""Folders that version 0.1.0 wrote: finished runs are read, an interrupted one is refused in a sentence."""

import shutil
from pathlib import Path

import pytest

from cofair.config.experiment import Experiment, read_file
from cofair.errors import RunError
from cofair.report.reported_runs import read_methods
from cofair.runs.folder_rewards import export_from_folder
from cofair.runs.single import run_experiment
from cofair.storage import checkpoint
from cofair.storage.agreement import checked_against_ledger
from cofair.storage.folder import RunFolder
from cofair.storage.resume import finished_outcome

WRITTEN = Path(__file__).parent / "version_0_1_0"


@pytest.fixture
def folder(tmp_path):
    shutil.copytree(WRITTEN, tmp_path / "runs")
    return tmp_path / "runs"


def test_a_finished_run_is_reported_verified_and_exported(folder, tmp_path):
    experiment = Experiment.from_dict(read_file(folder / "finished" / "experiment.toml"))
    outcome = finished_outcome(folder / "finished", experiment)
    assert outcome is not None
    assert [record.round for record in outcome.history] == [1, 2, 3]
    (shown,) = read_methods([folder / "finished"])
    assert shown.runs[0].outcome.accuracies == outcome.accuracies
    assert len(checked_against_ledger(folder / "finished").entries) == 4
    tensors, program = export_from_folder(folder / "finished", "2", tmp_path / "mine")
    assert tensors.exists()
    assert program.exists()


def test_an_interrupted_run_is_refused_in_a_sentence(folder):
    experiment = Experiment.from_dict(read_file(folder / "interrupted" / "experiment.toml"))
    before = {file.name: file.read_bytes() for file in (folder / "interrupted").iterdir()}
    with pytest.raises(RunError, match=r"0\.1\.0.*name another folder, or delete this one"):
        run_experiment(experiment, RunFolder(folder / "interrupted", resume=True))
    after = {file.name: file.read_bytes() for file in (folder / "interrupted").iterdir() if file.name != ".lock"}
    assert after == before
    with pytest.raises(RunError, match=r"format 2, which cofair .* cannot read: .*delete"):
        checkpoint.latest(folder / "interrupted")
