"""Weights & Biases, offline: what its own reader finds in the files of a run."""

import json
import sys

import pytest

from cofair.errors import UsageError
from cofair.runs.compare import compare
from cofair.storage.history import read_history
from cofair.tracking.base import tracked
from tests.tracking.test_tracking import SMALL, job, record


@pytest.fixture
def wandb(monkeypatch):
    for name in ("WANDB_PROJECT", "WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    return pytest.importorskip("wandb")


def read_runs(folder):
    """Return by name what offline runs hold: their settings, what was logged at each step, how they ended."""
    from wandb.proto.wandb_internal_pb2 import Record
    from wandb.sdk.internal.datastore import DataStore

    found = {}
    for path in folder.glob("wandb/offline-run-*/run-*.wandb"):
        store = DataStore()
        store.open_for_scan(str(path))
        name, settings, steps, code = None, {}, {}, None
        while (data := store.scan_data()) is not None:
            entry = Record.FromString(data)
            kind = entry.WhichOneof("record_type")
            if kind == "run":
                name = entry.run.display_name
                settings = {item.key: json.loads(item.value_json) for item in entry.run.config.update}
            elif kind == "history":
                items = entry.history.item
                values = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}
                steps[entry.history.step.num] = values
            elif kind == "exit":
                code = entry.exit.exit_code
        found[name] = settings, steps, code
    return found


def test_wandb_reads_back_the_numbers_and_settings_of_the_history(tmp_path, wandb):
    with tracked(["wandb"], tmp_path) as listener:
        compare(SMALL, ["cgsv"], 2, tmp_path, listener=listener)
    assert not listener.troubles
    runs = read_runs(tmp_path)
    assert set(runs) == {"cgsv-seed0", "cgsv-seed1"}
    settings, steps, code = runs["cgsv-seed1"]
    assert (settings["method.beta"], settings["run.seed"], settings["training.epochs"], code) == (1.5, 1, None, 0)
    history = read_history(tmp_path / "cgsv-seed1" / "history.jsonl")
    assert list(steps) == [kept.round for kept in history]
    for kept in history:
        assert steps[kept.round]["client_accuracy/2"] == kept.accuracies[2]
        assert steps[kept.round]["accuracy/max"] == max(kept.accuracies)
        assert "gain/mean" in steps[kept.round]
    assert listener.trackers[0].look == f"wandb sync {tmp_path / 'wandb'}/offline-run-*"


def test_runs_at_once_are_kept_apart_and_an_interrupted_one_is_marked(tmp_path, wandb):
    def train():
        with tracked(["wandb"], tmp_path) as listener:
            first, second = job("cgsv", 0), job("cgsv", 1)
            listener.tested(first, record(1, fairness=10.0))
            listener.tested(second, record(1, fairness=20.0))
            listener.tested(first, record(2, fairness=30.0, last=True))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train()
    runs = {
        name: ([values["fairness"] for values in steps.values()], code)
        for name, (_, steps, code) in read_runs(tmp_path).items()
    }
    assert runs == {"cgsv-seed0": ([10.0, 30.0], 0), "cgsv-seed1": ([20.0], 1)}


def test_without_wandb_one_sentence_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UsageError, match=r"pip install 'cofair\[track\]'"), tracked(["wandb"], tmp_path):
        pass
