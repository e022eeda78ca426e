"""Tables say what they show, and show it in the width there is."""

import json
from dataclasses import replace

import pytest

from cofair.cli import comparison_output as tables
from cofair.cli import console
from cofair.config.experiment import Experiment
from cofair.results.comparison import Comparison
from cofair.results.record import Record
from cofair.results.result import Outcome


def outcome(method="fedavg", seed=0, clients=4, rounds=3, accuracy=0.5):
    history = tuple(
        Record(
            t, None, [accuracy + 0.01 * (i * i + seed) for i in range(clients)], None, None, [0.5] * clients, 1.0, False
        )
        for t in range(1, rounds + 1)
    )
    names = tuple(f"client {i}" for i in range(clients))
    brought = tuple(0.3 + 0.02 * i for i in range(clients))
    return Outcome(method, seed, names, (10,) * clients, brought, history, contributions_are_accuracies=True)


def experiment(rounds=3, clients=4, **tables):
    return Experiment.from_dict({"training": {"rounds": rounds}, "federation": {"clients": clients}, **tables})


@pytest.fixture
def printed(capsys, monkeypatch):
    def call(*outcomes, rule="delivered", width=160, of=None, as_json=False):
        monkeypatch.setattr(console, "PIPE_WIDTH", width)
        tables.print_comparison(Comparison(tuple(outcomes)), of or experiment(), rule, as_json=as_json)
        return capsys.readouterr().out

    return call


@pytest.mark.parametrize(
    ("rounds", "words"), [(3, "mean of all rounds"), (9, "mean of all rounds"), (10, "mean of the final ten rounds")]
)
def test_the_title_says_which_rounds_were_read(printed, rounds, words):
    assert words in printed(outcome(rounds=rounds), of=experiment(rounds), rule="last").split("\n")[0]


def test_notes_speak_of_an_interval_only_where_one_is_shown(printed):
    few, enough = outcome(), outcome(clients=8)
    assert "bootstrap" not in printed(few)
    assert "bootstrap" not in printed(enough, rule="best")
    assert "[low, high]: 95 % bootstrap interval over clients" in " ".join(printed(enough).split())
    seeds = " ".join(printed(enough, outcome(clients=8, seed=1)).split())
    assert "bootstrap" not in seeds
    assert "±: standard deviation over seeds" in seeds
    assert "±" not in printed(few)


def test_percent_for_people_and_fractions_for_machines(printed):
    assert " 59.0 " in printed(outcome())
    machine = json.loads(printed(outcome(), as_json=True))
    assert machine["methods"][0]["max"] == pytest.approx(0.59)
    assert machine["clients"][3]["accuracy"] == pytest.approx(0.59)
    assert machine["experiment"]["federation"]["samples"] is None


def test_numbers_that_json_does_not_have_are_null(capsys):
    own = outcome()
    unknown = [replace(record, accuracies=[float("nan")] * 4) for record in own.history]
    tables.print_run(replace(own, history=tuple(unknown)), experiment(), as_json=True)
    assert json.loads(capsys.readouterr().out)["clients"][0]["accuracy"] is None


@pytest.mark.parametrize("width", [60, 80, 100])
def test_many_methods_stand_in_blocks_that_fit(printed, width):
    names = [f"method-{'x' * (k % 5)}{k}" for k in range(17)]
    text = printed(*[outcome(name) for name in names], width=width)
    assert "…" not in text
    assert max(len(line.rstrip()) for line in text.split("\n")) <= width
    head, clients = text.split("What each client brought and got")
    assert all(f" {name} " in head for name in names)
    headers = [line.split() for line in clients.split("\n") if line.split()[:1] == ["client"] and "brought" in line]
    assert [name for header in headers for name in header[3:]] == names
    assert all(len(header) > 4 for header in headers[:-1])
    assert clients.count(" client 3 ") == len(headers) > 1


@pytest.mark.parametrize(
    ("width", "left_out"),
    [
        (160, None),
        (100, "mcg, cgs;"),
        (84, "mcg, cgs, seconds;"),
        (76, "mcg, cgs, download, seconds;"),
        (66, "mcg, cgs, download, seconds, ± of rate;"),
        (56, "mcg, cgs, download, seconds, ± of mean, min, rate;"),
        (48, "mcg, cgs, download, seconds, ± of max, mean, min, rate;"),
        (40, "mcg, cgs, download, seconds, ± of fairness, max, mean, min, rate;"),
    ],
)
def test_a_narrow_terminal_loses_what_matters_least_and_is_told(printed, width, left_out):
    text = printed(outcome(), outcome(seed=1), width=width)
    row = next(line for line in text.split("\n") if line.startswith(" fedavg "))
    assert "…" not in row
    flat = " ".join(text.split())
    assert (f"Too narrow to show: {left_out}" in flat) if left_out else ("Left out" not in flat)


def test_a_table_that_cannot_fit_runs_over_instead_of_being_cut(printed):
    text = printed(outcome("a-method-with-a-very-long-name"), width=30)
    assert "a-method-with-a-very-long-name" in text
    assert "…" not in text


def test_contributions_that_are_no_accuracies_are_not_printed_as_percent(printed):
    own = replace(outcome(), contributions=(10.0, 20.0, 30.0, 40.0), contributions_are_accuracies=False)
    text = printed(own, of=experiment(contribution={"measure": "size"}))
    assert [line.split()[3] for line in text.split("\n") if line.startswith(" client ")][1:] == ["10", "20", "30", "40"]
