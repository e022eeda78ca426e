"""What is shown: small cases with the numbers one can check by hand."""

import dataclasses

import pytest

from cofair.report import figures, over_rounds
from cofair.report.plots import Band, Bars, Heat, Lines, Points
from cofair.report.reported_runs import ReportedMethod, ReportedRun
from cofair.results.record import Record
from cofair.results.result import Outcome
from tests.report.made import made_method, made_run


def run_of(brought, got, *, rounds=(1,), allocation=None, download=0.5, method="fedsac", every=1):
    n = len(brought)
    history = tuple(
        Record(t, None, list(got), None, None, [download] * n, 1.0, t == rounds[-1], allocation) for t in rounds
    )
    outcome = Outcome(
        method, 0, tuple("abcdefg"[:n]), (10,) * n, tuple(brought), history, contributions_are_accuracies=True
    )
    experiment = {
        "training": {"rounds": rounds[-1]}, "contribution": {"measure": "standalone"},
        "run": {"metric": "accuracy", "evaluate_every": every},
    }  # fmt: skip
    return ReportedRun(None, outcome, experiment, {"given": [], "parameters": 250})


def reported_method(*arguments, **kind):
    run = run_of(*arguments, **kind)
    return ReportedMethod(run.outcome.method, (run,))


def test_bars_show_what_clients_brought_and_got():
    plot = figures.contribution_and_reward(reported_method([0.5, 0.25], [0.75, 0.125]))
    assert plot.marks == (Bars("brought", ("a", "b"), (50.0, 25.0)), Bars("got", ("a", "b"), (75.0, 12.5)))
    assert plot.caption == (
        "Fairness γ is 100.0 (100 would be perfectly in proportion). "
        "1 of 2 clients got more than they reach alone, 1 got less."
    )


@pytest.mark.parametrize(
    ("got", "words"),
    [([0.75, 0.5], "All 2 clients got more"), ([0.5, 0.25], "Every client has exactly what it reaches alone.")],
)
def test_a_gain_is_a_gain(got, words):
    assert words in figures.contribution_and_reward(reported_method([0.5, 0.25], got)).caption


def test_a_reward_inside_and_one_above_its_bounds():
    # the upper bound of b is (0.5 × 0.25 / 0.5 + 0.5) × 0.8 = 0.6
    plot = figures.bounds(reported_method([0.5, 0.25], [0.8, 0.7]))
    band, inside, outside = plot.marks
    assert isinstance(band, Band)
    assert band.low == (50.0, 25.0)
    assert band.high == pytest.approx((80.0, 60.0))
    assert inside == Points("reward inside", ("a",), (80.0,))
    assert outside == Points("reward outside", ("b",), (70.0,))
    assert plot.caption.startswith("1 of 2 rewards are inside")


def test_lines_are_in_the_order_of_contributions_and_break_where_rounds_are_missing():
    run = run_of([0.5, 0.2, 0.3], [0.6, 0.6, 0.6], rounds=(1, 2, 4))
    lines = over_rounds.accuracy_over_rounds(run).marks
    assert all(isinstance(line, Lines) for line in lines)
    assert [line.order for line in lines] == [1.0, 0.0, 0.5]
    assert lines[0].x == (1.0, 2.0, 3.0, 4.0)
    assert lines[0].y == (60.0, 60.0, None, 60.0)


def test_many_clients_are_summarised():
    marks = over_rounds.accuracy_over_rounds(made_run([str(k) for k in range(1000)])).marks
    assert [type(mark) for mark in marks] == [Band, Band, Band, Lines]
    everybody, most, half = marks[:3]
    assert everybody.low < most.low < half.low < marks[3].y < half.high < most.high < everybody.high


@pytest.mark.parametrize(
    ("share", "words"),
    [
        (0.5, "50 % of a model travels to a client in a round: 2.0 kB less than the 4.0 kB of 2 rounds"),
        (1.0, "100 % of a model travels to a client in a round, the whole model: 4.0 kB over 2 rounds."),
        (1.5, "150 % of a model travels to a client in a round: 2.0 kB more than the 4.0 kB of 2 rounds"),
    ],
)
def test_bytes_saved_are_those_of_all_clients_and_rounds(share, words):
    # 2 clients × 2 rounds × 250 parameters of 4 bytes
    entry = reported_method([0.5, 0.25], [0.6, 0.3], rounds=(1, 2), download=share)
    assert words in figures.download(entry).caption


def test_allocation_is_neurons_by_rounds_and_not_larger_than_a_screen():
    small = over_rounds.neuron_allocation(run_of([0.5], [0.6], rounds=(1, 2), allocation=[1.0, 0.25])).marks[0]
    assert small == Heat("share of clients", (1.0, 2.0), (0.0, 1.0), ((1.0, 1.0), (0.25, 0.25)))
    large = over_rounds.neuron_allocation(run_of([0.5], [0.6], rounds=range(1, 301), allocation=[0.5] * 512)).marks[0]
    assert (len(large.z), len(large.z[0])) == over_rounds.HEAT
    assert (len(large.y), len(large.x)) == over_rounds.HEAT


def test_training_alone_is_named_the_reference_not_the_fairest():
    entries = [reported_method([0.5, 0.25], [0.5, 0.25], method="standalone"), made_method("cgsv", ["a", "b"])]
    plot = figures.fairness_against_accuracy(entries)
    assert "Fairest is cgsv" in plot.caption
    assert plot.marks[0].labels == ("standalone", "cgsv")
    assert [plot.key for plot in figures.of_method(entries[0])] == ["contribution_and_reward"]


def test_undefined_fairness_is_said_and_not_drawn():
    equal = reported_method([0.5, 0.25], [0.6, 0.6], method="fedfv")
    plot = figures.fairness_against_accuracy([equal, made_method("cgsv", ["a", "b"])])
    assert plot.marks[0].labels == ("cgsv",)
    assert "Fairness is undefined for fedfv" in plot.caption


def test_one_client_is_told_about_alone():
    captions = " ".join(plot.caption for plot in figures.of_method(made_method("fedsac", ["only"], seeds=1)))
    assert "Fairness γ needs at least two clients." in captions
    assert "1 of 1 reward is inside" in captions
    assert "the reward has" in captions


def test_other_measures_are_not_drawn_as_accuracies():
    run = run_of([3.0, 1.0], [0.6, 0.3])
    outcome = dataclasses.replace(run.outcome, contributions_are_accuracies=False)
    run = dataclasses.replace(run, outcome=outcome, facts={"given": ["contributions"], "parameters": 250})
    plots = {plot.key: plot for plot in figures.of_method(ReportedMethod("fedsac", (run,)))}
    assert "bounds" not in plots
    assert plots["contribution_and_reward"].marks == (Points("clients", (3.0, 1.0), (60.0, 30.0), ("a", "b")),)
