"""Steps that are played back give what steps that run as usual give; these tests need a GPU."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from cofair.engine import graphs, losses
from cofair.engine.exchange import ClientStates, Rewards
from cofair.engine.vectorised import VectorisedEngine
from cofair.engine.work import Work
from cofair.models import build
from tests.conftest import small_federation, small_stack

pytestmark = pytest.mark.gpu
SIZES = (7, 40, 19, 33)
TEXT = {"shape": (12,), "tokens": 30}
MODELS = {
    "mlp": (small_stack, {}),
    "dropout": (lambda: nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Dropout(0.4), nn.Linear(8, 3)), {}),
    "cnn": (lambda: build("cnn-cifar", (3, 18, 18), 3), {"shape": (3, 18, 18)}),
    "resnet": (lambda: build("resnet18", (3, 16, 16), 3, widths=(4, 4, 6, 8)), {"shape": (3, 16, 16)}),
    "text": (lambda: build("textcnn", (12,), 3, vocabulary=30), TEXT),
}
WORKS = {
    "steps": Work(steps=6, batch_size=8, lr=0.1, clip=1.0),
    "epochs, fewer and fewer clients": Work(steps=None, epochs=3, batch_size=8, lr=0.1, decay=0.9, decay_every="epoch"),
    "adam": Work(steps=5, batch_size=8, lr=0.01, optimiser="adam"),
}


def rounds(problem, work, played, *, masked=True):
    """Train four rounds with one engine, with other submodels and other clients each; return all updates."""
    engine = VectorisedEngine(problem)
    engine.graphs.usable = played
    parameters, states, found = problem.layout.row(problem.layout.prototype), ClientStates(), []
    chance = torch.Generator().manual_seed(0)
    for t in range(1, 5):
        masks = torch.rand(len(SIZES), problem.neurons.count, generator=chance) < 0.7 if masked else None
        there = torch.tensor([True, t != 2, True, t != 3], device=problem.device)
        masks = None if masks is None else masks.to(problem.device)
        uploads, states = engine.train(Rewards(parameters, work, masks, participants=there), states, t)
        parameters = parameters + uploads.updates
        found.append(uploads.updates)
    return torch.stack(found), states, engine


@pytest.mark.parametrize("work", WORKS.values(), ids=WORKS)
@pytest.mark.parametrize("model", MODELS)
def test_played_back_is_as_usual(make_problem, model, work):
    make, given = MODELS[model]
    torch.manual_seed(0)
    problem = make_problem(make(), small_federation(SIZES, **given), device="cuda", dtype=torch.float32)
    usual, usual_states, _ = rounds(problem, work, False)
    played, played_states, engine = rounds(problem, work, True)
    assert engine.graphs.usable
    assert len(engine.graphs._recorded) >= 1
    torch.testing.assert_close(played, usual, rtol=1e-3, atol=1e-5)
    for name, own in usual_states.optimiser.items():
        torch.testing.assert_close(played_states.optimiser[name], own, rtol=1e-3, atol=1e-5)


def test_uploads_are_not_changed_by_the_next_round(make_problem):
    problem = make_problem(device="cuda")
    engine = VectorisedEngine(problem)
    rewards = Rewards(problem.layout.row(problem.layout.prototype), WORKS["steps"])
    first, _ = engine.train(rewards, ClientStates(), 1)
    kept = first.updates.clone()
    engine.train(rewards, ClientStates(), 2)
    assert torch.equal(first.updates, kept)


def test_masks_that_steps_draw_are_played_back(make_problem):
    problem = make_problem(build("cnn-cifar", (3, 18, 18), 3), small_federation(SIZES, (3, 18, 18)), device="cuda")
    chance = torch.Generator().manual_seed(0)
    drawn = (torch.rand(len(SIZES), 3, problem.neurons.count, generator=chance) < 0.7).to("cuda")
    rewards = Rewards(problem.layout.row(problem.layout.prototype), WORKS["steps"], step_masks=drawn)
    rewards = replace(rewards, step_choices=torch.tensor([1, 2, 3, 3], device="cuda"))
    found = []
    for played in (True, False):
        engine = VectorisedEngine(problem)
        engine.graphs.usable = played
        found.append(engine.train(rewards, ClientStates(), 1)[0].updates)
        assert bool(engine.graphs._recorded) is played
    torch.testing.assert_close(*found)


class Counting(nn.Module):
    """A module of a user's own, which does something in Python that a recording would do but once."""

    def __init__(self):
        super().__init__()
        self.layer, self.calls = nn.Linear(6, 3), 0

    def forward(self, x):
        self.calls += 1
        return self.layer(x) * self.calls


def with_a_copy(outputs, targets):
    return losses.cross_entropy(outputs, targets) * torch.ones(1).to(outputs.device)  # which cannot be recorded


CASES = {
    "a module of one's own": (Counting, losses.cross_entropy),
    "a module that draws": (
        lambda: nn.Sequential(nn.Linear(6, 8), nn.AlphaDropout(0.3), nn.Linear(8, 3)),
        losses.cross_entropy,
    ),
    "a loss that cannot be recorded": (small_stack, with_a_copy),
}


@pytest.mark.parametrize("case", CASES)
def test_what_would_not_be_the_same_again_runs_as_usual(make_problem, case, monkeypatch):
    module, loss = CASES[case]
    monkeypatch.setitem(graphs.LOSSES, "with a copy", with_a_copy)
    problem = make_problem(module(), device="cuda", loss=loss)
    asked = VectorisedEngine(problem).graphs.usable
    usual, _, _ = rounds(problem, WORKS["steps"], False, masked=False)
    again, _, engine = rounds(problem, WORKS["steps"], asked, masked=False)
    assert not engine.graphs.usable
    torch.testing.assert_close(again, usual)
