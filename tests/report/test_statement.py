"""What a client is told, sentence by sentence."""

import dataclasses

import pytest

from cofair.config.experiment import Experiment
from cofair.errors import UsageError
from cofair.report.reported_runs import ReportedMethod, ReportedRun, reported_method
from cofair.report.statement import ClientStatements, largest_changes
from cofair.results.record import Record, are_accuracies
from cofair.results.result import Outcome
from cofair.runs.single import run_experiment


def standing(brought, got, *, reputations=None, method="fedsac", measure="standalone", given=(), names=None):
    n, rounds = len(brought), len(reputations or [None])
    history = tuple(
        Record(5 * t, None, list(got), None, reputations and reputations[t - 1], [0.5] * n, 1.0, t == rounds)
        for t in range(1, rounds + 1)
    )
    outcome = Outcome(
        method, 0, tuple(names or "abcd"[:n]), (10,) * n, tuple(brought), history,
        contributions_are_accuracies=are_accuracies(measure, given),
    )  # fmt: skip
    experiment = {"contribution": {"measure": measure}, "run": {"metric": "accuracy"}}
    run = ReportedRun(None, outcome, experiment, {"given": list(given), "parameters": 250})
    return ClientStatements(ReportedMethod(method, (run,)))


def test_all_that_a_client_is_told():
    reputations = [[0.25, 0.5], [0.5, 0.5], [0.375, 0.5]]
    assert standing([0.25, 0.5], [0.4, 0.8], reputations=reputations).sentences(0) == [
        "It brought 10 samples, which alone train a model of 25.0 % accuracy. Rank 2 of 2 by contribution.",
        "Its reward, the model after round 15, has 40.0 % accuracy, 15.0 points more than it reaches alone.",
        "Its contribution entitles it to more than 25.0 % and at most 60.0 %: its reward is inside.",
        "Its reputation went from 0.25 in round 5 to 0.375 in round 15; it changed most by +0.25 between rounds 5 and "
        "10 and −0.12 between rounds 10 and 15.",
        "In a round it received 50 % of a whole model on average, 7.5 kB over 15 rounds.",
    ]


@pytest.mark.parametrize(
    ("got", "reward", "bound"),
    [
        (0.7, "45.0 points more", "10.0 points above that, more than its contribution earns."),
        (0.2, "5.0 points less", "below that, so it gains nothing by taking part."),
        (0.25, "as much as it reaches alone", "not above that, so it gains nothing by taking part."),
    ],
)
def test_a_reward_outside_is_said_with_its_side(got, reward, bound):
    told = standing([0.25, 0.5], [got, 0.8]).sentences(0)
    assert reward in told[1]
    assert told[2].endswith(bound)


def test_bounds_that_nothing_can_meet_are_said():
    told = standing([0.5, 0.5], [0.4, 0.3]).sentences(0)
    assert "no reward of this method could be inside" in told[2]


def test_equal_contributions_share_a_rank():
    own = standing([0.5, 0.5, 0.2], [0.6, 0.7, 0.3])
    assert own.ranks == [1, 1, 3]
    assert "Rank 1 of 3 by contribution, shared by 2 clients." in own.sentences(1)[0]


def test_a_reputation_that_stays_is_said_to_stay():
    told = standing([0.25, 0.5], [0.4, 0.8], reputations=[[0.3, 0.5]] * 3).sentences(0)
    assert "Its reputation stayed at 0.3 from round 5 to round 15." in told


def test_measures_that_are_no_accuracies_have_no_bounds():
    told = standing([2.0, 1.0], [0.4, 0.8], measure="cosine").sentences(0)
    assert "its contribution (by cosine) is 2." in told[0]
    assert "was not measured" in told[1]
    assert not any("entitles" in sentence for sentence in told)
    assert "given from outside" in standing([2.0, 1.0], [0.4, 0.8], given=["contributions"]).sentences(0)[0]


def test_a_contribution_that_was_measured_anew_is_told():
    result = run_experiment(
        Experiment.from_dict(
            {
                "training": {"rounds": 5, "steps": 2}, "contribution": {"epochs": 1, "every": 2},
                "run": {"device": "cpu", "evaluate_every": 1},
                "attack": {"name": "defect", "clients": [5], "from_round": 2},
            }
        )
    )  # fmt: skip
    now = result.history[-1].contributions[5]
    assert now != result.contributions[5]
    assert result.history[0].contributions is None
    told = ClientStatements(reported_method(result)).sentences(5)[0]
    assert told.endswith(
        f"By round 5 this was measured again as {100 * now:.1f} %, and its reward follows it (seed 0)."
    )


def test_means_are_over_seeds():
    one = standing([0.25, 0.5], [0.4, 0.8]).run
    two = dataclasses.replace(one, outcome=dataclasses.replace(one.outcome, contributions=(0.35, 0.5), seed=1))
    assert ClientStatements(ReportedMethod("fedsac", (one, two))).brought.tolist() == pytest.approx([0.3, 0.5])


def test_an_unknown_client_is_told_who_there_is():
    with pytest.raises(UsageError, match=r"There is no client 'z': the clients are a and b\."):
        standing([0.25, 0.5], [0.4, 0.8]).index("z")
    many = standing([0.5] * 100, [0.6] * 100, names=[f"hospital {k}" for k in range(100)])
    with pytest.raises(UsageError, match="did you mean 'hospital 7'"):
        many.index("hospital7")


def test_the_largest_changes_are_in_the_order_of_rounds():
    assert largest_changes([0.0, 0.1, 0.1, 0.9, 0.5]) == [3, 4]
    assert largest_changes([1.0, 1.001]) == []
