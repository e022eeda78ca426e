"""What holds for every method when clients drop out, are sampled, join and leave."""

from dataclasses import replace

import pytest
import torch

from cofair.engine.phases import TRAIN
from cofair.engine.protocol import ClientStates
from cofair.methods.contract import Contract
from cofair.methods.families.submodels import SubmodelMethod
from tests.driving import collected
from tests.methods.test_every_method import every_method, rows, run

DROPOUT = {"fraction": 0.75, "dropout": 0.3, "join": [1, 3], "leave": [0, 0, 3]}
EVERY_ROUND = {"evaluate_every": 1}
BROUGHT = [0.2, 0.5, 0.7, 0.4]  # given, so that nobody trains alone here


@every_method
def test_nothing_breaks_and_engines_agree(name):
    results = {
        engine: run(name, contributions=BROUGHT, participation=DROPOUT, run=EVERY_ROUND | {"engine": engine})
        for engine in ("loop", "vectorised")
    }
    for (one, loop), (other, vectorised) in zip(results["loop"][0], results["vectorised"][0], strict=True):
        found = rows(loop, results["loop"][1])
        assert bool(torch.isfinite(found).all())
        assert float((found - rows(vectorised, results["vectorised"][1])).abs().max()) < 1e-9
        assert one.accuracies == other.accuracies
        assert all(value == value for value in one.reputation or [])


@every_method
def test_one_may_come_and_another_may_have_gone_a_hundred_rounds_ago(name):
    there = {"join": [1, 1, 1, 104], "leave": [0, 0, 3], "fade": 0.2}
    tested, prepared = run(name, last=106, contributions=BROUGHT, participation=there)
    assert tested[-1][0].round == 106 or name == "standalone"
    for record, delivered in tested:
        assert bool(torch.isfinite(rows(delivered, prepared)).all())
        assert all(value == value for value in record.reputation or [])


@every_method
def test_permuting_clients_permutes_who_comes_and_goes(name):
    order = [2, 0, 3, 1]
    settings = {"last": 3, "participation": {"fraction": 0.75, "dropout": 0.3}}
    plain, prepared = run(name, contributions=BROUGHT, **settings)
    permuted, again = run(name, contributions=[BROUGHT[i] for i in order], order=order, **settings)
    for (one, before), (other, after) in zip(plain, permuted, strict=True):
        assert torch.allclose(rows(after, again), rows(before, prepared)[order], atol=1e-9)
        assert other.accuracies == pytest.approx([one.accuracies[i] for i in order])


@every_method
def test_a_round_without_anybody_changes_no_reputation_and_breaks_nothing(name):
    tested, prepared = run(name, last=2, contributions=BROUGHT, participation={"dropout": 1.0})
    for record, delivered in tested:
        assert bool(torch.isfinite(rows(delivered, prepared)).all())
        assert all(value == value for value in record.reputation or [])


@every_method
def test_absent_clients_keep_what_is_theirs(name):
    """The memory of their optimisers, and, where reputations follow uploads, the order in which the absent stand."""
    _, prepared = run(name, last=1, contributions=BROUGHT, training={"optimiser": "adam", "lr": 0.01})
    method, server = prepared.experiment.method, prepared.server
    there, gone = torch.tensor([True, False, True, False]), [1, 3]
    kept = collected(prepared).states
    if not kept[-1].clients.optimiser:
        pytest.skip("trains nothing")
    state, clients = kept[-1].method, kept[-1].clients
    for phase in method.phases(server, 2):
        rewards = method.rewards(server, state, 2, phase)
        asked = there if rewards.participants is None else rewards.participants & there
        rewards = replace(rewards, participants=asked)
        uploads, after = prepared.engine.train(rewards, clients, 2)
        for key, value in clients.optimiser.items():
            assert torch.equal(after.optimiser[key][gone], value[gone]), key
        before, state = method.reputation(state), method.learn(server, state, rewards, uploads, 2, phase)
        now = method.reputation(state)
        follows_uploads = before is not None and not isinstance(method, SubmodelMethod | Contract)
        if follows_uploads and bool(before.any()):
            assert float(now[1] * before[3]) == pytest.approx(float(now[3] * before[1]), abs=1e-9)


def test_fedrac_counts_only_what_was_trained():
    _, prepared = run("fedrac", last=1)
    method, server = prepared.experiment.method, prepared.server
    state = method.start(server)
    for t in (1, 2):
        rewards = method.rewards(server, state, t, TRAIN)
        limited = prepared.setup.participation.limited(rewards, t, torch.tensor([True, True, False, False]))
        uploads, _ = prepared.engine.train(limited, ClientStates(), t)
        state = method.learn(server, state, limited, uploads, t, TRAIN)
    assert torch.equal(state.frequency, rewards.neuron_masks[:2].sum(0).double())


def test_fedsac_hands_out_the_same_share_whoever_is_absent():
    plain, _ = run("fedsac", last=3, run=EVERY_ROUND)
    dropped, prepared = run("fedsac", last=3, participation={"dropout": 0.4}, run=EVERY_ROUND)
    assert plain[-1][0].reputation == dropped[-1][0].reputation
    masks = dropped[-1][1].neuron_masks
    best = int(prepared.server.contributions.argmax())
    assert bool(masks[best].all())
    counts = masks.sum(1)[prepared.server.contributions.argsort()]
    assert counts.tolist() == sorted(counts.tolist())
