"""A model said to be trained alone that is rather what the server handed out: refused, and it gains nothing."""

import math

import pytest
import torch

from cofair.config.experiment import Experiment
from cofair.engine.protocol import Rewards
from cofair.engine.work import Work
from cofair.rounds.client_status import ClientStatus
from cofair.rounds.upload_checks import RESENT, resent
from tests.driving import collected, prepare
from tests.methods.test_every_method import run

STAGES = {"epochs": "none", "steps": 60, "stage": 10, "patience": 2, "every": 2}


def rows(*values):
    return torch.tensor(values, dtype=torch.float64)


def test_a_model_nearer_to_the_whole_one_than_to_the_first_is_resent():
    first, whole = rows([0, 0], [0, 0], [0, 0]), rows(4, 0)
    nothing = torch.full_like(first, math.nan)
    assert resent(rows([1.9, 0], [2.1, 0], [2, 0]), first, nothing, whole).tolist() == [False, True, False]


def test_only_what_a_client_was_handed_counts_as_handed():
    """Who fills the rest of a submodel with entries of its own is near its first model only there."""
    first, far = rows([0, 0], [0, 0]), rows(-99, -99)
    handed = rows([3, math.nan], [3, math.nan])
    assert resent(rows([3, 0], [1, 9]), first, handed, far).tolist() == [True, False]


def test_the_newest_of_everything_handed_out_is_remembered(make_server):
    server = make_server([0.5, 0.6])
    alone = torch.zeros(2, server.layout.size, dtype=torch.float64)
    masks = torch.ones(2, server.neurons.count, dtype=torch.bool)
    masks[0, 3:] = False
    held = server.neurons.parameter_mask(masks).bool()
    status = ClientStatus.at_first(torch.tensor([0.5, 0.6]), alone)
    assert status.handed.isnan().all()
    status = status.after_handing(Rewards(alone[0] + 1, Work(), masks), server.neurons)
    assert torch.equal(~status.handed.isnan(), held)
    later = Rewards(alone[0] + 2, Work(), participants=torch.tensor([True, False]))
    status = status.after_handing(later, server.neurons)
    assert bool((status.handed[0] == 2).all())
    assert bool((status.handed[1][held[1]] == 1).all())
    grown = status.with_newcomers(torch.tensor([0.5, 0.6, 0.1]), torch.ones(3, alone.shape[1], dtype=torch.float64))
    assert torch.equal(grown.alone, torch.cat([alone, torch.ones_like(alone[:1])]))
    assert torch.equal(grown.handed[:2].nan_to_num(7), status.handed.nan_to_num(7))
    assert grown.handed[2].isnan().all()


@pytest.mark.parametrize("name", ["fedavg", "fedrac", "contract", "fedsac"])
@pytest.mark.parametrize("length", [{"epochs": 4, "every": 2}, STAGES], ids=["epochs", "stages"])
def test_what_was_handed_out_is_refused_and_a_resumed_run_refuses_the_same(name, length):
    _, started = run(name, last=5, attack={"name": "resend", "clients": [0]}, contribution=length)
    whole = collected(started)
    first = started.server.contributions
    assert all(float(state.status.contributions[0]) <= float(first[0]) for state in whole.states)
    refused = [one for tested in whole.rounds for one in tested.refused]
    assert set(refused) <= {(3, 0, RESENT), (5, 0, RESENT)}
    if name == "fedavg":
        assert refused
        assert whole.rounds[-1].record.refused == {"client 0": RESENT}
    rest = collected(started, begun=whole.states[2])
    assert torch.equal(rest.states[-1].status.contributions, whole.states[-1].status.contributions)
    assert torch.equal(rest.states[-1].status.alone, whole.states[-1].status.alone)
    assert rest.rounds[-1].record.accuracies == whole.rounds[-1].record.accuracies


def test_nothing_is_remembered_where_nobody_is_measured_again():
    _, started = run("fedavg", last=2)
    status = collected(started).states[-1].status
    assert status.alone is None
    assert status.handed is None


def test_others_are_not_measured_against_what_is_refused():
    """By leaving one out everybody's number depends on everybody's model."""
    tables = {"contribution": {"epochs": 4, "every": 4, "measure": "leave-one-out"}}
    plain, cheated = (
        collected(run("fedavg", last=5, **tables, **attack)[1]).states[-1].status.contributions
        for attack in ({}, {"attack": {"name": "resend", "clients": [0]}})
    )
    # it had its own model of the start in place of another that it trained
    assert float((plain - cheated).abs()[1:].max()) < 0.1


def refusals(scene, seed, hands="submodels"):
    tables = {
        "federation": {"scene": scene, "clients": 5, "samples": 100}, "training": {"rounds": 21},
        "run": {"seed": seed}, "contribution": {"every": 10}, "attack": {"name": "resend", "clients": [0]},
        "method": {"name": "contract", "hands": hands},
    }  # fmt: skip
    started = prepare(Experiment.from_dict(tables))
    done = collected(started)
    gained = done.states[-1].status.contributions[0] - started.server.contributions[0]
    return [one for tested in done.rounds for one in tested.refused], float(gained)


@pytest.mark.parametrize("scene", ["pow", "cla", "dir"])
def test_on_digits_only_who_resends_is_refused_and_gains_nothing(scene):
    refused, gained = refusals(scene, 0)
    assert refused == [(11, 0, RESENT), (21, 0, RESENT)]
    assert gained == 0


def test_a_trailing_model_is_worth_nothing_as_ones_own():
    """It is as good as promised: where that is no more than the client reaches alone, there is nothing to refuse."""
    refused, gained = refusals("pow", 0, "trailing")
    assert {client for _, client, _ in refused} <= {0}
    assert gained <= 0


@pytest.mark.long
@pytest.mark.parametrize("scene", ["pow", "cla", "dir"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_on_digits_with_more_seeds_too(scene, seed):
    refused, gained = refusals(scene, seed)
    assert {client for _, client, _ in refused} == {0}
    assert gained <= 0
