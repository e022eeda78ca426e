"""What clients keep of what they were handed, worked out by hand on a network of two neurons."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from cofair.engine.phases import ALONE, PERSONALISE
from cofair.engine.protocol import Rewards
from cofair.engine.work import Work
from cofair.models.parameters import Layout
from cofair.neurons.map import NeuronMap
from cofair.runs.kept import Kept

NETWORK = nn.Sequential(nn.Linear(1, 2), nn.ReLU(), nn.Linear(2, 1)).double()
LAYOUT = Layout(NETWORK)
NEURONS = NeuronMap.of(NETWORK, LAYOUT)
# parameters: weights of the neurons (2), their biases (2), what the output reads of them (2), the output's bias
FIRST = torch.tensor([True, False, True, False, True, False, True])
SECOND = torch.tensor([False, True, False, True, False, True, True])
NAN = math.nan
INITIAL = torch.zeros(7, dtype=torch.float64)


def row(value):
    return torch.full((7,), float(value), dtype=torch.float64)


def handed(rows, masks=None, to=None, work=None):
    masks = None if masks is None else torch.tensor(masks, dtype=torch.bool)
    return Rewards(rows, work or Work(), masks, participants=None if to is None else torch.tensor(to))


def kept_of(*trainings, first=2):
    kept = Kept()
    for t, rewards in enumerate(trainings, start=first):
        kept = kept.after(rewards, INITIAL, NEURONS, t)
    return kept


def same(found, *wanted):
    return torch.equal(found.nan_to_num(-99), torch.stack(wanted).nan_to_num(-99))


def test_submodels_that_alternate_leave_the_whole_model():
    kept = kept_of(handed(row(2), [[1, 0], [1, 0]]), handed(row(3), [[0, 1], [1, 0]]))
    both = torch.where(SECOND, 3.0, 2.0).double()
    assert same(kept.newest, both, torch.where(FIRST, 3.0, NAN).double())
    assert kept.neurons.tolist() == [[True, True], [True, False]]
    assert torch.equal(kept.candidates()["kept"].parameters[1], 3 * FIRST.double())  # what never came is nothing


def test_the_model_that_everybody_starts_from_is_nobodys_reward():
    kept = kept_of(handed(INITIAL, [[1, 1]]), handed(row(3), [[1, 0]]), first=1)
    assert same(kept.newest, torch.where(FIRST, 3.0, NAN).double())
    own = kept_of(handed(INITIAL.repeat(2, 1)), first=1)  # as methods begin whose clients have models of their own
    assert own == Kept()
    later = kept_of(handed(row(1), [[1, 1]]), first=1)  # a personal epoch of round 1 comes after an aggregation
    assert same(later.newest, row(1))


def test_training_alone_hands_out_nothing_and_a_personal_epoch_does():
    assert kept_of(handed(row(3), work=Work(phase=ALONE))) == Kept()
    assert torch.equal(kept_of(handed(row(3), work=Work(phase=PERSONALISE))).newest, row(3))


def test_whole_models_are_kept_as_they_are_and_without_a_copy():
    rows = torch.stack([row(1), row(2)])
    kept = kept_of(handed(row(7)), handed(rows))
    assert kept.newest is rows
    assert kept.neurons is None
    shared = kept_of(handed(row(7)), handed(row(8)))
    assert shared.newest.shape == (7,)


def test_an_absent_client_keeps_its_older_values():
    kept = kept_of(handed(row(1)), handed(row(2), to=[True, False]))
    assert same(kept.newest, row(2), row(1))
    assert torch.allclose(kept.mean, torch.stack([row(1.1), row(1)]))
    away = kept_of(handed(row(1)), handed(row(2)), handed(row(3), to=[True, False]))
    assert torch.allclose(away.mean[1], row(1.1))  # what does not come moves no mean
    submodels = kept_of(handed(row(1), [[1, 0], [1, 0]]), handed(row(2), [[0, 1], [0, 1]], [False, True]))
    assert same(submodels.newest, torch.where(FIRST, 1.0, NAN).double(), torch.where(SECOND, 2.0, 1.0).double())
    assert submodels.neurons.tolist() == [[True, False], [True, True]]


def test_a_step_mask_restricts_training_and_not_what_is_handed():
    whole = handed(row(2), [[1, 1]])
    narrower = replace(
        whole, step_masks=torch.tensor([[[True, False], [True, True]]]), step_choices=torch.tensor([1])
    )  # fmt: skip
    assert same(kept_of(narrower).newest, row(2))


def test_the_mean_forgets_a_tenth_with_every_model_and_begins_with_the_first():
    kept = kept_of(handed(row(1)), handed(row(2)), handed(row(4)))
    assert torch.allclose(kept.mean, row(0.9 * 1.1 + 0.4))
    models = kept.candidates()
    assert torch.allclose(models["averaged"].parameters, row(1.39))
    assert torch.allclose(models["ahead"].parameters, row(4 + (4 - 1.39)))
    late = kept_of(handed(row(1), [[1, 0]]), handed(row(2), [[0, 1]]))  # what first comes later begins its own mean
    assert torch.allclose(late.mean, torch.where(FIRST & ~SECOND, 1.0, torch.where(SECOND & ~FIRST, 2.0, 1.1)).double())


def test_newcomers_were_handed_nothing_and_the_others_keep_theirs():
    whole = kept_of(handed(row(1))).with_newcomers(2, 3)
    assert same(whole.newest, row(1), row(1), row(NAN))
    parts = kept_of(handed(row(1), [[1, 0]])).with_newcomers(1, 2)
    assert parts.neurons.tolist() == [[True, False], [False, False]]
    later = parts.after(handed(row(2), [[0, 1], [0, 1]]), INITIAL, NEURONS, 9)
    assert same(later.mean[1:], torch.where(SECOND, 2.0, NAN).double())
    assert Kept().with_newcomers(2, 3) == Kept()


@pytest.mark.parametrize("to", [None, [True, False]])
def test_whole_models_after_submodels_and_before_them_count_as_all_neurons(to):
    kept = kept_of(handed(row(1), [[1, 0], [1, 0]]), handed(row(2), to=to))
    assert kept.neurons.tolist() == [[True, True], [True, to is None]]
    before = kept_of(handed(row(2), to=to), handed(row(1), [[1, 0], [1, 0]]))
    assert before.neurons.tolist() == kept.neurons.tolist()
    assert same(before.newest[:1], torch.where(FIRST, 1.0, 2.0).double())
