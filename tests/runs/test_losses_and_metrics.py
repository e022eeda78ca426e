"""Runs on classes with a single logit and on real numbers: losses and metrics by name, tried before training."""

import numpy as np
import pytest
import torch
from torch import nn

import cofair
from cofair.config.experiment import Experiment
from cofair.errors import UsageError
from cofair.runs.scheduling import alike

WEIGHTS = np.random.default_rng(3).normal(size=6)
METHODS = ("fedavg", "fedsac", "contract")


def numbers(n, seed):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 6))
    return x, x @ WEIGHTS + 0.3 * rng.normal(size=n)


def classes(n, seed):
    x, y = numbers(n, seed)
    return x, (y > 0).astype(int)


def real_classes(n, seed):
    x, y = classes(n, seed)
    return x, y.astype(float)


def federation(draw, sizes=(10, 30, 60)):
    clients = [draw(n, seed) for seed, n in enumerate(sizes)]
    return cofair.Federation(clients, validation=draw(80, 10), test=draw(100, 11))


def network(outputs=1):
    return lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, outputs))


def run(draw, outputs=1, *, method="fedavg", **settings):
    return cofair.run(network(outputs), federation(draw), method, **{"rounds": 15, "lr": 0.3, "steps": 10} | settings)


@pytest.mark.parametrize("method", METHODS)
def test_a_single_logit_is_trained_and_judged_by_its_sign(method):
    result = run(classes, loss="bce", method=method)
    assert max(result.accuracies) > 0.8
    reward, (x, y) = result.rewards[2], classes(100, 11)
    with torch.no_grad():
        answers = reward(torch.tensor(x, dtype=torch.float32))[:, 0] > 0
    assert float((answers.numpy() == y).mean()) == pytest.approx(result.history[-1].accuracies[2])


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("loss", ["mse", "mae", "huber"])
def test_real_numbers_are_judged_by_r2(method, loss):
    result = run(numbers, loss=loss, method=method, lr=0.05 if loss == "mse" else 0.3)
    assert 0.5 < max(result.accuracies) <= 1
    assert 'metric = "r2"' in result.experiment_toml


def test_real_labels_0_and_1_are_classes_for_a_single_logit():
    assert run(real_classes, loss="bce").accuracies == run(classes, loss="bce").accuracies


def test_torchs_loss_gives_what_its_name_gives():
    pairs = (classes, "bce", nn.BCEWithLogitsLoss(), "auroc"), (numbers, "huber", nn.HuberLoss(), "c_index")
    for draw, name, module, metric in pairs:
        by_name, by_torch = (
            run(draw, loss=loss, metric=metric, rounds=2, contributions=[1, 2, 3]) for loss in (name, module)
        )
        assert by_name.accuracies == by_torch.accuracies


def test_engines_agree():
    one, other = (
        run(
            numbers,
            loss="huber",
            rounds=2,
            contributions=[1, 2, 3],
            execution={"engine": engine, "precision": "float64"},
        ).accuracies
        for engine in ("loop", "vectorised")
    )
    assert one == pytest.approx(other, abs=1e-9)


@pytest.mark.parametrize("method", METHODS)
def test_models_that_are_worse_than_nothing_are_no_obstacle(method):
    result = run(numbers, loss="mse", method=method, lr=1e-4, contribution={"epochs": 1})
    assert all(value < 0.2 for value in (*result.accuracies, *result.contributions))
    assert np.isfinite(result.accuracies).all()


@pytest.mark.parametrize("metric", ["f1", "log_loss", "balanced_accuracy"])
def test_metrics_of_classes_by_name(metric):
    logit, two = run(classes, loss="bce", metric=metric), run(classes, 2, metric=metric)
    assert min(max(logit.accuracies), max(two.accuracies)) > 0.3


def test_an_error_can_be_read_off_the_note_of_its_metric():
    result = run(numbers, loss="mae", metric="mae", rounds=3, contributions=[1, 2, 3])
    (note,) = result.facts["notes"]
    known = float(note.split("(1 − v) × ")[1].rstrip("."))
    x, y = numbers(100, 11)
    with torch.no_grad():
        found = result.rewards[2](torch.tensor(x, dtype=torch.float32))[:, 0].numpy()
    assert (1 - result.history[-1].accuracies[2]) * known == pytest.approx(abs(found - y).mean(), rel=1e-3)


def test_a_metric_that_a_set_cannot_define_is_told_before_training():
    def never():
        raise AssertionError("trained")

    x, y = classes(50, 0)
    one_class = (x, np.ones(50, dtype=int))
    clients = [classes(20, 1), classes(30, 2)]
    for name, sets in (("test", {"test": one_class}), ("validation", {"test": (x, y), "validation": one_class})):
        with pytest.raises(UsageError, match=rf"cannot be taken on the {name} set. AUROC needs .* all are of class 1"):
            cofair.run(network(), cofair.Federation(clients, **sets), loss="bce", metric="auroc", listener=never)
    with pytest.raises(UsageError, match="targets are real numbers"):
        run(numbers, loss="mse", metric="accuracy")


@pytest.mark.parametrize("weights", ["balanced", [1, 6], np.array([1.0, 6.0])])
def test_class_weights_raise_what_is_recognised_of_a_rare_class(weights):
    def rare(n, seed):
        x, y = numbers(n, seed)
        return x, (y > 3).astype(int)

    plain, weighted = (
        run(rare, loss="bce", metric="balanced_accuracy", class_weights=own, rounds=20, contributions=[1, 2, 3])
        for own in (None, weights)
    )
    assert all(more > less for more, less in zip(weighted.accuracies, plain.accuracies, strict=True))
    assert "class_weights" in weighted.experiment_toml


def test_class_weights_by_name_of_a_class_are_refused():
    with pytest.raises(UsageError, match="class_weights must be 'balanced' or a list of numbers"):
        run(classes, loss="bce", class_weights={0: 1.0, 1: 6.0})


def test_runs_share_a_batch_only_if_they_share_class_weights():
    def of(seed, weights):
        return alike(Experiment.from_dict({"run": {"seed": seed, "class_weights": weights}}))

    assert of(0, [1.0] * 10) == of(1, [1.0] * 10) != of(0, [2.0] * 10)
    assert of(0, "balanced") != of(1, "balanced")  # whose validation sets differ
