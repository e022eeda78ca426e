"""What clients hold, as the report shows it and a statement says it."""

from dataclasses import replace

import numpy as np
import pytest

from cofair.report import figures, page
from cofair.report.held_section import held_sentence, promised_delivered_held
from cofair.report.plots import Bars, Points
from cofair.report.reported_runs import ReportedMethod
from cofair.report.statement import ClientStatements
from tests.report.made import made_method, made_run

NAMES = ["a", "b", "c"]


def promising(run, promised):
    """The run, of which the last round makes promises."""
    *earlier, last = run.outcome.history
    last = replace(last, promised=promised, validated=last.accuracies)
    return replace(run, outcome=replace(run.outcome, history=(*earlier, last)))


def held_of(run, **changes):
    *earlier, last = run.outcome.history
    return replace(run, outcome=replace(run.outcome, history=(*earlier, replace(last, **changes))))


def test_a_statement_says_how_much_more_a_client_holds_than_it_was_promised():
    run = promising(made_run(NAMES, held=True), [0.6, 0.7, float("nan")])
    held = 100 * run.outcome.held.accuracies
    assert held_sentence(run, 0) == (
        f"With everything it was ever handed and its own data it can make a model of {held[0]:.1f} % (kept), "
        f"{held[0] - 60:.1f} points above its promise (seed 0)."
    )
    assert held_sentence(run, 2).endswith(
        "(kept), 1.0 points above the model delivered to it (seed 0)."
    )  # nothing promised


def test_a_client_may_hold_less_than_what_was_delivered_or_as_much():
    run = made_run(NAMES, held=True)
    given = run.outcome.history[-1].accuracies
    worse = held_of(run, held=[given[0] - 0.02, *given[1:]], held_as=["tuned", "delivered", "delivered"])
    assert held_sentence(worse, 0).endswith("(tuned), 2.0 points below the model delivered to it (seed 0).")
    assert held_sentence(worse, 1).endswith("(delivered), as much as the model delivered to it (seed 0).")


def test_a_deployment_says_that_nothing_was_tuned():
    run = made_run(NAMES, held=True)
    parts = {name: own for name, own in run.outcome.history[-1].held_parts.items() if name != "tuned"}
    sentence = held_sentence(held_of(run, held_parts=parts), 0)
    assert sentence.startswith("With everything it was ever handed it can make a model of")
    assert sentence.endswith("Its own data is elsewhere, so nothing was tuned on it.")


def test_the_statement_of_a_client_has_the_sentence_and_without_a_measurement_nothing():
    method = made_method("fedsac", NAMES, held=True)
    assert sum("ever handed" in sentence for sentence in ClientStatements(method).sentences(1)) == 1
    without = made_method("fedsac", NAMES)
    assert not any("ever handed" in sentence for sentence in ClientStatements(without).sentences(1))
    assert promised_delivered_held(without) is None
    assert "held" not in [plot.key for plot in figures.of_method(without)]
    mixed = ReportedMethod("fedsac", (method.runs[0], without.runs[1]))
    assert promised_delivered_held(mixed) is None


def test_the_picture_has_bars_in_the_order_of_contributions_means_over_seeds():
    method = made_method("fedsac", NAMES, held=True)
    turned = [
        replace(run, outcome=replace(run.outcome, contributions=run.outcome.contributions[::-1])) for run in method.runs
    ]
    plot = promised_delivered_held(ReportedMethod("fedsac", tuple(turned)))
    assert [mark.name for mark in plot.marks] == ["delivered", "held"]
    assert all(isinstance(mark, Bars) and mark.x == ("c", "b", "a") for mark in plot.marks)
    held = 100 * np.mean([run.outcome.held.accuracies for run in method.runs], axis=0)
    assert plot.marks[1].y == pytest.approx(held[::-1])
    assert f"was delivered {held[2] - 1:.1f} % and holds {held[2]:.1f} %" in plot.caption
    promised = ReportedMethod("contract", tuple(promising(run, [0.5, 0.6, 0.7]) for run in method.runs))
    plot = promised_delivered_held(promised)
    assert [mark.name for mark in plot.marks] == ["promised", "delivered", "held"]
    assert plot.marks[0].y == pytest.approx((50, 60, 70))


def test_many_clients_are_points_above_what_was_delivered_to_them():
    plot = promised_delivered_held(made_method("fedsac", [str(i) for i in range(41)], held=True))
    (points,) = plot.marks
    assert isinstance(points, Points)
    assert np.allclose(np.array(points.y) - np.array(points.x), 1)


def test_the_page_shows_the_picture_and_the_columns():
    text = page.document([made_method("fedsac", NAMES, held=True)])
    assert "What each client holds" in text
    assert "held weakest %" in text
