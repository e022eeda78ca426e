import errno
import json
import math
import statistics
from pathlib import Path

import pytest
import torch
from torch import nn

import cofair
from cofair.config.experiment import Experiment
from cofair.errors import RunError, UsageError
from cofair.methods.fedavg import FedAvg
from cofair.models import build
from cofair.results.record import Record
from cofair.runs.single import run_experiment
from cofair.storage.folder import RunFolder, write_whole
from cofair.storage.history import read_history

SMALL = {
    "federation": {"clients": 4},
    "model": {"hidden": [16]},
    "training": {"rounds": 12, "steps": 3, "lr": 0.1},
    "contribution": {"epochs": 3},
}


def mlp():
    return build("mlp", (1, 8, 8), 10, hidden=(16,))


@pytest.fixture(scope="module")
def federation():
    return cofair.federate("digits", "pow", clients=4)


def run(federation, **changes):
    given = {"rounds": 12, "steps": 3, "lr": 0.1, "contribution": {"epochs": 3}} | changes
    return cofair.run(given.pop("model", mlp), federation, given.pop("method", "fedavg"), **given)


def test_a_result_tells_who_brought_what_and_who_got_what(federation):
    result = run(federation)
    assert len(result.accuracies) == len(result.contributions) == len(result.rewards) == 4
    assert [record.round for record in result.history] == list(range(3, 13))
    assert (result.fairness, result.accuracies) == (result.history[-1].fairness, tuple(result.history[-1].accuracies))
    assert result.cell("last").fairness == pytest.approx(sum(r.fairness for r in result.history) / 10)
    rows = [record.accuracies for record in result.history]
    assert result.spread == pytest.approx([statistics.stdev(own) for own in zip(*rows, strict=True)])
    frame = result.to_frame()
    assert len(frame) == 10 * 4
    assert set(frame.columns) >= {"round", "client", "contribution", "accuracy", "download"}
    assert "fairness" in repr(result)


def test_the_rewards_are_the_models_that_were_tested(federation):
    result = run(federation)
    test = federation.test
    for i, module in enumerate(result.rewards):
        with torch.no_grad():
            accuracy = (module(test.x).argmax(1) == test.y).double().mean()
        assert float(accuracy) == pytest.approx(result.history[-1].accuracies[i])
    assert len(result.rewards[1:3]) == 2
    assert torch.equal(result.rewards[-1][1].weight, result.rewards[3][1].weight)
    with pytest.raises(IndexError, match="no client 4"):
        result.rewards[4]


def test_the_same_seed_gives_the_same_result_and_another_seed_another(federation):
    first, again, other = run(federation, seed=5), run(federation, seed=5), run(federation, seed=6)
    assert first.accuracies == again.accuracies
    assert [r.fairness for r in first.history] == [r.fairness for r in again.history]
    assert first.accuracies != other.accuracies


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_a_modules_own_weights_are_the_start_and_stay_untouched(federation, precision):
    module = mlp()
    before = [parameter.clone() for parameter in module.parameters()]
    execution = {"precision": precision}
    cofair.run(module, federation, rounds=2, steps=1, contribution={"epochs": 1}, execution=execution)
    assert all(torch.equal(a, b) for a, b in zip(before, module.parameters(), strict=True))


def test_a_foreign_module_works_as_well_as_ours(federation):
    class Theirs(nn.Module):
        def __init__(self):
            super().__init__()
            self.mix = nn.Linear(64, 12)
            self.norm = nn.LayerNorm(12)
            self.head = nn.Linear(12, 10)

        def forward(self, x):
            return self.head(torch.nn.functional.gelu(self.norm(self.mix(x.flatten(1)))))

    assert run(federation, model=Theirs).accuracies[0] > 0.2


def test_equal_rewards_have_no_fairness_and_say_so(federation):
    result = run(federation, method=FedAvg(personalise_units=0))
    assert result.fairness is None
    assert len(set(result.accuracies)) == 1
    assert "undefined" in repr(result)


def test_contributions_can_be_given(federation):
    result = run(federation, contributions=[0.1, 0.2, 0.3, 0.4])
    assert result.contributions == (0.1, 0.2, 0.3, 0.4)
    for wrong in ([0.1], [0.1, 0.2, 0.3, math.nan]):
        with pytest.raises(UsageError, match="4 finite numbers"):
            run(federation, contributions=wrong)


