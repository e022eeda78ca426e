import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cofair.contributions import shapley
from cofair.errors import UsageError

patient = settings(deadline=None, max_examples=50)


def by_permutations(values, players):
    """The definition: what each player adds on its arrival, averaged over all N! orders."""
    total = [0.0] * players
    for order in itertools.permutations(range(players)):
        mask = 0
        for player in order:
            total[player] += float(values[mask | 1 << player]) - float(values[mask])
            mask |= 1 << player
    return [value / math.factorial(players) for value in total]


@st.composite
def games(draw, at_most=6):
    players = draw(st.integers(1, at_most))
    values = draw(st.lists(st.floats(-5, 5), min_size=2**players, max_size=2**players))
    return torch.tensor(values, dtype=torch.float64), players


def utility_of(values):
    """The utility whose value is looked up by bitmask."""

    def utility(coalitions):
        masks = (coalitions.long() << torch.arange(coalitions.shape[1])).sum(1)
        return values[masks]

    return utility


@patient
@given(games())
def test_exact_values_are_those_of_all_permutations(game):
    values, players = game
    expected = by_permutations(values, players)
    assert shapley.from_values(values).tolist() == pytest.approx(expected, abs=1e-12)
    assert shapley.exact(utility_of(values), players).tolist() == pytest.approx(expected, abs=1e-12)
    every_order = shapley.orders(players, 10**6, torch.Generator())
    assert len(every_order) == math.factorial(players)
    assert shapley.sampled(utility_of(values), every_order).tolist() == pytest.approx(expected, abs=1e-12)


@patient
@given(games())
def test_values_divide_up_all_that_there_is(game):
    values, _ = game
    assert float(shapley.from_values(values).sum()) == pytest.approx(float(values[-1] - values[0]), abs=1e-12)


@patient
@given(games(at_most=5), st.randoms(use_true_random=False))
def test_renaming_players_renames_their_values(game, random):
    values, players = game
    names = list(range(players))
    random.shuffle(names)  # player i of the new game is player names[i] of the old one
    renamed = utility_of(values)(shapley.coalitions(players)[:, torch.tensor(names).argsort()])
    old, new = shapley.from_values(values), shapley.from_values(renamed)
    assert new.tolist() == pytest.approx(old[names].tolist(), abs=1e-12)


@patient
@given(games(at_most=5))
def test_a_player_who_changes_nothing_gets_nothing_and_twins_get_the_same(game):
    values, players = game
    with_null = torch.cat([values, values])  # the last player never matters
    found = shapley.from_values(with_null)
    assert float(found[-1]) == pytest.approx(0, abs=1e-12)
    assert found[:-1].tolist() == pytest.approx(shapley.from_values(values).tolist(), abs=1e-12)
    member = shapley.coalitions(players + 1)
    first, last = member[:, 0].long(), member[:, -1].long()
    twins = values[(member[:, 1:-1].long() << torch.arange(1, players)).sum(1)] + first + last + first * last
    found = shapley.from_values(twins)
    assert float(found[0]) == pytest.approx(float(found[-1]), abs=1e-12)


@patient
@given(st.lists(st.floats(-3, 3), min_size=1, max_size=8))
def test_in_a_linear_game_everybody_gets_what_it_adds(worth):
    worth = torch.tensor(worth, dtype=torch.float64)
    assert torch.allclose(shapley.from_values(shapley.subset_sums(worth)), worth, atol=1e-12)
    one_order = torch.arange(len(worth))[None]
    assert torch.allclose(shapley.sampled(lambda members: members.double() @ worth, one_order), worth, atol=1e-12)


def test_three_by_hand():
    # a left glove (0) and two right ones (1, 2): a pair is worth 1
    values = torch.tensor([0, 0, 0, 1, 0, 1, 0, 1.0])
    assert shapley.from_values(values).tolist() == pytest.approx([4 / 6, 1 / 6, 1 / 6])


def test_positions_are_bitmasks():
    sums = shapley.subset_sums(torch.tensor([1.0, 10.0, 100.0]))
    assert sums.tolist() == [0, 1, 10, 11, 100, 101, 110, 111]
    members = shapley.coalitions(3)
    assert (members.double() @ torch.tensor([1.0, 10, 100], dtype=torch.float64)).tolist() == sums.tolist()


def test_orders_are_drawn_without_replacement_where_they_can_be_listed():
    random = torch.Generator().manual_seed(0)
    drawn = shapley.orders(6, 150, random)
    assert len({tuple(order) for order in drawn.tolist()}) == 150
    for players in (6, 12):
        drawn = shapley.orders(players, 150, random)
        assert drawn.shape == (150, players)
        assert drawn.sort(1).values.unique(dim=0).tolist() == [list(range(players))]
    again = shapley.orders(12, 5, torch.Generator().manual_seed(3))
    assert again.tolist() == shapley.orders(12, 5, torch.Generator().manual_seed(3)).tolist()


def test_a_coalition_that_comes_again_is_scored_once():
    asked = []

    def utility(members):
        asked.append(members)
        return members.double().sum(1).sqrt()

    drawn = shapley.orders(10, 200, torch.Generator().manual_seed(1))
    found = shapley.sampled(utility, drawn)
    scored = torch.cat(asked)
    assert len(scored.unique(dim=0)) == len(scored) <= 2**10
    assert float(found.sum()) == pytest.approx(math.sqrt(10))


def test_sampled_values_come_near_exact_ones_with_more_orders():
    values = torch.randn(2**10, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    exact = shapley.from_values(values)

    def error(count):
        drawn = shapley.orders(10, count, torch.Generator().manual_seed(5))
        return float((shapley.sampled(utility_of(values), drawn) - exact).norm())

    assert error(2000) < error(20) / 4


def test_nobody_and_too_many():
    assert shapley.from_values(torch.ones(1)).tolist() == []
    assert shapley.sampled(lambda members: members.sum(1), shapley.orders(0, 3, torch.Generator())).tolist() == []
    with pytest.raises(UsageError, match="Exact Shapley values of 25 clients would need 2\\^25 coalitions"):
        shapley.exact(lambda members: members.sum(1), 25)
    with pytest.raises(UsageError, match="each of 2\\^N coalitions, but got 3"):
        shapley.from_values(torch.ones(3))
