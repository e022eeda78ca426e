import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cofair.methods.rules.refreshing import Entries, Rows, drawn_for, refreshed


class Counting:
    """Scores models by their mean: as if every entry of the whole model, all ones, were worth the same."""

    def __init__(self, own=None):
        self.own = own

    def score(self, given):
        if self.own is None:  # a scorer of models
            return type("Scores", (), {"metric": given.mean(1)})()
        rows = torch.where(given, 1.0, self.own)
        return rows, rows.mean(1)


def rows(own):
    drawn = drawn_for([torch.Generator().manual_seed(i) for i in range(len(own))], own.shape[1], own)
    return Rows(Counting(own), drawn, 1 - own)


def entries(own, drawn=None, whole=None):
    return Entries(Counting(), torch.ones(own.shape[1]) if whole is None else whole, own, drawn)


def bring_closer(order, promised, looks=12, much=None, **search):
    much = torch.full((len(order.own),), order.begin if much is None else much)
    return refreshed(order, torch.tensor(promised), order.own.mean(1), much, looks, **search)


def spread_out(n, count=1024):
    """Models whose entries are behind by different amounts, from nothing to one."""
    return torch.linspace(0, 1, count).repeat(n, 1)


@pytest.mark.parametrize("order", [rows(torch.zeros(3, 1024)), entries(spread_out(3))])
def test_as_much_is_sent_as_the_promise_allows_and_no_more(order):
    promised = [0.6, 0.75, 0.9] if isinstance(order, Entries) else [0.25, 0.5, 0.9]
    found = bring_closer(order, promised)
    assert found.accuracies.tolist() == pytest.approx(promised, abs=0.01)
    assert bool((found.accuracies <= torch.tensor(promised)).all())
    assert found.models.mean(1).tolist() == pytest.approx(found.accuracies.tolist())


def test_how_much_of_rows_is_a_share_of_what_differs():
    found = bring_closer(rows(torch.zeros(2, 1024)), [0.25, 0.5])
    assert found.much.tolist() == pytest.approx([0.25, 0.5], abs=0.01)


def test_how_much_of_entries_is_how_many_times_smaller_than_the_largest_they_may_be():
    whole, own = torch.tensor([8.0, 4.0, 2.0, 1.0]), torch.zeros(1, 4)
    order = entries(own, whole=whole)
    for much, sent in ((1, 1), (2, 2), (7, 3), (8, 4), (1000, 4)):
        models, _ = order.score(torch.tensor([float(much)]))
        assert models.tolist() == [[*whole[:sent].tolist(), *[0.0] * (4 - sent)]]
    drawn = torch.tensor([[0.1, 0.9, 0.9, 0.1]])  # products 0.8, 3.6, 1.8 and 0.1
    models, _ = entries(own, drawn, whole).score(torch.tensor([2.0]))
    assert models.tolist() == [[0, 4, 2, 0]]


def test_the_search_goes_on_around_what_fitted_last_time():
    order = rows(torch.zeros(1, 1024))
    step = 8**0.5
    assert bring_closer(order, [0.13], looks=1, much=0.1).much.tolist() == pytest.approx([0.1])
    found = bring_closer(order, [0.13], looks=3, much=0.1)  # looks at 0.1, 0.283 and 0.168, and only the first fits
    assert found.much.tolist() == pytest.approx([0.1])
    assert bring_closer(order, [0.99], looks=2, much=0.1).much.tolist() == pytest.approx([0.1 * step])
    nothing = bring_closer(order, [0.001], looks=2, much=0.4)
    assert nothing.much.tolist() == pytest.approx([0.4 / step]), "next time it begins lower"
    assert nothing.models.tolist() == order.own.tolist()


def test_the_best_that_a_promise_allows_is_not_always_the_most():
    class Valley:
        """Half of the way is worse than both ends."""

        least, begin, most = Rows.least, 0.25, 1.0
        own = torch.zeros(1, 1)

        def score(self, much):
            return much[:, None], {0.25: 0.45, 0.5: 0.1, 1.0: 0.9}[float(much)] * torch.ones(1)

    newest = bring_closer(Valley(), [0.5], looks=2, step=4.0)
    best = refreshed(Valley(), torch.tensor([0.5]), torch.tensor([0.4]), torch.tensor([0.25]), 2, 4.0, best=True)
    assert (newest.models.tolist(), best.models.tolist()) == ([[0.5]], [[0.25]])
    kept = refreshed(Valley(), torch.tensor([0.5]), torch.tensor([0.48]), torch.tensor([0.25]), 2, 4.0, best=True)
    assert kept.accuracies.tolist() == pytest.approx([0.48])


def test_nothing_beyond_the_ends_is_looked_at():
    order = rows(torch.zeros(2, 1024))
    found = bring_closer(order, [1.0, 0.0], step=2.0**20)
    assert found.much.tolist() == [1.0, Rows.least]
    assert found.accuracies.tolist() == [1.0, 0.0]


@pytest.mark.parametrize("kind", [rows, entries])
def test_what_was_handed_out_cannot_be_taken_back_when_a_promise_falls(kind):
    own = torch.zeros(1, 64)
    own[0, :32] = 1
    found = bring_closer(kind(own), [0.2])
    assert bool((found.models >= own).all())
    assert found.accuracies.tolist() == [0.5]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=4), st.integers(1, 6), st.sampled_from([rows, entries]))
def test_no_model_is_better_than_promised_or_than_it_was(promised, looks, kind):
    own = torch.rand(len(promised), 50, generator=torch.Generator().manual_seed(0))
    found = bring_closer(kind(own), promised, looks)
    assert bool((found.accuracies <= torch.maximum(torch.tensor(promised), own.mean(1)) + 1e-6).all())
    assert found.models.mean(1).tolist() == pytest.approx(found.accuracies.tolist())
    assert bool(((found.models == own) | (found.models == 1)).all())


@pytest.mark.parametrize("kind", [rows, entries])
def test_nobody_in_turn_is_no_matter(kind):
    found = bring_closer(kind(torch.zeros(0, 8)), [])
    assert found.models.shape == (0, 8)
    assert found.accuracies.shape == found.much.shape == (0,)


def test_each_client_has_randomness_of_its_own():
    sources = [torch.Generator().manual_seed(seed) for seed in (1, 2, 1)]
    drawn = drawn_for(sources, 5, torch.zeros(1, dtype=torch.float64))
    assert drawn.dtype == torch.float64
    assert torch.equal(drawn[0], drawn[2])
    assert not torch.equal(drawn[0], drawn[1])