@pytest.mark.parametrize("metric", ["balanced_accuracy", "auroc", lambda outputs, targets: 0.25])
def test_another_metric_can_count(federation, metric):
    result = run(federation, metric=metric, contributions=[1, 2, 3, 4])
    if callable(metric):
        assert result.accuracies == (0.25,) * 4
    else:
        assert 0.1 < result.accuracies[0] <= 1


def test_a_federation_without_validation_runs_what_needs_none():
    federation = cofair.federate("digits", "uni", clients=3, validation=0.0)
    assert run(federation).fairness is not None
    with pytest.raises(UsageError, match=r"contribution.on = 'validation' needs a validation set"):
        run(federation, contribution={"on": "validation"})
    with pytest.raises(UsageError, match=r"run.joint = true needs a validation set"):
        run(federation, execution={"joint": True})


def test_contributions_on_the_validation_set_are_what_a_real_server_can_measure(federation):
    on_test, on_validation = run(federation), run(federation, contribution={"epochs": 3, "on": "validation"})
    assert on_test.contributions != on_validation.contributions
    assert all(abs(a * 143 - round(a * 143)) < 1e-4 for a in on_validation.contributions)


def test_the_joint_rule_needs_scores_on_the_validation_set(federation):
    with pytest.raises(UsageError, match=r"run\.joint = true"):
        run(federation).cell("joint")
    assert run(federation, execution={"joint": True}).cell("joint").rounds


def test_a_client_that_diverges_alone_is_named(federation):
    with pytest.raises(RunError, match="Client '0' diverged when it trained alone"):
        run(federation, lr=1e20)


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
def test_looking_more_often_does_not_change_what_is_learned(federation, optimiser):
    often, seldom = (
        run(federation, optimiser=optimiser, lr=0.01, rounds=24, execution={"evaluate_every": every})
        for every in (1, 50)
    )
    assert often.accuracies == seldom.accuracies


def test_divergence_is_told_in_a_sentence(federation):
    with pytest.raises(RunError, match=r"diverged by round \d+.*lower training.lr"):
        run(federation, lr=1e20, clip=None, contributions=[1, 2, 3, 4])


