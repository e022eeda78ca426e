import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cofair.methods.rules.refreshing import Search, drawn_for, priorities, refreshed


class Counting:
    """Scores a mixture by its share of ones: as if every entry of the whole model, all ones, were worth the same."""

    def __init__(self, own):
        self.own = own

    def score(self, taken):
        rows = torch.where(taken, 1.0, self.own)
        return rows, rows.mean(1)


def bring_closer(own, promised, looks=10, share=0.5):
    drawn = drawn_for([torch.Generator().manual_seed(i) for i in range(len(own))], own.shape[1], own)
    search = Search(torch.full((len(own),), share), looks)
    return refreshed(Counting(own), drawn, 1 - own, torch.tensor(promised), own.mean(1), search)


def test_as_many_blocks_are_sent_as_the_promise_allows_and_no_more():
    own = torch.zeros(3, 1024)
    found = bring_closer(own, [0.25, 0.5, 0.9])
    assert found.accuracies.tolist() == pytest.approx([0.25, 0.5, 0.9], abs=0.01)
    assert bool((found.accuracies <= torch.tensor([0.25, 0.5, 0.9])).all())
    assert found.models.mean(1).tolist() == found.accuracies.tolist()
    assert found.shares.tolist() == pytest.approx(found.accuracies.tolist(), abs=0.01)


def test_the_search_goes_on_around_the_share_that_fitted_last_time():
    own = torch.zeros(1, 1024)
    found = bring_closer(own, [0.13], looks=3, share=0.1)  # looks at 0.1, 0.15 and 0.125
    assert found.shares.tolist() == pytest.approx([0.125])
    assert bring_closer(own, [0.05], looks=3, share=0.4).shares.tolist() == pytest.approx([0.1]), "nothing fitted yet"
    assert bring_closer(own, [0.95], looks=3, share=0.4).shares.tolist() == pytest.approx([0.7]), "at most twice of it"


def test_what_was_handed_out_cannot_be_taken_back_when_a_promise_falls():
    own = torch.zeros(1, 64)
    own[0, :32] = 1
    found = bring_closer(own, [0.2])
    assert bool((found.models >= own).all())
    assert found.accuracies.tolist() == [0.5]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=4), st.integers(1, 6))
def test_no_model_is_better_than_promised_or_than_it_was(promised, looks):
    own = (torch.rand(len(promised), 50, generator=torch.Generator().manual_seed(0)) < 0.3).float()
    found = bring_closer(own, promised, looks)
    assert bool((found.accuracies <= torch.maximum(torch.tensor(promised), own.mean(1)) + 1e-6).all())
    assert found.models.mean(1).tolist() == pytest.approx(found.accuracies.tolist())


def test_nobody_in_turn_is_no_matter():
    found = bring_closer(torch.zeros(0, 8), [])
    assert found.models.shape == (0, 8)
    assert found.accuracies.shape == found.shares.shape == (0,)


def test_which_blocks_come_first():
    means, drawn = torch.tensor([[5.0, 0.0, 1.0, 2.0]]), torch.tensor([[0.1, 0.9, 0.7, 0.2]])
    order = {name: priorities(name, means, drawn).argsort(descending=True).tolist() for name in ("random", "largest")}
    assert order == {"random": [[1, 2, 3, 0]], "largest": [[0, 3, 2, 1]]}
    assert priorities("mixed", means, drawn).tolist() == [pytest.approx([0.5, 0.0, 0.7, 0.4])]


def test_each_client_has_randomness_of_its_own():
    sources = [torch.Generator().manual_seed(seed) for seed in (1, 2, 1)]
    drawn = drawn_for(sources, 5, torch.zeros(1, dtype=torch.float64))
    assert drawn.dtype == torch.float64
    assert torch.equal(drawn[0], drawn[2])
    assert not torch.equal(drawn[0], drawn[1])
