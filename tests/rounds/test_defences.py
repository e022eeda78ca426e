"""What defences do to uploads, by hand, and to runs."""

import pytest
import torch

from cofair.config.experiment import Experiment
from cofair.engine.protocol import Delivered
from cofair.errors import UsageError
from cofair.methods.rules.aggregation import Aggregation, mean_over_clients, mean_over_holders
from cofair.rounds.client_status import ClientStatus
from cofair.rounds.defences import DefenceSettings, agreement, bounded, defended
from cofair.runs.measurement import measured_again
from cofair.runs.training_alone import driven, training_alone
from tests.conftest import small_federation, small_stack, uploads_of
from tests.driving import prepare
from tests.methods.test_every_method import rows, run


def standing_of(count):
    everybody = torch.ones(count, dtype=torch.bool)
    numbers = torch.linspace(0.1, 0.5, count, dtype=torch.float64)
    return ClientStatus(
        numbers,
        numbers,
        torch.zeros(len(numbers)),
        ~everybody,
        torch.zeros_like(numbers),
        everybody,
        torch.zeros(len(numbers)),
    )


def test_long_updates_are_cut_to_a_multiple_of_the_median_norm():
    uploads = uploads_of([[3, 4], [0, 1], [30, 40], [99, 0]], [1, 1, 1, 1], absent=[3])
    cut = bounded(uploads, 2.0).updates
    assert torch.equal(cut[:2], uploads.updates[:2])
    assert torch.allclose(cut[2], torch.tensor([6.0, 8.0], dtype=torch.float64))  # norms 5, 1, 50: median 5


def test_median_and_trimmed_mean_over_the_holders_of_each_parameter():
    uploads = uploads_of([[1, 5], [2, 6], [3, 0], [100, 0], [7, 7]], [1] * 5, absent=[4])
    holds = torch.tensor([[1, 1], [1, 1], [1, 0], [1, 0], [1, 1]], dtype=torch.bool)
    assert mean_over_holders(uploads, holds, "mask", Aggregation("median")).tolist() == [2.5, 5.5]
    assert mean_over_holders(uploads, holds, "mask", Aggregation("trimmed", 0.25)).tolist() == [2.5, 5.5]
    assert mean_over_holders(uploads, holds, "mask", Aggregation("trimmed", 0.0)).tolist() == [26.5, 5.5]
    assert mean_over_clients(uploads, Aggregation("median")).tolist() == [2.5, 2.5]
    assert mean_over_holders(uploads, torch.zeros_like(holds), "mask", Aggregation("median")).tolist() == [0, 0]


def test_agreement_compares_only_what_a_client_changes():
    uploads = uploads_of([[1, 1, 1], [2, 2, 2], [5, 0, 0], [-1, -1, -1], [0, 0, 0]], [1] * 5)
    found = agreement(uploads)
    assert found[:3].tolist() == pytest.approx([float(found[0])] * 2 + [1.0])
    assert float(found[3]) == pytest.approx(-float(found[0]))
    assert float(found[4]) == 0


def test_who_speaks_against_the_others_is_removed_and_keeps_its_model():
    settings = DefenceSettings(threshold=1 / 3, memory=0.5, patience=2)
    uploads = uploads_of([[1, 2], [2, 1], [-1, -1], [1, 1]], [1] * 4)
    standing = standing_of(4)
    for t in range(1, 5):
        now = Delivered(torch.tensor([float(t), 0.0], dtype=torch.float64))
        passed, standing = defended(settings, uploads, standing, lambda now=now: now, t)
        assert standing.members.tolist() == [True, True, t <= 2, True]
    assert passed.present.tolist() == standing.members.tolist()
    assert not passed.updates[2].any()
    assert float(standing.contributions[2]) == float(standing.contributions.min())
    delivered = standing.kept(Delivered(torch.tensor([9.0, 9.0], dtype=torch.float64)))
    assert delivered.parameters.tolist() == [[9, 9], [9, 9], [3, 0], [9, 9]]  # as it was in round 3


def test_an_absent_client_is_not_removed():
    settings = DefenceSettings(threshold=1 / 3, memory=0.5, patience=0)
    uploads = uploads_of([[1, 2], [2, 1], [0, 0]], [1] * 3, absent=[2])
    _, standing = defended(settings, uploads, standing_of(3), lambda: Delivered(torch.zeros(2)), 1)
    assert bool(standing.members.all())


def test_scaled_updates_do_nothing_more_under_a_norm_bound():
    attack = {"name": "scale", "clients": [2], "strength": 100.0}
    found = {}
    for bound in (None, 1.0):
        tested, prepared = run("fedavg", attack=attack, defence={"norm_bound": bound} if bound else {})
        found[bound] = float((rows(tested[-1][1], prepared) - prepared.server.initial).norm())
    assert found[1.0] < 0.1 * found[None]


def test_robust_aggregation_is_only_for_methods_that_average():
    experiment = Experiment.from_dict({"method": {"name": "cgsv"}, "defence": {"aggregate": "median"}})
    with pytest.raises(UsageError, match="'cgsv' joins them in a way of its own"):
        prepare(experiment, federation=small_federation(), model=small_stack())


@pytest.mark.parametrize("name", ["fedsac", "fedrac"])
def test_later_defection_is_seen_only_where_contributions_are_measured_anew(name):
    attack = {"name": "defect", "clients": [2], "from_round": 2}
    for every, caught in [(None, False), (2, True)]:
        tested, prepared = run(
            name,
            last=5,
            attack=attack,
            contribution={"epochs": 4, **({"every": every} if every else {})},
            method={"beta": 10.0},
        )
        best = int(prepared.server.contributions.argmax())
        assert best == 2
        masks = tested[-1][1].neuron_masks
        assert bool(masks[best].all()) != (caught and name == "fedrac")  # FedSAC allocates every ten rounds
        reputation = tested[-1][0].reputation
        if name == "fedrac":
            assert (max(reputation) == reputation[best]) != caught


def test_measuring_anew_changes_little_where_nobody_attacks():
    _, prepared = run("fedavg", last=1)
    standing = ClientStatus.at_first(prepared.server.contributions)
    again, alone, refused = measured_anew(prepared, standing)
    assert not refused
    assert not torch.equal(alone.models, prepared.brought.alone)  # samples in another order
    assert float((again.contributions - standing.contributions).abs().max()) < 0.15


def test_who_was_absent_when_contributions_were_measured_anew_stands_as_before():
    _, prepared = run("fedavg", last=1)
    standing = standing_of(4)
    asked = torch.tensor([False, True, True, True])
    again, alone, _ = measured_anew(prepared, standing, asked)
    assert torch.equal(alone.answered, asked)
    assert float(again.contributions[0]) == float(standing.contributions[0])
    assert not bool((again.contributions == standing.contributions)[1:].any())


def measured_anew(prepared, standing, asked=None):
    """Let clients train alone before round 5, where the server has delivered nothing new."""
    train = prepared.engine.train
    alone = driven(
        training_alone(prepared.setup, asked, again_in=5),
        lambda one: train(one.rewards, one.clients, one.t),
    )
    again, refused = measured_again(prepared.setup, standing, alone, prepared.server.initial)
    return again, alone, refused