class Counting(nn.Module):
    """A module that counts what it sees, as running statistics do."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        if self.training:
            self.seen += len(x)
        return x


class WrongInput(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(7, 10)

    def forward(self, x):
        return self.layer(x)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"model": WrongInput}, r"The model failed on inputs of shape \(2, 1, 8, 8\)"),
        ({"model": lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 3))}, "federation has 10 classes"),
        ({"model": lambda: 3}, "must return an nn.Module"),
        ({"model": lambda: nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, 10))}, "GroupNorm"),
        ({"loss": lambda outputs, targets: outputs.mean()}, "one value per sample"),
        ({"loss": lambda outputs, targets: outputs @ targets}, "The loss failed"),
        ({"loss": "hinge"}, "Unknown loss 'hinge'"),
        ({"metric": "f2"}, "Unknown metric 'f2'"),
        ({"method": "nothing"}, "Unknown method"),
        ({"model": "mlp"}, "must be an nn.Module or a function"),
        ({"model": nn.Linear}, "must take no arguments"),
        ({"model": lambda: nn.Sequential(nn.Flatten(), nn.LazyLinear(10))}, "lazy layers"),
        ({"model": lambda: nn.Sequential(Counting(), nn.Flatten(), nn.Linear(64, 10))}, "changes its buffer '0.seen'"),
        ({"method": FedAvg}, "a method object such as"),
        ({"method": FedAvg(), "method_settings": {"carry_over": True}}, "a method object such as"),
        ({"contributions": ["a"] * 4}, "contributions must be numbers"),
        ({"metric": lambda outputs, targets: 1 / 0}, "The metric failed on the model's outputs: division by zero"),
        ({"metric": lambda outputs, targets: math.nan}, "The metric is NaN"),
        ({"loss": 3}, "loss must be a name or a callable"),
    ],
)
def test_a_misfit_is_told_before_anything_is_trained(federation, changes, sentence):
    with pytest.raises(UsageError, match=sentence):
        run(federation, **changes)


def test_something_else_than_a_federation_is_refused():
    with pytest.raises(UsageError, match=r"cofair\.Federation"):
        cofair.run(mlp, [(1, 2)])


def test_a_run_folder_holds_the_resolved_experiment_the_history_and_the_summary(tmp_path):
    experiment = Experiment.from_dict(SMALL)
    result = run_experiment(experiment, RunFolder(tmp_path / "run"))
    assert Experiment.from_file(tmp_path / "run" / "experiment.toml").to_dict() == experiment.to_dict()
    facts = json.loads((tmp_path / "run" / "run.json").read_text())
    assert facts["versions"]["cofair"] == cofair.__version__
    assert (facts["seed"], facts["samples"]) == (0, list(result.sizes))
    assert read_history(tmp_path / "run" / "history.jsonl") == list(result.history)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["cells"]["delivered"]["fairness"] == pytest.approx(result.fairness)
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [
        ".lock", "experiment.toml", "history.jsonl", "ledger.jsonl", "rewards.safetensors", "run.json", "summary.json",
    ]  # fmt: skip


def test_a_run_folder_says_what_did_not_come_from_its_file(tmp_path, federation):
    run(federation, out=tmp_path / "run", metric="balanced_accuracy")
    text = (tmp_path / "run" / "experiment.toml").read_text()
    assert text.startswith("# given in Python, not by this file: federation, model")
    assert "[federation]" not in text
    assert "[model]" not in text
    assert 'metric = "balanced_accuracy"' in text


def test_a_torch_loss_with_weights_goes_where_the_model_goes(federation):
    weighted = nn.CrossEntropyLoss(weight=torch.ones(10))
    plain, same = run(federation), run(federation, loss=weighted)
    assert plain.accuracies == pytest.approx(same.accuracies, abs=0.02)
    assert weighted.reduction == "mean"  # the caller's own is not changed
    run(federation, loss=weighted, execution={"precision": "float64"})


def test_squared_error_takes_classes_as_vectors(federation):
    assert min(run(federation, loss="squared_error", lr=0.05, steps=10).accuracies) > 0.5


def test_an_earlier_run_is_not_overwritten_unless_asked(tmp_path):
    folder = RunFolder(tmp_path)
    folder.begin("[run]\n", {})
    with pytest.raises(UsageError, match="holds results already"):
        RunFolder(tmp_path)
    folder.record(Record(1, None, [0.5], None, None, [1.0], 0.1, True))
    again = RunFolder(tmp_path, overwrite=True)
    assert (tmp_path / "history.jsonl").exists()  # nothing is cleared before the new run really begins
    again.begin("[run]\n", {})
    assert not (tmp_path / "history.jsonl").exists()
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UsageError, match="is a file"):
        RunFolder(tmp_path / "file")


def test_a_history_cut_off_by_an_interruption_reads_up_to_there(tmp_path):
    run_experiment(Experiment.from_dict(SMALL), RunFolder(tmp_path))
    path = tmp_path / "history.jsonl"
    whole = read_history(path)
    text = path.read_text()
    for cut in range(0, len(text), 97):
        path.write_text(text[:cut])
        records = read_history(path)
        assert records == whole[: len(records)]
        assert len(records) >= text[:cut].count("\n")
    path.write_text(text.replace('"round"', '"ro', 1))
    with pytest.raises(RunError, match="Line 1 of the history"):
        read_history(path)


def test_a_full_disk_is_told_and_keeps_the_earlier_file(tmp_path, monkeypatch):
    path = tmp_path / "summary.json"
    write_whole(path, "good")

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(RunError, match="the disk is full"):
        write_whole(path, "half of the new")
    assert path.read_text() == "good"
    assert list(tmp_path.iterdir()) == [path]


def test_a_real_full_disk_stops_the_history_with_a_sentence(tmp_path):
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    folder = RunFolder(tmp_path)
    (tmp_path / "history.jsonl").symlink_to("/dev/full")
    record = run_experiment(Experiment.from_dict(SMALL)).history[0]
    with pytest.raises(RunError, match="the disk is full; what was written before is kept"):
        folder.record(record)


def test_a_folder_that_cannot_be_made_is_a_sentence():
    with pytest.raises(RunError, match="Cannot write to"):
        RunFolder(Path("/proc/cofair-run")).begin("", {})
