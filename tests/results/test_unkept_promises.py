"""Promises that could not be kept are told in the end, and only those."""

import numpy as np
import pytest
from torch import nn

import cofair
from cofair.results.record import Record
from cofair.results.unkept_promises import unkept

NAMES = ("a", "b", "c", "d")


def record(promised, validated):
    return Record(
        9, None, [0.5] * 4, None, None, [1.0] * 4, 1.0, True, promised=promised, validated=validated
    )  # fmt: skip


@pytest.mark.parametrize(
    ("promised", "validated"),
    [
        (None, None),
        ([0.5, 0.6, 0.7, 0.9], [0.52, 0.6, 0.68, 0.9]),
        ([0.5, 0.6, 0.7, 0.9], [0.8, 0.6, 0.7, 0.9]),  # one of three is not most of them
        ([0.9] * 4, [0.9] * 4),  # everybody is promised the whole model
        ([float("nan")] * 4, [float("nan")] * 4),
    ],
)
def test_nothing_is_said_of_promises_that_are_kept(promised, validated):
    assert unkept(record(promised, validated), NAMES) is None


def test_models_that_are_better_or_worse_than_promised_are_told():
    said = unkept(record([0.5, 0.6, 0.7, 0.9], [0.9, 0.89, 0.7, 0.9]), NAMES)
    assert "2 of the 3 clients" in said
    assert "points better" in said
    assert "(client 'a': promised 50.0 %, has 90.0 %)" in said
    assert "points worse" in unkept(record([0.5, 0.6, 0.7, 0.9], [0.4, 0.4, 0.4, 0.9]), NAMES)


def test_a_result_says_that_nobody_can_be_given_less_than_the_initial_model():
    def draw(n, seed):
        rng = np.random.default_rng(seed)
        x = rng.normal(size=(n, 6))
        return x, (x[:, 0] > -1).astype(int)  # answering 1 is right five times of six

    federation = cofair.Federation([draw(n, n) for n in (20, 30, 90)], validation=draw(200, 1), test=draw(200, 2))
    result = cofair.run(
        lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2)), federation, "contract", rounds=4,
        method_settings={"curve": "proportional"}, contributions=[0.01, 0.02, 1.0], lr=0.3,
    )  # fmt: skip
    assert result.notes[-1].startswith("Promises could not be kept: 2 of the 2 clients")
    assert result.notes[:-1] == tuple(result.facts["notes"])
