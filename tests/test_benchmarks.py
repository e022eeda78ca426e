"""What benchmarks choose for a page of results."""

import math

from benchmarks.search import Row, choice


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
