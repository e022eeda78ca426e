from dataclasses import replace

import pytest
import torch
from torch import nn

from cofair.engine.phases import TRAIN
from cofair.methods.iafl import IAFL
from tests.conftest import uploads_of


def begun(make_server, method, contributions=(0.2, 0.4, 0.4), sizes=None, names=None):
    server = make_server(contributions, sizes, nn.Linear(6, 3, bias=False), names=names)
    return server, method.start(server)


def learned(server, method, state, firsts, t=1, absent=()):
    """Let the server learn from updates of which only the first entry is not zero; return it and the changes."""
    rows = torch.zeros(len(firsts), 18)
    rows[:, 0] = torch.tensor(firsts)
    uploads = uploads_of(rows.tolist(), server.sizes.tolist(), absent)
    rewards = method.rewards(server, state, t, TRAIN)
    new = method.learn(server, state, rewards, uploads, t, TRAIN)
    return new, (new.models - rewards.parameters)[:, 0].tolist()


def test_half_the_contribution_gets_half_of_the_others(make_server):
    """γ = (1/2, 1, 1): of two others the first client draws one, the others both."""
    server, state = begun(make_server, IAFL())
    assert state.gamma.tolist() == [0.5, 1, 1]
    new, changes = learned(server, IAFL(), state, [1.0, 2.0, 6.0])
    assert changes[1:] == pytest.approx([3, 3])
    assert changes[0] in (pytest.approx(1.5), pytest.approx(3.5))
    assert float(new.reference[0] - state.reference[0]) == pytest.approx(3)
    assert new.download.tolist() == [1, 1, 1]


@pytest.mark.parametrize(("kappa", "expected"), [(0.0, [0.25, 1.0]), (0.5, [0.5, 1.0]), (1.0, [1.0, 1.0])])
def test_kappa_shares_regardless_of_contribution(make_server, kappa, expected):
    _, state = begun(make_server, IAFL(kappa=kappa), (0.1, 0.4))
    assert state.gamma.tolist() == pytest.approx(expected)


def test_by_samples(make_server):
    _, state = begun(make_server, IAFL(reputation_from="size"), (0.9, 0.1), (3, 12))
    assert state.gamma.tolist() == [0.25, 1]


def test_every_other_client_is_drawn_equally_often_and_oneself_always(make_server):
    server, state = begun(make_server, IAFL(), (0.1, 0.2, 0.3, 0.4, 0.4))
    present = torch.ones(5, dtype=torch.bool)
    total = sum(IAFL().draws(server, state.gamma, present, t) for t in range(1, 401)) / 400
    assert total.diagonal().tolist() == [1] * 5
    # the first of γ = 1/4 draws ⌈4/4⌉ = 1 of four, the second 2, the third 3, the best all
    for i, drawn in enumerate([1, 2, 3, 4, 4]):
        others = torch.cat([total[i, :i], total[i, i + 1 :]])
        assert others.sum() == pytest.approx(drawn)
        assert others.tolist() == pytest.approx([drawn / 4] * 4, abs=0.1)


def test_draws_are_of_those_who_answered(make_server):
    server, state = begun(make_server, IAFL(), (0.2, 0.4, 0.4))
    # of two that answered everybody wants ⌈γ (2 − 1)⌉ = 1 other: the absent one draws one and adds nothing of its own
    for t in range(1, 8):
        drawn = IAFL().draws(server, state.gamma, torch.tensor([True, True, False]), t)
        assert drawn[:2].tolist() == [[1, 1, 0], [1, 1, 0]]
        assert drawn[2].sum() == 1
        assert drawn[2, 2] == 0
    _, changes = learned(server, IAFL(), state, [1.0, 2.0, 0.0], absent=[2])
    assert changes[:2] == pytest.approx([1.5, 1.5])


def test_who_contributes_nothing_is_left_with_its_own_update(make_server):
    server, state = begun(make_server, IAFL(), (0.0, 0.4))
    new, changes = learned(server, IAFL(), state, [1.0, 2.0])
    assert changes == pytest.approx([1, 1.5])
    assert new.download.tolist() == [0, 1]


def test_with_probability_q_a_model_is_the_reference_model_again(make_server):
    for q, share in ((0.0, 0.0), (0.3, 0.3), (1.0, 1.0)):
        server, state = begun(make_server, IAFL(q=q), (0.1, 0.2, 0.3, 0.4))
        state, _ = learned(server, IAFL(), state, [1.0, 2.0, 3.0, 4.0])
        apart = [i for i in range(4) if not torch.equal(state.models[i], state.reference)]
        assert 0 in apart
        hits = []
        for t in range(2, 202):
            given = IAFL(q=q).rewards(server, state, t, TRAIN)
            reset = [torch.equal(given.parameters[i], state.reference) for i in apart]
            assert all(
                torch.equal(given.parameters[i], state.models[i]) for i, r in zip(apart, reset, strict=True) if not r
            )
            hits += reset
        assert sum(hits) / len(hits) == pytest.approx(share, abs=0.08)


def test_a_reset_model_goes_on_from_the_reference_model(make_server):
    server, state = begun(make_server, IAFL())
    state, _ = learned(server, IAFL(), state, [1.0, 2.0, 6.0])
    assert not torch.equal(state.models[0], state.reference)
    none = replace(state, download=torch.zeros_like(state.download))
    assert IAFL(q=1.0).rewards(server, none, 2, TRAIN).download.tolist() == [1, 1, 1]  # a whole model travels
    new, _ = learned(server, IAFL(q=1.0), state, [0.0, 0.0, 0.0], t=2)
    assert torch.equal(new.models, state.reference.expand(3, -1))


def test_the_reference_model_follows_the_first_by_name_of_the_best(make_server):
    """With an absent client the best draw differently; the reference model takes the draw of the same one."""
    for names, expected in ((("b", "a", "c"), 1), (("a", "b", "c"), 0)):
        server, state = begun(make_server, IAFL(), (0.4, 0.4, 0.4), names=names)
        new, changes = learned(server, IAFL(), state, [1.0, 0.0, 4.0], t=3, absent=[1])
        assert float(new.reference[0] - state.reference[0]) == pytest.approx(changes[expected])
