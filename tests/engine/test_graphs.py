"""Steps that are played back give what steps that run as usual give.

On a CPU recordings are imitated: what is played is the step as it was when it was recorded, whatever its engine has
made since. A CUDA graph is like that, for it knows addresses.
"""

import types
from contextlib import nullcontext
from dataclasses import replace
from random import Random

import pytest
import torch
from torch import nn

from cofair.engine import graphs, losses
from cofair.engine.phases import Phase
from cofair.engine.protocol import ClientStates, Rewards
from cofair.engine.vectorised import VectorisedEngine
from cofair.engine.work import Work
from cofair.models import build
from tests.conftest import small_federation, small_stack

SIZES = (7, 40, 19, 33)


def tied():
    one, two = nn.Linear(6, 6), nn.Linear(6, 6)
    two.weight = one.weight
    return nn.Sequential(one, nn.Tanh(), two, nn.Tanh(), nn.Linear(6, 3))


def frozen():
    stack = small_stack()
    stack[1].weight.requires_grad_(False)
    return stack


MODELS = {
    "mlp": (small_stack, {}),
    "dropout": (lambda: nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Dropout(0.4), nn.Linear(8, 3)), {}),
    "tied": (tied, {}),
    "frozen": (frozen, {}),
    "no neurons": (lambda: nn.Linear(6, 3), {}),
    "cnn": (lambda: build("cnn-cifar", (3, 18, 18), 3), {"shape": (3, 18, 18)}),
    "resnet": (lambda: build("resnet18", (3, 16, 16), 3, widths=(2, 2, 2, 4)), {"shape": (3, 16, 16)}),
    "text": (lambda: build("textcnn", (12,), 3, vocabulary=30), {"shape": (12,), "tokens": 30}),
}
WORKS = (
    Work(steps=4, batch_size=8, lr=0.1),
    Work(steps=4, batch_size=8, lr=0.1, clip=1.0),
    Work(steps=4, batch_size=8, lr=0.1, clip=0.1, phase=Phase("another")),
    Work(steps=None, epochs=2, batch_size=8, lr=0.1, decay=0.9, decay_every="epoch"),
    Work(steps=5, batch_size=8, lr=0.01, optimiser="adam"),
    Work(steps=None, epochs=2, batch_size=8, lr=0.01, optimiser="adam", clip=0.5, decay=0.9),
    Work(steps=4, batch_size=4, lr=0.2, decay=0.5, statistics=("loss_before",)),
)
STEPS = Work(steps=6, batch_size=8, lr=0.1, clip=1.0)


@pytest.fixture
def imitated(monkeypatch):
    """Record on a CPU; return how often something was played back."""
    played = []

    def record(step, inputs, device):
        cells = tuple(types.CellType(cell.cell_contents) for cell in step.__closure__)
        kept = types.FunctionType(step.__code__, step.__globals__, step.__name__, step.__defaults__, cells)
        return lambda: (played.append(1), kept(inputs))

    monkeypatch.setattr(graphs, "record", record)
    return played


def problem_of(make_problem, model, **given):
    make, federation = MODELS[model]
    torch.manual_seed(0)
    return make_problem(make(), small_federation(SIZES, **federation), **given)


def asked(problem, random, t):
    """Return rewards of a random kind: other work, other clients, with submodels, without, or drawn in each step."""
    device, chance = problem.device, torch.Generator().manual_seed(random.randrange(10**6))
    there = torch.tensor([random.random() < 0.7 for _ in SIZES]).index_fill(0, torch.tensor(t % len(SIZES)), True)
    rewards = Rewards(torch.empty(0), random.choice(WORKS), participants=there.to(device))
    kind = random.choice(["whole", "masks", "drawn"]) if problem.neurons is not None else "whole"
    if kind == "masks":
        masks = torch.rand(len(SIZES), problem.neurons.count, generator=chance) < 0.7
        return replace(rewards, neuron_masks=masks.to(device))
    if kind == "drawn":
        masks = torch.rand(len(SIZES), 3, problem.neurons.count, generator=chance) < 0.7
        choices = torch.tensor([1, 2, 3, 3], device=device)
        return replace(rewards, step_masks=masks.to(device), step_choices=choices)
    return rewards


def play_and_compare(problem, seed, rounds, tolerance):
    """Train random rounds with one engine that plays back and one that does not; return the first."""
    random, start = Random(seed), problem.layout.row(problem.layout.prototype)
    engines = VectorisedEngine(problem), VectorisedEngine(problem)
    engines[0].graphs.usable, engines[1].graphs.usable = True, False
    states, parameters, kept = [ClientStates(), ClientStates()], start, []
    for t in range(1, rounds + 1):
        rewards = replace(asked(problem, random, t), parameters=parameters)
        answers = [engine.train(rewards, own, t) for engine, own in zip(engines, states, strict=True)]
        states = [own for _, own in answers]
        (played, remembered), (usual, own) = ((uploads.updates, own.optimiser) for uploads, own in answers)
        torch.testing.assert_close(played, usual, rtol=tolerance, atol=tolerance)
        for name, value in own.items():
            torch.testing.assert_close(remembered[name], value, rtol=tolerance, atol=tolerance)
        kept += [(value, value.clone()) for value in (played, *remembered.values())]
        parameters = start + usual
    assert engines[0].graphs.usable
    assert all(torch.equal(now, then) for now, then in kept)  # later rounds do not write into earlier answers
    return engines[0]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("model", sorted(MODELS.keys() - {"text"}))  # which is slow on a CPU
