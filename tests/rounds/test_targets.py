"""One run each of what `benchmarks.attacks` and `benchmarks.participation` measure: digits, scene pow, ten clients."""

from functools import cache

import numpy as np
import pytest

from cofair import metrics
from cofair.config.experiment import Experiment
from cofair.results.result import Result
from cofair.runs.single import run_experiment

FREE_RIDERS = ("1", "4", "8")


@cache
def trained(method: str, **tables: str) -> Result:
    settings = {
        "training": {"rounds": 100}, "run": {"evaluate_every": 100, "device": "cpu"}, "method": {"name": method},
        **({"attack": {"name": tables["attack"], "clients": [1, 4, 8]}} if "attack" in tables else {}),
        **({"participation": {"dropout": float(tables["dropout"])}} if "dropout" in tables else {}),
    }  # fmt: skip
    return run_experiment(Experiment.from_dict(settings))


@pytest.mark.parametrize("method", ["fedsac", "fedrac", "contract"])
def test_three_free_riders_of_ten_get_less_than_every_honest_client(method):
    result = trained(method, attack="echo")
    rewards = np.mean([record.accuracies for record in result.history[-10:]], axis=0)
    cheats = np.array([name in FREE_RIDERS for name in result.names])
    assert metrics.fairness(np.array(result.contributions)[~cheats], rewards[~cheats]) > 90
    assert rewards[cheats].max() <= rewards[~cheats].min() + 0.01  # an image of 364, or three: chance against chance


@pytest.mark.parametrize("method", ["fedsac", "fedrac", "contract"])
def test_a_dropout_of_30_percent_costs_little(method):
    always, dropping = (trained(method, **how).cell("last") for how in ({}, {"dropout": "0.3"}))
    assert dropping.fairness > always.fairness - 4  # one seed; over three it is at most 1.1
    assert dropping.mean > always.mean - 0.05
