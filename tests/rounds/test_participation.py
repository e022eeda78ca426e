"""Who takes part in a round."""

import pytest
import torch

from cofair.config.experiment import Experiment
from cofair.engine.phases import PERSONALISE
from cofair.engine.protocol import Rewards, Uploads
from cofair.engine.work import Work
from cofair.errors import UsageError
from cofair.rounds.client_status import ClientStatus
from cofair.rounds.participation import Participation, ParticipationSettings, had_no_effect
from cofair.runs.single import run_experiment

NAMES = [f"client {i}" for i in range(40)]
CPU = torch.device("cpu")


def who(t, names=NAMES, seed=0, **settings):
    return Participation(ParticipationSettings(**settings), names, seed, CPU).answering(t)


def test_a_fraction_is_exact_and_differs_from_round_to_round():
    drawn = torch.stack([who(t, fraction=0.25) for t in range(1, 201)])
    assert set(drawn.sum(1).tolist()) == {10}
    assert 25 < int(drawn.sum(0).min()) < int(drawn.sum(0).max()) < 80  # 50 of 200 each, give or take
    assert int(who(1, fraction=0.001).sum()) == 1


def test_dropout_is_as_often_as_asked_for():
    drawn = torch.stack([who(t, dropout=0.3) for t in range(1, 201)]).double()
    assert float(drawn.mean()) == pytest.approx(0.7, abs=0.02)
    assert not bool(who(1, dropout=1.0).any())


def test_draws_belong_to_names_and_seeds():
    plain, turned = who(3, fraction=0.5, dropout=0.2), who(3, NAMES[::-1], fraction=0.5, dropout=0.2)
    assert torch.equal(plain, turned.flip(0))
    assert not torch.equal(plain, who(3, seed=1, fraction=0.5, dropout=0.2))


def test_clients_join_and_leave():
    here = torch.stack([who(t, NAMES[:3], join=(1, 4), leave=(2, 0)) for t in range(1, 6)])
    assert here.tolist() == [[True, False, True]] * 2 + [[False, False, True]] + [[False, True, True]] * 2
    with pytest.raises(UsageError, match="41 clients"):
        who(1, join=(1,) * 41)


def test_a_fraction_is_of_those_who_are_there():
    assert int(who(1, join=(9,) * 20, fraction=0.5).sum()) == 10


def test_rewards_are_limited_in_one_place():
    everybody = Participation(ParticipationSettings(), NAMES, 0, CPU)
    some = Participation(ParticipationSettings(fraction=0.5), NAMES, 0, CPU)
    rewards = Rewards(torch.zeros(3), Work())
    assert everybody.limited(rewards, 1) is rewards
    assert int(some.limited(rewards, 1).participants.sum()) == 20
    one = torch.arange(40) == int(some.answering(1).nonzero()[0])
    assert torch.equal(some.limited(Rewards(torch.zeros(3), Work(), participants=one), 1).participants, one)
    assert not bool(some.limited(rewards, 1, members=~some.answering(1)).participants.any())
    personal = Rewards(torch.zeros(3), Work(phase=PERSONALISE))
    assert some.limited(personal, 1) is personal


def standing(*brought):
    return ClientStatus.at_first(torch.tensor(brought, dtype=torch.float64))


def test_who_is_away_loses_reputation_and_regains_it_as_it_lost_it_also_a_negative_one():
    away = torch.tensor([False, True, True])
    stood = standing(0.8, 0.8, -0.2).after_missing(away, ~away).after_missing(away, ~away)
    assert stood.believed(0.5).tolist() == pytest.approx([0.8, 0.2, -0.35])
    assert stood.believed(0.0).tolist() == [0.8, 0.8, -0.2]
    nobody, everybody = torch.zeros(3, dtype=torch.bool), torch.ones(3, dtype=torch.bool)
    twice = stood.after_missing(nobody, everybody).after_missing(nobody, everybody)  # half of what it lost
    assert twice.believed(0.5).tolist() == pytest.approx([0.8, 0.4, -0.3])
    for _ in range(3):
        twice = twice.after_missing(nobody, everybody)
    assert twice.believed(0.5).tolist() == [0.8, 0.8, -0.2]


@pytest.mark.parametrize(("taken", "left"), [(0, 0.0), (100, 0.0), (180, 0.107), (194, 0.512), (200, 1.0)])
def test_who_returns_after_a_hundred_rounds_has_its_reputation_back_after_two_hundred(taken, left):
    stood, me = standing(1.0), torch.tensor([True])
    for there in [False] * 100 + [True] * taken:
        stood = stood.after_missing(~me if there else me, me if there else ~me)
    assert float(stood.believed(0.2)) == pytest.approx(left, abs=1e-3)


@pytest.mark.parametrize(
    ("pattern", "left"),
    [("1" * 20, 1.0), ("10" * 10, 0.35), ("0" * 10 + "1" * 10, 0.35), ("0" * 13 + "11", 0.08), ("0", 0.81)],
)
def test_who_takes_part_half_of_the_time_keeps_no_more_than_a_third(pattern, left):
    """Ones are trainings in which a client took part; what counts is how many, not when."""
    stood = standing(1.0)
    for there in pattern:
        came = torch.tensor([there == "1"])
        stood = stood.after_missing(~came, came)
    assert float(stood.believed(0.2)) <= left


def test_an_upload_that_changes_nothing_is_a_training_missed_unless_nothing_was_handed_out():
    updates = torch.tensor([[0.0, 1.0], [0.0, 0.0], [0.0, 0.0]])
    uploads = Uploads(updates, torch.ones(3, dtype=torch.bool), torch.ones(3), {})
    whole = Rewards(torch.zeros(2), Work())
    assert had_no_effect(whole, uploads).tolist() == [False, True, True]
    masks = torch.tensor([[True], [True], [False]])
    assert had_no_effect(Rewards(torch.zeros(3, 2), Work(), masks), uploads).tolist() == [False, True, False]


def test_nobody_fades_before_it_has_joined():
    settings = ParticipationSettings(join=(1, 3), leave=(0, 4), fade=0.5)
    there = Participation(settings, ["a", "b"], 0, torch.device("cpu"))
    assert [there.there(t).tolist() for t in (2, 3, 5)] == [[True, False], [True, True], [True, False]]
    assert not there.everybody
    assert Participation(ParticipationSettings(fade=0.5), ["a"], 0, torch.device("cpu")).everybody


def test_who_was_not_asked_misses_nothing():
    settings = ParticipationSettings(fraction=0.5, dropout=0.5, fade=0.5)
    some = Participation(settings, [str(k) for k in range(8)], 0, torch.device("cpu"))
    for t in range(1, 6):
        assert int(some.sampled(t).sum()) == 4
        assert bool((some.answering(t) <= some.sampled(t)).all())
    assert any(int(some.answering(t).sum()) < 4 for t in range(1, 6))


def test_reputations_fade_only_for_trainings_that_a_client_was_asked_for():
    """With dropout 0 everybody who is sampled answers, so nobody fades, whatever the fraction."""
    settings = {"training": {"rounds": 4}, "method": {"name": "fedrac"}, "federation": {"clients": 4}}

    def believed(**participation):
        chosen = Experiment.from_dict({**settings, "participation": {"fraction": 0.5, **participation}})
        return [record.reputation for record in run_experiment(chosen).history]

    assert believed(fade=0.5) == believed(fade=0.0)
    assert believed(fade=0.5, dropout=0.5) != believed(fade=0.0, dropout=0.5)