def test_what_is_played_back_is_up_to_date(make_problem, imitated, model, seed):
    rounds = 12 if model in ("cnn", "resnet") else 30
    play_and_compare(problem_of(make_problem, model), seed, rounds, 1e-9)
    assert imitated


@pytest.mark.gpu
@pytest.mark.parametrize("model", MODELS)
def test_graphs_are_as_usual(make_problem, model):
    problem = problem_of(make_problem, model, device="cuda", dtype=torch.float32)
    assert play_and_compare(problem, 0, 12, 1e-3).graphs._recorded


@pytest.mark.gpu
def test_an_engine_that_is_gone_leaves_the_graphs_of_others_alone(make_problem):
    problem = problem_of(make_problem, "cnn", device="cuda", dtype=torch.float32)
    rewards = Rewards(problem.layout.row(problem.layout.prototype), STEPS)
    first, second = VectorisedEngine(problem), VectorisedEngine(problem)
    found = [engine.train(rewards, ClientStates(), t)[0].updates for t in (1, 2) for engine in (first, second)]
    assert first.graphs._recorded
    assert second.graphs._recorded
    del first
    torch.cuda.empty_cache()
    torch.testing.assert_close(second.train(rewards, ClientStates(), 2)[0].updates, found[-1])


class Own(nn.Module):
    """A module of a user's own, which may do in Python what a recording would do but once."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x):
        return self.layer(x)


def hooked():
    module = nn.Sequential(nn.Linear(6, 3))
    module[0].register_forward_hook(lambda *_: None)
    return module


def own_loss(outputs, targets):
    return losses.cross_entropy(outputs, targets)


def test_only_what_does_nothing_beside_kernels_can_repeat(make_problem):
    assert graphs.can_repeat(make_problem(small_stack()))
    assert graphs.can_repeat(problem_of(make_problem, "resnet"))
    assert not graphs.can_repeat(make_problem(nn.Sequential(Own(), nn.Tanh())))
    assert not graphs.can_repeat(make_problem(hooked()))
    assert not graphs.can_repeat(make_problem(small_stack(), loss=own_loss))


def test_a_module_that_draws_gives_up(make_problem, imitated):
    problem = make_problem(nn.Sequential(nn.Linear(6, 8), nn.AlphaDropout(0.3), nn.Linear(8, 3)))
    engine = VectorisedEngine(problem)
    engine.graphs.usable = True
    engine.train(Rewards(problem.layout.row(problem.layout.prototype), STEPS), ClientStates(), 1)
    assert not engine.graphs.usable
    assert not imitated


def test_kinds_that_no_longer_come_make_room(make_problem, imitated, monkeypatch):
    monkeypatch.setattr(graphs, "_MOST", 2)
    problem = make_problem()
    engine = VectorisedEngine(problem)
    engine.graphs.usable = True
    start = problem.layout.row(problem.layout.prototype)
    for t, clip in enumerate((0.1, 0.2, 0.3, 0.3, 0.3), start=1):  # one kind a round, the third too soon for room
        before = len(imitated)
        engine.train(Rewards(start, replace(STEPS, clip=clip)), ClientStates(), t)
    assert len(imitated) > before
    assert len(engine.graphs._recorded) <= 2


def test_a_recording_that_fails_is_told_and_changes_nothing(make_problem, monkeypatch):
    def record(step, inputs, device):
        raise RuntimeError("no such thing\nhere")

    monkeypatch.setattr(graphs, "record", record)
    problem = make_problem()
    rewards = Rewards(problem.layout.row(problem.layout.prototype), STEPS)
    usual, _ = VectorisedEngine(problem).train(rewards, ClientStates(), 1)
    engine = VectorisedEngine(problem)
    engine.graphs.usable = True
    with pytest.warns(UserWarning, match="cannot be recorded here, so training is slower: no such thing$"):
        found, _ = engine.train(rewards, ClientStates(), 1)
    assert torch.equal(found.updates, usual.updates)
    assert not engine.graphs.usable


def with_a_copy(outputs, targets):
    return losses.cross_entropy(outputs, targets) * torch.ones(1).to(outputs.device)  # which cannot be recorded


@pytest.mark.gpu
@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_what_cannot_be_recorded_runs_as_usual(make_problem, model, monkeypatch):
    monkeypatch.setitem(graphs.LOSSES, "with a copy", with_a_copy)
    problem = problem_of(make_problem, model, device="cuda", dtype=torch.float32, loss=with_a_copy)
    rewards = Rewards(problem.layout.row(problem.layout.prototype), STEPS)
    stream, found = torch.cuda.current_stream(), []
    for usable in (True, False):
        engine = VectorisedEngine(problem)
        assert engine.graphs.usable
        engine.graphs.usable = usable
        with pytest.warns(UserWarning, match="cannot be recorded") if usable else nullcontext():
            found.append(engine.train(rewards, ClientStates(), 1)[0].updates)
        assert not engine.graphs.usable
        assert torch.cuda.current_stream() == stream
    torch.rand(1, device="cuda")
    torch.testing.assert_close(*found)
