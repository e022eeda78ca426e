import math
from dataclasses import replace

import pandas as pd
import pytest

from cofair.report import findings
from cofair.report.reported_runs import ReportedMethod
from tests.report.made import made_run


@pytest.mark.parametrize(
    ("held", "column"),
    [({}, "fairness"), ({"held_fairness": [math.nan]}, "fairness"), ({"held_fairness": [90.0]}, "held_fairness")],
)
def test_methods_are_judged_by_what_clients_hold_where_that_was_measured(held, column):
    assert findings.judged_by(pd.DataFrame({"fairness": [80.0], **held})) == column


@pytest.mark.parametrize(
    ("gain", "words"),
    [(0.0, "as much as the best reaches alone"), (0.02, "2.0 points more"), (-0.03, "3.0 points less")],
)
def test_the_best_reward_is_compared_with_what_the_best_reaches_alone(gain, words):
    def rewarded(label):
        run = made_run(["a", "b", "c"], label)
        got = [value + gain for value in run.outcome.contributions]
        history = [replace(record, accuracies=got) for record in run.outcome.history]
        return ReportedMethod(label, (replace(run, outcome=replace(run.outcome, history=tuple(history))),))

    assert words in findings.findings([rewarded("cgsv"), rewarded("fedsac")])[0]
