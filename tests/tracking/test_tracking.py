"""Trackers hear what the history holds; their own readers read it back."""

import importlib
import json
import sys
from pathlib import Path

import pytest

from cofair.cli import main
from cofair.config.experiment import Experiment
from cofair.config.job import Job
from cofair.errors import RunError, UsageError
from cofair.results.listener import Listeners
from cofair.results.record import Record
from cofair.runs.compare import compare
from cofair.storage.history import read_history
from cofair.tracking import TRACKERS
from cofair.tracking.base import Tracking, numbers, tracked
from cofair.tracking.mlflow import _local_store

SMALL = Experiment.from_dict(
    {
        "federation": {"clients": 3},
        "model": {"hidden": [8]},
        "training": {"rounds": 4, "steps": 2, "lr": 0.1},
        "contribution": {"epochs": 1},
        "method": {"name": "cgsv", "beta": 1.5},
    }
)


def record(t: int = 1, clients: int = 3, *, last: bool = False, fairness: float | None = 50.0) -> Record:
    got = [0.1 * (i + 1) for i in range(clients)]
    return Record(t, fairness, got, None, [0.5] * clients, [1.0] * clients, 0.1, last)


def job(method: str = "cgsv", seed: int = 0) -> Job:
    return Job(SMALL.with_method(method).with_run(seed=seed))


