from dataclasses import replace
from itertools import permutations

import pytest
import torch
from torch import nn

from cofair.engine.phases import TRAIN
from cofair.engine.protocol import Uploads
from cofair.methods.eci import ECI
from tests.conftest import uploads_of

SIZES = [4, 8, 12]


def begun(make_server, method=None):
    torch.manual_seed(3)
    server = make_server([0.1, 0.2, 0.3], SIZES, nn.Linear(6, 3, bias=False))
    return server, (method or ECI()).start(server)


def updates(seed, scale=2.0):
    return scale * torch.randn(3, 18, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def learned(server, method, state, rows, t, absent=()):
    rows = rows.clone()
    rows[list(absent)] = 0
    uploads = uploads_of(rows.tolist(), SIZES, absent)
    return method.learn(server, state, method.rewards(server, state, t, TRAIN), uploads, t, TRAIN)


def by_all_orders(server, base, rows, players=(0, 1, 2)):
    """Shapley values of validation accuracy, adding clients one by one in every order."""

    def accuracy(members):
        held = sum(SIZES[i] for i in members)
        model = base + sum((SIZES[i] / held * rows[i] for i in members), torch.zeros_like(base))
        return float(server.score(model).metric)

    values, orders = [0.0, 0.0, 0.0], list(permutations(players))
    for order in orders:
        for place, i in enumerate(order):
            values[i] += (accuracy(order[: place + 1]) - accuracy(order[:place])) / len(orders)
    return values


def gaining(server, base, players=(0, 1, 2)):
    """Find updates that improve the model together."""
    for seed in range(100):
        values = by_all_orders(server, base, updates(seed), players)
        if sum(values) > 0.05:
            return updates(seed), values
    raise AssertionError("no update improves the model")


def test_the_index_adds_up_discounted_parts_of_shapley_values(make_server):
    server, state = begun(make_server)
    rows, values = gaining(server, server.initial)
    first = learned(server, ECI(), state, rows, 1)
    expected = [0.9 * value / sum(values) for value in values]
    assert first.reputation.tolist() == pytest.approx(expected, abs=1e-9)
    # the second round judges on top of the server's model, which moved by the whole aggregate of scaled updates
    scaled = 0.5 * rows / (rows.norm(dim=1, keepdim=True) + 1e-7)
    moved = server.initial + torch.tensor([1 / 6, 2 / 6, 3 / 6], dtype=torch.float64) @ scaled
    assert torch.allclose(first.server, moved, atol=1e-12)
    rows, values = gaining(server, moved)
    second = learned(server, ECI(), first, rows, 2)
    expected = [old + 0.81 * value / sum(values) for old, value in zip(expected, values, strict=True)]
    assert second.reputation.tolist() == pytest.approx(expected, abs=1e-9)


def test_rewards_are_in_proportion_to_the_index(make_server):
    server, state = begun(make_server)
    loss = updates(0, scale=0.0)
    loss[0] = updates(1)[0]
    state = replace(state, reputation=torch.tensor([0.8, -0.1, 0.2], dtype=torch.float64))
    new = learned(server, ECI(), state, loss, 90)  # λ^90 = 0.00008 is not worth scoring coalitions for
    assert torch.equal(new.reputation, state.reputation)
    assert new.download.tolist() == pytest.approx([1, 0, 5 / 18])  # ⌈18 / 4⌉ = 5
    assert torch.equal(new.models[1], state.models[1])


def test_rounds_are_scored_until_they_hardly_count(make_server):
    server, state = begun(make_server)
    rows, values = gaining(server, server.initial)
    parts = torch.tensor(values, dtype=torch.float64) / sum(values)
    for method, t, weight in ((ECI(), 65, 0.9**65), (ECI(), 66, 0.0), (ECI(least=0.0), 66, 0.9**66)):  # λ^65 = 0.00106
        assert torch.allclose(learned(server, method, state, rows, t).reputation, weight * parts, atol=1e-9)


def test_an_absent_client_gains_nothing(make_server):
    server, state = begun(make_server)
    rows, values = gaining(server, server.initial, players=(0, 2))
    new = learned(server, ECI(), state, rows, 1, absent=[1])
    assert new.reputation.tolist() == pytest.approx([0.9 * value / sum(values) for value in values], abs=1e-9)
    assert new.reputation[1] == 0


def test_a_round_that_gains_nothing_counts_for_nobody(make_server):
    server, state = begun(make_server)
    for seed in range(100):
        if sum(by_all_orders(server, server.initial, updates(seed))) < 0:
            break
    new = learned(server, ECI(), state, updates(seed), 1)
    assert new.reputation.tolist() == [0, 0, 0]
    assert new.download.tolist() == [1, 1, 1]  # nothing tells the clients apart yet


def test_true_contributions_can_take_the_place_of_the_index(make_server):
    method = ECI(reputation_from="contributions")
    server, state = begun(make_server, method)
    new = learned(server, method, state, updates(0), 1)
    assert new.reputation.tolist() == pytest.approx([1 / 6, 2 / 6, 3 / 6])


def test_from_ten_clients_on_orders_are_drawn(make_server):
    torch.manual_seed(3)
    server = make_server([0.1] * 10, [5] * 10, nn.Linear(6, 3, bias=False))
    present = torch.ones(10, dtype=torch.bool)

    def index(rows, permutations):
        method = ECI(permutations=permutations)
        return method.judge(server, method.start(server), Uploads(rows, present, server.sizes), rows, rows[0], 1)[0]

    for seed in range(100):
        rows = torch.randn(10, 18, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        few = index(rows, 5)
        if bool(few.any()):  # together they improve the model
            break
    assert float(few.sum()) == pytest.approx(0.9)
    assert torch.equal(few, index(rows, 5))
    many = index(rows, 400)
    assert not torch.equal(few, many)
    assert float((index(rows, 600) - many).abs().sum()) < float((few - many).abs().sum())


def test_orders_are_drawn_for_names_so_that_permuting_clients_permutes_the_index(make_server):
    order, present = [3, 9, 0, 4, 8, 1, 7, 2, 6, 5], torch.ones(10, dtype=torch.bool)

    def index(rows, stand):
        torch.manual_seed(3)
        names = [f"client {i}" for i in stand]
        server = make_server([0.1] * 10, [5] * 10, nn.Linear(6, 3, bias=False), names=names)
        method = ECI(permutations=5)
        return method.judge(server, method.start(server), Uploads(rows[stand], present, server.sizes), rows, rows, 1)[0]

    for seed in range(100):
        rows = torch.randn(10, 18, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        found = index(rows, list(range(10)))
        if bool(found.any()):  # together they improve the model
            break
    assert torch.allclose(index(rows, order), found[order], atol=1e-12)
