"""One list of columns: what is in it is in every table, in files and in trackers, wherever it is defined."""

import json
from dataclasses import replace
from html import escape

import pytest

from cofair.cli import comparison_output, console
from cofair.config.experiment import Experiment
from cofair.report import comparison_table, latex
from cofair.report.reported_runs import ReportedMethod
from cofair.results.columns import COLUMNS, MEASURED, NAMED, cell_text, tracked
from cofair.results.comparison import Comparison
from cofair.results.record import Baseline
from tests.report.made import made_run

NAMES = ["a", "b", "c"]


def runs(measure="standalone", held=True):
    return [
        made_run(NAMES, method, seed, measure=measure, held=held) for method in ("cgsv", "fedsac") for seed in (0, 1)
    ]


def compared(measure="standalone"):
    return Comparison(tuple(run.outcome for run in runs(measure)))


def people_see(comparison, printed):
    """What a terminal, a notebook, the report and LaTeX show."""
    comparison_output.print_comparison(comparison, Experiment(), "delivered", as_json=False)
    methods = [ReportedMethod(name, tuple(runs()[:1])) for name in comparison.methods]
    methods = [
        replace(method, runs=tuple(replace(method.runs[0], outcome=outcome) for outcome in comparison.of(method.label)))
        for method in methods
    ]
    shown = {
        "terminal": printed().split("What each client")[0], "notebook": comparison._repr_html_(),
        "report": comparison_table.of(methods), "latex": latex.table(comparison.to_frame()),
    }  # fmt: skip
    return {where: " ".join(text.split()) for where, text in shown.items()}


@pytest.fixture
def printed(capsys, monkeypatch):
    monkeypatch.setattr(console, "PIPE_WIDTH", 300)
    return lambda: capsys.readouterr().out


@pytest.mark.parametrize("column", COLUMNS, ids=lambda column: column.name)
def test_a_column_is_everywhere(column, printed):
    comparison = compared()
    shown = people_see(comparison, printed)
    row = comparison.to_frame().iloc[0].to_dict()
    for where in ("terminal", "notebook", "report"):
        assert column.heading in shown[where]
        assert column.text(row[column.name]) in shown[where]
    assert cell_text(row, column) in shown["terminal"]
    assert f'title="{escape(column.meaning)}"' in shown["report"]
    assert (column.latex is None) or (column.latex in shown["latex"])
    comparison_output.print_comparison(comparison, Experiment(), "delivered", as_json=True)
    assert json.loads(printed())["methods"][0][column.name] == pytest.approx(row[column.name])
    assert column.name in comparison.every_rule()


def test_every_column_has_a_name_of_its_own_and_one_source():
    assert len(NAMED) == len({column.heading for column in COLUMNS}) == len(COLUMNS)
    assert len({column.tracked for column in COLUMNS if column.tracked}) == sum(1 for c in COLUMNS if c.tracked)
    assert all(column.by_round or column.of_record for column in COLUMNS)


@pytest.mark.parametrize("column", [column for column in COLUMNS if column.one_scale], ids=lambda column: column.name)
def test_what_needs_accuracies_is_undefined_and_not_shown_to_people_for_other_contributions(column, printed):
    comparison = compared("cosine")
    assert all(column.heading not in text for text in people_see(comparison, printed).values())
    comparison_output.print_comparison(comparison, Experiment(), "delivered", as_json=True)
    assert json.loads(printed())["methods"][0][column.name] is None
    assert comparison.of("cgsv")[0].summary()["cells"]["best"][column.name] is None
    assert comparison.to_frame()[column.name].isna().all()


def test_what_is_held_has_columns_only_where_it_was_measured(printed):
    names = [column.name for column in COLUMNS if column.needs == "held"]
    assert names == ["held_fairness", "held_weakest"]
    without = Comparison(tuple(run.outcome for run in runs(held=False)))
    assert not set(names) & {*without.to_frame(), *without.every_rule(), *without.outcomes[0].row()}
    assert all("held" not in text for text in people_see(without, printed).values())
    assert set(tracked(without.outcomes[0].history[-1])) & {"held/fairness", "held/weakest"} == set()
    one = Comparison((runs()[0].outcome, runs(held=False)[2].outcome))  # of two methods, the first measured it
    assert one.to_frame()["held_weakest"].isna().tolist() == [False, True]


def test_what_is_held_has_a_mean_and_a_spread_over_seeds():
    frame = compared().to_frame().set_index("method")
    found = [run.outcome.held for run in runs()[:2]]
    assert frame.loc["cgsv", "held_fairness"] == pytest.approx(sum(own.fairness for own in found) / 2)
    assert frame.loc["cgsv", "held_weakest"] == pytest.approx(sum(own.accuracies[0] for own in found) / 2)
    assert frame.loc["cgsv", "held_weakest_std"] == pytest.approx(
        abs(found[0].accuracies[0] - found[1].accuracies[0]) / 2**0.5
    )


def test_no_weakest_client_is_the_best():
    assert NAMED["held_weakest"].best([0.1, 0.9]) == set()


def test_trackers_hear_what_a_record_and_the_contributions_give():
    outcome = compared().of("cgsv")[0]
    last = outcome.history[-1]
    logged = tracked(replace(last, baseline=Baseline(outcome.contributions, are_accuracies=True)))
    gains = [got - brought for got, brought in zip(last.accuracies, outcome.contributions, strict=True)]
    assert logged["gain/mean"] == pytest.approx(sum(gains) / 3)
    assert set(logged) == {column.tracked for column in COLUMNS if column.tracked}
    other = tracked(replace(last, baseline=Baseline(outcome.contributions, are_accuracies=False)))
    assert set(logged) - set(other) == {"gain/mean", "gain/spread"}
    silent = set(logged) - set(tracked(last))  # a listener that knows no contributions
    assert silent == {"gain/mean", "gain/spread", "held/fairness", "held/weakest"}


def test_a_record_keeps_its_baseline_to_itself():
    record = replace(compared().of("cgsv")[0].history[0], baseline=Baseline((0.1, 0.2, 0.3), are_accuracies=True))
    assert "baseline" not in record.to_json()
    with pytest.raises(TypeError):
        type(record).from_json(record.to_json().replace('{"round"', '{"baseline": [0.1], "round"'))


def test_the_best_round_of_a_column_is_where_it_is_best():
    outcome = compared().of("cgsv")[0]
    every = [replace(outcome, history=(record,)).cell() for record in outcome.history]
    for column in MEASURED:
        best = (max if column.higher_is_better else min)(cell[column.name] for cell in every)
        assert outcome.cell("best")[column.name] == pytest.approx(best)


def test_best_is_what_reads_best():
    assert NAMED["max"].best([0.5004, 0.5001, 0.4]) == {0, 1}
    assert NAMED["seconds"].best([3.0, float("nan"), 1.0]) == {2}
    assert NAMED["fairness"].best([float("nan")]) == set()
