"""Runs in lockstep give the numbers of each run by itself."""

from dataclasses import replace

import pytest
import torch

from cofair.engine.lockstep import Lockstep, Request
from cofair.engine.problem import Problem
from cofair.engine.protocol import ClientStates, Rewards
from cofair.engine.vectorised import VectorisedEngine
from cofair.engine.work import Work
from cofair.errors import UsageError

WORKS = {
    "sgd": Work(steps=4, batch_size=8, lr=0.1, clip=1.0),
    "adam": Work(steps=None, epochs=2, batch_size=8, lr=0.01, optimiser="adam", decay=0.5, decay_every="epoch"),
    "adamw": Work(steps=4, batch_size=8, lr=0.01, optimiser="adamw", clip=0.5, decay=0.5),
    "momentum": Work(steps=4, batch_size=8, lr=0.05, optimiser="momentum", clip=0.5, decay=0.5),
}


@pytest.fixture
def problems(make_problem) -> list[Problem]:
    """Two runs of one pool: another seed, fewer clients."""
    one = make_problem()
    sizes = one.federation.sizes[:3]
    some = slice(0, int(sizes.sum()))
    fewer = one.federation.replaced(
        names=one.federation.names[:3], rows=one.federation.rows[some], labels=one.federation.labels[some], sizes=sizes
    )
    return [one, replace(one, federation=fewer, seed=5)]


@pytest.mark.parametrize("work", WORKS.values(), ids=WORKS)
@pytest.mark.parametrize("submodels", [False, True])
def test_runs_in_lockstep_are_the_runs_one_by_one(problems, work, submodels):
    lockstep = Lockstep(problems)
    states = apart = [ClientStates()] * 2
    for t in (1, 2):
        rewards = [Rewards(problem.layout.row(problem.layout.prototype), work) for problem in problems]
        if submodels:
            masks = torch.arange(problems[0].neurons.count).repeat(4, 1) % 3 < torch.arange(1, 5)[:, None]
            rewards[0] = replace(rewards[0], neuron_masks=masks)
        answers = lockstep.train([Request(k, own, states[k], t) for k, own in enumerate(rewards)])
        for k, (uploads, _) in enumerate(answers):
            alone, _ = VectorisedEngine(problems[k]).train(rewards[k], apart[k], t)
            assert float((uploads.updates - alone.updates).abs().max()) < 1e-12
            assert torch.equal(uploads.present, alone.present)
        apart = [
            VectorisedEngine(problem).train(own, was, t)[1]
            for problem, own, was in zip(problems, rewards, apart, strict=True)
        ]
        states = [own for _, own in answers]
        for own, other in zip(states, apart, strict=True):
            assert own.optimiser.keys() == other.optimiser.keys()
            assert all(torch.allclose(own.optimiser[name], other.optimiser[name]) for name in own.optimiser)


def test_what_attackers_remember_stays_with_its_run(problems):
    work = WORKS["adam"]
    marks = [ClientStates(attackers={"received": torch.full((4 - k, 1), float(k))}) for k in range(2)]
    rewards = [Rewards(problem.layout.row(problem.layout.prototype), work) for problem in problems]
    answers = Lockstep(problems).train([Request(k, rewards[k], marks[k], 1) for k in range(2)])
    assert [states.attackers for _, states in answers] == [states.attackers for states in marks]


def test_runs_of_other_data_are_refused(make_problem):
    with pytest.raises(UsageError, match="share their data"):
        Lockstep([make_problem(), make_problem()])
