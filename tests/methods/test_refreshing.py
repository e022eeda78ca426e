from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from cofair.methods.rules.refreshing import priorities, refreshed
from cofair.models.parameters import Layout


class Counting:
    """Scores a row by its share of ones: as if every entry of the whole model, all ones, were worth the same."""

    def score(self, rows):
        return SimpleNamespace(metric=rows.mean(1))


def bring_closer(own, promised, looks=10, first="random"):
    whole = torch.ones(own.shape[1])
    layout = Layout(nn.Linear(own.shape[1] - 1, 1))
    keys = priorities(first, whole, own, layout, [torch.Generator().manual_seed(i) for i in range(len(own))])
    return refreshed(Counting(), whole, own, keys, torch.tensor(promised), own.mean(1), looks)


def test_as_many_entries_are_sent_as_the_promise_allows_and_no_more():
    own = torch.zeros(3, 1024)
    models, accuracies = bring_closer(own, [0.25, 0.5, 0.9])
    assert accuracies.tolist() == pytest.approx([0.25, 0.5, 0.9], abs=0.01)
    assert bool((accuracies <= torch.tensor([0.25, 0.5, 0.9])).all())
    assert models.mean(1).tolist() == accuracies.tolist()


def test_what_was_handed_out_cannot_be_taken_back_when_a_promise_falls():
    own = torch.zeros(1, 64)
    own[0, :32] = 1
    models, accuracies = bring_closer(own, [0.2])
    assert bool((models >= own).all())
    assert accuracies.tolist() == [0.5]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=4), st.integers(1, 6))
def test_no_model_is_better_than_promised_or_than_it_was(promised, looks):
    own = (torch.rand(len(promised), 50, generator=torch.Generator().manual_seed(0)) < 0.3).float()
    models, accuracies = bring_closer(own, promised, looks)
    assert bool((accuracies <= torch.maximum(torch.tensor(promised), own.mean(1)) + 1e-6).all())
    assert models.mean(1).tolist() == pytest.approx(accuracies.tolist())


def test_nobody_in_turn_is_no_matter():
    models, accuracies = bring_closer(torch.zeros(0, 8), [])
    assert models.shape == (0, 8)
    assert accuracies.shape == (0,)


def test_which_entries_come_first():
    layout = Layout(nn.Linear(3, 2))  # a matrix of two rows, and two biases
    whole, own = torch.tensor([5.0, 0, 0, 1, 1, 1, 0, 2]), torch.zeros(1, 8)

    def keys(first):
        return priorities(first, whole, own, layout, [torch.Generator().manual_seed(3)])[0]

    assert keys("largest").tolist() == whole.tolist()
    rows = keys("rows")
    assert rows[:3].unique().numel() == rows[3:6].unique().numel() == 1
    assert rows.unique().numel() == 4  # two rows and two biases, drawn one by one
    assert keys("random").unique().numel() == 8
    assert torch.equal(keys("mixed"), whole * keys("random"))
