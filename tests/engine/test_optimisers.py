"""Every local optimiser is torch's own, in every engine, for whole models and for submodels."""

import copy
import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from cofair.config.experiment import Experiment
from cofair.engine.loop_engine import LoopEngine
from cofair.engine.optimisers import OPTIMISERS
from cofair.engine.protocol import ClientStates, Rewards
from cofair.engine.vectorised import VectorisedEngine
from cofair.engine.work import Work
from cofair.errors import UsageError
from tests.conftest import small_stack

TORCH = {
    "sgd": torch.optim.SGD,
    "momentum": partial(torch.optim.SGD, momentum=0.9),
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
}
ENGINES = (LoopEngine, VectorisedEngine)
every_optimiser = pytest.mark.parametrize("name", OPTIMISERS)
every_module = pytest.mark.parametrize(
    "module",
    [small_stack, lambda: nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 5), nn.ReLU(), nn.Linear(5, 3))],
    ids=["stack", "not a stack"],
)


def start_of(problem):
    return problem.layout.row(problem.layout.prototype)


@every_optimiser
@pytest.mark.parametrize("clip", [None, 0.05])
def test_a_client_steps_as_torch_optim_would(make_problem, name, clip):
    """Batches of all its data for three rounds, between which the client keeps its model; the rate falls."""
    problem = make_problem()
    work = Work(steps=4, batch_size=1000, lr=0.05, decay=0.5, clip=clip, optimiser=name)
    module, own = copy.deepcopy(problem.layout.prototype), problem.federation.client(2)
    optimiser = TORCH[name](module.parameters(), lr=0.05)
    rows = {kind: start_of(problem) for kind in ENGINES}
    states = {kind: ClientStates() for kind in ENGINES}
    for t in (1, 2, 3):
        for group in optimiser.param_groups:
            group["lr"] = 0.05 * 0.5 ** (t - 1)
        for _ in range(4):
            optimiser.zero_grad()
            F.cross_entropy(module(own.x), own.y).backward()
            if clip is not None:
                nn.utils.clip_grad_norm_(module.parameters(), clip)
            optimiser.step()
        for kind in ENGINES:
            uploads, states[kind] = kind(problem).train(Rewards(rows[kind], work), states[kind], t)
            rows[kind] = rows[kind] + uploads.updates[2]
            assert float((rows[kind] - problem.layout.row(module)).abs().max()) < 1e-12


WORKS = {
    "steps": Work(steps=3, batch_size=8, lr=0.05),
    "clip": Work(steps=3, batch_size=8, lr=0.05, clip=0.1),
    "decay by round": Work(steps=3, batch_size=8, lr=0.05, decay=0.5),
    "decay by epoch": Work(steps=None, epochs=2, batch_size=8, lr=0.05, decay=0.5, decay_every="epoch", clip=1.0),
}


def submodels(problem, t, narrow=True):
    """Return masks that differ between clients and rounds."""
    K = problem.neurons.count
    return (torch.arange(K)[None, :] + t) % 3 < torch.tensor([[1], [2], [3], [2]]) if narrow else torch.ones(4, K) > 0


@every_optimiser
@every_module
@pytest.mark.parametrize("work", WORKS.values(), ids=WORKS)
@pytest.mark.parametrize("masked", ["whole", "submodels", "drawn"])
def test_engines_agree(make_problem, name, module, work, masked):
    torch.manual_seed(2)
    problem = make_problem(module())
    parameters, states = start_of(problem), {kind: ClientStates() for kind in ENGINES}
    for t in (1, 2, 3):
        rewards = Rewards(parameters, replace(work, optimiser=name))
        if masked != "whole":
            rewards = replace(rewards, neuron_masks=submodels(problem, t))
        if masked == "drawn":
            masks = torch.stack([submodels(problem, t + 1) & submodels(problem, t), submodels(problem, t)], 1)
            rewards = replace(rewards, step_masks=masks, step_choices=torch.tensor([2, 1, 2, 2]))
        uploads = {}
        for kind in ENGINES:
            uploads[kind], states[kind] = kind(problem).train(rewards, states[kind], t)
        loop, vectorised = (uploads[kind].updates for kind in ENGINES)
        assert float((loop - vectorised).abs().max()) < 1e-9
        assert float(loop.abs().max()) > 1e-4
        remembered = [states[kind].optimiser for kind in ENGINES]
        assert remembered[0].keys() == remembered[1].keys()
        assert all(torch.allclose(remembered[0][key], remembered[1][key], atol=1e-9) for key in remembered[0])
        parameters = parameters + loop.mean(0)


@every_optimiser
@pytest.mark.parametrize("kind", ENGINES)
def test_what_a_submodel_leaves_out_is_moved_by_moments_alone(make_problem, name, kind):
    """Nobody can decay or train what it does not hold; moments of a training in which it did still act."""
    problem = make_problem(small_stack(nn.Tanh))
    work = Work(steps=3, batch_size=8, lr=0.05, optimiser=name)
    masks = submodels(problem, 1)
    outside = ~problem.neurons.parameter_mask(masks)
    fresh, _ = kind(problem).train(Rewards(start_of(problem), work, masks), ClientStates(), 1)
    assert not fresh.updates[outside].any()
    _, states = kind(problem).train(Rewards(start_of(problem), work), ClientStates(), 1)
    later, _ = kind(problem).train(Rewards(start_of(problem), work, masks), states, 2)
    assert bool(later.updates[outside].any()) == OPTIMISERS[name].moves_masked
    # what it does there depends on the moments only: a client need not know the values
    other = start_of(problem).expand(4, -1).masked_fill(outside, 7.0)
    again, _ = kind(problem).train(Rewards(other, work, masks), states, 2)
    assert float((again.updates - later.updates).abs().max()) < 1e-12


@every_optimiser
def test_what_is_remembered_is_named_by_the_optimiser(make_problem, name):
    problem, chosen = make_problem(), OPTIMISERS[name]
    for kind in ENGINES:
        rewards = Rewards(start_of(problem), Work(steps=2, batch_size=8, optimiser=name))
        _, states = kind(problem).train(rewards, ClientStates(), 1)
        assert set(states.optimiser) == {*chosen.moments, *(["steps"] if chosen.counts_steps else [])}
        assert all(states.optimiser[moment].shape == (4, problem.layout.size) for moment in chosen.moments)
        other = replace(rewards, work=replace(rewards.work, optimiser="sgd"))
        _, kept = kind(problem).train(other, states, 2)  # a training without memory leaves that of others alone
        assert all(torch.equal(kept.optimiser[key], value) for key, value in states.optimiser.items())


def test_names_come_from_the_registry():
    assert set(TORCH) == set(OPTIMISERS)
    assert all(name == one.name for name, one in OPTIMISERS.items())
    with pytest.raises(UsageError, match=r"training.optimiser = 'adma' is not a choice: .*adam"):
        Experiment.from_dict({"training": {"optimiser": "adma"}})
    with pytest.raises(UsageError, match=r"There is no optimiser 'adma': .*adam"):
        Work(optimiser="adma")


def test_the_page_lists_them():
    page = (Path(__file__).parents[2] / "docs" / "start.md").read_text()
    table = page.partition("| optimiser | what |\n| --- | --- |\n")[2].partition("\n\n")[0]
    assert re.findall(r"^\| `(.*)` \| (.*) \|$", table, re.MULTILINE) == [(o.name, o.text) for o in OPTIMISERS.values()]
