"""What benchmarks choose and read for a page of results."""

import math
from types import SimpleNamespace

import pytest
from benchmarks.search import Row, choice
from benchmarks.tested_rounds import Rounds, in_cycle

from cofair.results.record import Record
from cofair.results.result import Outcome


def test_the_choice_is_the_fairest_of_those_within_a_point_of_the_best_accuracy():
    rows = [
        Row(99.9, 90.0, 40.0, 48.9, "fairest, too weak"),
        Row(97.0, 95.0, 49.0, 49.1, "fair"),
        Row(96.0, 99.0, 50.0, 50.0, "best accuracy"),
        Row(math.nan, math.nan, 50.0, 50.0, "never fair"),
    ]
    found = choice(rows)
    assert found is not None
    assert found.settings == "fair"
    assert choice(rows[3:]) is None
    assert choice([]) is None


def made(fairness, accuracies):
    history = tuple(
        Record(t, gamma, [0.1, top], None, None, [1, 1], 1.0, False)
        for t, (gamma, top) in enumerate(zip(fairness, accuracies, strict=True), start=1)
    )
    return Rounds(SimpleNamespace(outcome=Outcome("m", 0, ("a", "b"), (1, 1), (0.2, 0.4), history)))


def test_fewer_tested_rounds_and_an_earlier_end_are_read_from_the_same_run():
    gammas = [None, 99.0, *[50.0] * 2, 60.0, *[50.0] * 15]  # 20 rounds, the best in the second, the first has no γ
    run = made(gammas, [0.2, 0.3, 0.4, *[0.35] * 17])
    assert run.best() == 99
    assert run.best(5) == 60
    assert run.last() == 50
    assert run.top_until(2) == pytest.approx(30)
    assert run.top_until(20) == pytest.approx(40)


def test_rounds_are_told_by_where_they_stand_in_a_cycle():
    fresh = [90.0 if t % 4 == 2 else 10.0 for t in range(1, 17)]
    fresh[9] = 95.0  # round 10, the best
    told = in_cycle([made(fresh, [0.3] * 15 + [0.9])], 4)
    assert "0: 10.0, 1: 10.0, 2: 92.5, 3: 10.0" in told  # rounds 10 and 14; those by round 8 do not count
    assert "modulo 4: 2: 1; 0 by round 8, 1 with a best client more than 5 points below" in told