class Heard:
    """A tracker that remembers, and fails from a given round on."""

    def __init__(self, name: str = "heard", fails_at: int = 10**9) -> None:
        self.name, self.look, self.fails_at = name, "", fails_at
        self.begun, self.logged, self.ended = [], [], []

    def begin(self, name, settings):
        self.begun.append((name, settings))
        return self

    def log(self, values, t):
        if t >= self.fails_at:
            raise OSError("the server\nhas gone")
        self.logged.append((t, values))

    def end(self, how):
        self.ended.append(how)


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_tensorboard_reads_back_the_numbers_and_settings_of_the_history(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    with tracked(["tensorboard"], tmp_path) as listener:
        compare(SMALL, ["standalone", "cgsv"], 1, tmp_path, listener=listener)
    history = read_history(tmp_path / "cgsv-seed0" / "history.jsonl")
    read = scalars(tmp_path / "tensorboard" / "cgsv-seed0")
    assert [t for t, _ in read["accuracy/max"]] == [kept.round for kept in history]
    for kept, (_, most), (_, second) in zip(history, read["accuracy/max"], read["client_accuracy/1"], strict=True):
        assert most == pytest.approx(max(kept.accuracies))
        assert second == pytest.approx(kept.accuracies[1])
    assert [value for _, value in read["client_reputation/2"]] == pytest.approx(
        [kept.reputation[2] for kept in history]
    )
    assert (tmp_path / "tensorboard" / "standalone-seed0").is_dir()

    events = EventAccumulator(str(tmp_path / "tensorboard" / "cgsv-seed0"))
    events.Reload()
    content = events.summary_metadata["_hparams_/session_start_info"].plugin_data.content
    settings = HParamsPluginData.FromString(content).session_start_info.hparams
    assert settings["method.beta"].number_value == 1.5
    assert settings["training.lr"].number_value == pytest.approx(0.1)
    assert settings["training.epochs"].string_value == "none"


def test_a_second_run_in_the_same_folder_takes_the_place_of_the_first(tmp_path):
    for fairness in (10.0, 20.0):
        with tracked(["tensorboard"], tmp_path) as listener:
            listener.tested(job("cgsv", 0), record(last=True, fairness=fairness))
    assert scalars(tmp_path / "tensorboard" / "cgsv-seed0")["fairness"] == [(1, 20.0)]


def test_without_a_folder_every_call_has_its_own_in_tracking(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        with tracked(["tensorboard"]) as listener:
            listener.tested(job("cgsv", 0), record(last=True))
    assert len(list((tmp_path / "tracking" / "tensorboard").glob("*/cgsv-seed0/events*"))) == 2


@pytest.fixture
def local_mlflow(monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # and is unset again after the test
    return pytest.importorskip("mlflow")


def mlflow_runs(mlflow, folder):
    client = mlflow.MlflowClient(tracking_uri=_local_store(folder)[0])
    found = client.search_runs([client.get_experiment_by_name("cofair").experiment_id])
    return client, {run.info.run_name: run for run in found}


def test_mlflow_reads_back_the_numbers_and_settings_of_the_history(tmp_path, local_mlflow):
    with tracked(["mlflow"], tmp_path) as listener:
        compare(SMALL, ["cgsv"], 2, tmp_path, listener=listener)
    client, runs = mlflow_runs(local_mlflow, tmp_path / "mlflow")
    assert set(runs) == {"cgsv-seed0", "cgsv-seed1"}
    run = runs["cgsv-seed1"]
    assert run.info.status == "FINISHED"
    assert run.data.params["method.beta"] == "1.5"
    assert run.data.params["run.seed"] == "1"
    history = read_history(tmp_path / "cgsv-seed1" / "history.jsonl")
    logged = client.get_metric_history(run.info.run_id, "client_accuracy/2")
    assert [(metric.step, metric.value) for metric in logged] == [(r.round, r.accuracies[2]) for r in history]
    assert run.data.metrics["accuracy/min"] == pytest.approx(min(history[-1].accuracies))


@pytest.mark.parametrize(("error", "status"), [(KeyboardInterrupt, "KILLED"), (RunError, "FAILED")])
def test_an_interrupted_run_is_told_from_a_finished_one(tmp_path, local_mlflow, error, status):
    def train():
        with tracked(["mlflow"], tmp_path) as listener:
            listener.tested(job("cgsv", 0), record(last=True))
            listener.tested(job("cgsv", 1), record())
            raise error

    with pytest.raises(error):
        train()
    _, runs = mlflow_runs(local_mlflow, tmp_path / "mlflow")
    assert {name: run.info.status for name, run in runs.items()} == {"cgsv-seed0": "FINISHED", "cgsv-seed1": status}


def test_a_server_that_does_not_answer_is_told_before_anything_is_trained(tmp_path, local_mlflow, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with (
        pytest.raises(RunError, match=r"Cannot track with mlflow at http://127\.0\.0\.1:9"),
        tracked(["mlflow"], tmp_path),
    ):
        pytest.fail("nothing may be trained")


@pytest.mark.parametrize(("kind", "package"), [("tensorboard", "torch.utils.tensorboard"), ("mlflow", "mlflow")])
def test_a_missing_package_is_one_sentence_with_the_command(tmp_path, monkeypatch, kind, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UsageError, match=r"pip install 'cofair\[track\]'"), tracked([kind], tmp_path):
        pass


def test_an_unknown_tracker_is_a_sentence(tmp_path):
    with pytest.raises(UsageError, match="did you mean 'mlflow'"), tracked(["mlfow"], tmp_path):
        pass
    assert not list(tmp_path.iterdir())


def test_a_tracker_that_fails_does_not_stop_the_others_nor_the_training():
    good, bad = Heard("good"), Heard("bad", fails_at=2)
    tracking, own = Tracking([bad, good]), job()
    for t in (1, 2, 3):
        tracking.tested(own, record(t, last=t == 3))
    assert [t for t, _ in good.logged] == [1, 2, 3]
    assert good.ended == ["finished"]
    assert [t for t, _ in bad.logged] == [1]
    assert tracking.troubles == ["Tracking with bad stopped: the server."]


def test_runs_in_lockstep_are_kept_apart_and_have_their_own_settings():
    heard = Heard()
    tracking, jobs = Tracking([heard]), [job("cgsv", 0), job("fedavg", 0), job("cgsv", 1)]
    for t in (1, 2):
        for own in jobs:
            tracking.tested(own, record(t, last=t == 2))
    assert [name for name, _ in heard.begun] == ["cgsv-seed0", "fedavg-seed0", "cgsv-seed1"]
    settings = [own for _, own in heard.begun]
    assert [own["run.seed"] for own in settings] == [0, 0, 1]
    assert settings[0]["method.beta"] == 1.5
    assert "method.beta" not in settings[1]
    assert heard.ended == ["finished"] * 3


def test_settings_of_ones_own_are_logged_as_well():
    heard = Heard()
    Tracking([heard], {"data": "ours"}).tested(job("cgsv", 4), record())
    ((name, settings),) = heard.begun
    assert name == "cgsv-seed4"
    assert (settings["method.name"], settings["run.seed"], settings["data"]) == ("cgsv", 4, "ours")


def test_a_run_that_fails_is_ended_and_others_continue():
    heard = Heard()
    tracking, first, second = Tracking([heard]), job("cgsv", 0), job("cgsv", 1)
    tracking.tested(first, record())
    tracking.failed(first, "It diverged.")
    tracking.failed(second, "It never began.")
    assert heard.ended == ["failed"]


def test_every_registered_tracker_is_there():
    for name, place in TRACKERS.items():
        module, _, kind = place.partition(":")
        assert getattr(importlib.import_module(module), kind).name == name


def test_what_is_logged_of_a_round():
    values = numbers(record(clients=3))
    assert values["accuracy/mean"] == pytest.approx(0.2)
    assert values["download"] == 1.0
    assert values["client_accuracy/2"] == pytest.approx(0.3)
    assert "fairness" not in numbers(record(fairness=None))
    assert not [name for name in numbers(record(clients=51)) if name.startswith("client")]


def test_listeners_combine():
    heard, own = [], record()
    tracker = Heard()
    Listeners(lambda *what: heard.append(what), Tracking([tracker])).tested(job(), own)
    assert heard == [("cgsv", 0, own)]
    assert [t for t, _ in tracker.logged] == [1]


def test_the_command_says_how_one_looks_at_the_logs(tmp_path, monkeypatch, capsys):
    quick = ["--rounds", "2", "--clients", "3", "--set", "training.steps=1", "--set", "contribution.epochs=1"]
    command = ["compare", "--methods", "fedavg", *quick, "--out", str(tmp_path), "--track", "tensorboard"]
    monkeypatch.setattr(sys, "argv", ["cofair", *command])
    with pytest.raises(SystemExit) as end:
        main.main()
    assert not end.value.code
    assert f"Tracked: tensorboard --logdir {tmp_path / 'tensorboard'}" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["cofair", *command, "--overwrite", "--json"])
    with pytest.raises(SystemExit):
        main.main()
    json.loads(capsys.readouterr().out)
