from types import SimpleNamespace

import numpy as np
import pytest

from cofair.config.experiment import Experiment
from cofair.report import page
from cofair.report.clients import client_plots
from cofair.report.plots import Lines
from cofair.report.promise_section import misses_over_rounds, promise_sentences, promises, round_by_round
from cofair.report.reported_runs import read_methods, reported_method
from cofair.report.statement import ClientStatements
from cofair.results.record import Record
from cofair.runs.single import run_experiment
from tests.storage.test_resume import carried_out, experiment_of


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
    sentence = promise_sentences(RUN, promises(RUN), 0, last=2)
    assert sentence.startswith(
        "It was promised 31.0 %: its reward has 31.0 % on the validation set and 31.5 % on the test"
    )
    assert sentence.endswith("The largest miss was 3.0 points above the promise, in round 1.")


def test_a_client_is_told_every_round():
    assert round_by_round(promises(RUN), 1) == [
        ["1", "50.0 %", "50.0 %", "50.0 %", "+0.0 points"],
        ["2", "50.0 %", "50.0 %", "49.0 %", "−1.0 points"],
        ["3", "52.0 %", "52.0 %", "51.0 %", "−1.0 points"],
    ]


def test_a_client_is_told_how_closely_a_promise_can_be_kept():
    records = RUN.outcome.history
    # found on the validation set is 31 %: 1.96 √(0.31 · 0.69 / 400) = 4.5 points, on half as many 6.4
    for facts, told_at_the_end in [
        ({"validation_samples": 400}, "What 400 samples find holds to ± 4.5 points on new data, 95 times of 100."),
        ({"validation_samples": 400, "fit": "halves"}, "What 200 samples find holds to ± 6.4 points on new data"),
        (
            {"validation_samples": 400, "metric": "AUROC"},
            "The largest miss was 3.0 points above the promise, in round 1.",
        ),
    ]:
        run = run_of(records, **facts)
        assert told_at_the_end in promise_sentences(run, promises(run), 0, last=2)


def test_a_client_is_told_where_a_promise_has_fallen_below_what_it_holds():
    records = [record(1, [0.5, 0.6], [0.5, 0.6], [0.5, 0.6]), record(2, [0.4, 0.55], [0.5, 0.55], [0.5, 0.55])]
    run = run_of(records)
    assert "its model is 10.0 points better on the validation set than promised" in promise_sentences(
        run, promises(run), 0
    )
    assert "cannot be taken back" not in promise_sentences(run, promises(run), 1)


def test_methods_without_promises_have_none():
    bare = Record(1, 90.0, [0.3, 0.5], None, None, [1.0, 1.0], 1.0, True)
    assert promises(run_of([bare])) is None


def test_a_statement_shows_promised_validated_and_tested_round_by_round(tmp_path):
    """A real run of contract, as the page of one client tells it."""
    experiment = experiment_of("contract")
    carried_out(experiment, tmp_path / "run")
    entry = read_methods([tmp_path / "run"])[0]
    text = page.client_document(entry, "2")
    last = entry.runs[0].outcome.history[-1]
    cells = [100 * values[2] for values in (last.promised, last.validated, last.accuracies)]
    assert all(f"<td>{cell:.1f} %</td>" in text for cell in cells)
    assert text.count("points</td>") == len(entry.runs[0].outcome.history)
    (plot,) = client_plots(ClientStatements(entry), 2)
    assert [mark.name for mark in plot.marks if isinstance(mark, Lines)] == [
        "its reward", "promised", "on the validation set",
    ]  # fmt: skip
    assert "Its reputation" not in text


def test_a_client_that_was_removed_is_promised_nothing_any_more(tmp_path):
    """Its promise of before is not held against the model that it keeps."""
    run = run_of([record(1, [0.3, 0.5], [0.3, 0.5], [0.3, 0.5]), record(2, [np.nan, 0.5], [np.nan, 0.5], [0.9, 0.5])])
    assert promise_sentences(run, promises(run), 0) == (
        "It was removed after round 1: it keeps the model it had then, and nothing is promised to it any more (seed 0)."
    )
    assert promise_sentences(run, promises(run), 1).startswith("It was promised 50.0 %")
    assert len(round_by_round(promises(run), 0)) == 1
    attacked = Experiment.from_dict(
        {
            "training": {"rounds": 14, "steps": 5}, "method": {"name": "contract"}, "contribution": {"epochs": 2},
            "run": {"device": "cpu", "evaluate_every": 1},
            "attack": {"name": "sign_flip", "clients": [5, 6], "from_round": 2}, "defence": {"threshold": 0.33},
        }
    )  # fmt: skip
    result = run_experiment(attacked)
    gone = [i for i, value in enumerate(result.history[-1].promised) if np.isnan(value)]
    assert gone
    assert all(np.isnan(result.history[-1].validated[i]) for i in gone)
    sentences = ClientStatements(reported_method(result)).sentences(gone[0])
    assert "It was removed by the defence, and counts as the client that brings least (seed 0)." in sentences[0]
    assert any(sentence.startswith("It was removed after round") for sentence in sentences)
