from types import SimpleNamespace

import numpy as np
import pytest

from cofair.report.promise import misses_over_rounds, promises, told
from cofair.runs.history import Record


def record(t, promised, validated, tested):
    return Record(t, 90.0, tested, None, None, [1.0, 1.0], 1.0, t == 3, promised=promised, validated=validated)


def run_of(records, metric="accuracy", fit="whole", **facts):
    outcome = SimpleNamespace(history=tuple(records), names=("a", "b"), contributions=(0.2, 0.4), seed=0)
    return SimpleNamespace(
        outcome=outcome, missing=(), facts=facts, metric=metric, setting=lambda table, key: {"fit": fit}.get(key)
    )


RUN = run_of(
    [
        record(1, [0.30, 0.50], [0.31, 0.50], [0.33, 0.50]),
        record(2, [0.30, 0.50], [0.30, 0.50], [0.31, 0.49]),
        record(3, [0.32, 0.52], [0.32, 0.52], [0.32, 0.51]),
    ]
)


def test_misses_are_tested_less_promised_in_points():
    made = promises(RUN)
    assert np.allclose(made.misses, [[3, 0], [1, -1], [0, -1]])
    plot = misses_over_rounds(RUN, made)
    assert plot.caption.startswith("In 2 of 3 tested rounds nobody's reward was 1.5 points or more away")
    assert plot.marks[0].y == pytest.approx((3, 1, 0))


def test_a_client_is_told_its_promise_and_its_largest_miss():
    sentence = told(RUN, promises(RUN), 0, last=2)
    assert sentence.startswith(
        "It was promised 31.0 %: its reward has 31.0 % on the validation set and 31.5 % on the test"
    )
    assert sentence.endswith("The largest miss was 3.0 points above the promise, in round 1.")


def test_a_client_is_told_how_closely_a_promise_can_be_kept():
    records = RUN.outcome.history
    # promised 31 %: 1.96 √(0.31 · 0.69 / 400) = 4.5 points, on half as many 6.4
    for facts, told_at_the_end in [
        ({"validation_samples": 400}, "A promise that 400 samples keep holds to ± 4.5 points on new data, 95 times of"),
        ({"validation_samples": 400, "fit": "halves"}, "A promise that 200 samples keep holds to ± 6.4 points on new"),
        (
            {"validation_samples": 400, "metric": "AUROC"},
            "The largest miss was 3.0 points above the promise, in round 1.",
        ),
    ]:
        run = run_of(records, **facts)
        assert told_at_the_end in told(run, promises(run), 0, last=2)


def test_methods_without_promises_have_none():
    bare = Record(1, 90.0, [0.3, 0.5], None, None, [1.0, 1.0], 1.0, True)
    assert promises(run_of([bare])) is None
