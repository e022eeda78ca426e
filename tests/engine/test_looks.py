"""What clients tell of the model they received, beside their updates: losses on their own data."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from cofair.engine.loop_engine import LoopEngine
from cofair.engine.protocol import ClientStates, Rewards
from cofair.engine.vectorised import VectorisedEngine
from cofair.engine.work import Work
from cofair.errors import UsageError
from tests.conftest import small_federation, small_stack


@pytest.fixture(params=["relu stack", "not a stack"])
def module(request):
    """A module that the batch engine trains by hand, and one that it does not."""
    if request.param == "relu stack":
        return lambda: small_stack(nn.ReLU)
    return lambda: nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 3))


def test_losses_before_training_are_those_of_the_model_received(make_problem, module):
    federation = small_federation((7, 140, 64, 65))
    problem = make_problem(module(), federation)
    work = Work(steps=2, epochs=None, batch_size=8, lr=0.1, statistics=("loss_before", "batch_losses_before"))
    rewards = Rewards(
        problem.layout.row(problem.layout.prototype), work, participants=torch.tensor([True, True, False, True])
    )
    for t in (1, 2):
        loop, vectorised = (
            kind(problem).train(rewards, ClientStates(), t)[0] for kind in (LoopEngine, VectorisedEngine)
        )
        for name in work.statistics:
            a, b = loop.statistics[name], vectorised.statistics[name]
            assert torch.equal(a.isnan(), b.isnan())
            assert torch.allclose(a.nan_to_num(), b.nan_to_num(), atol=1e-12)
        batches = loop.statistics["batch_losses_before"]
        assert (~batches.isnan()).sum(1).tolist() == [1, 3, 0, 2]
    uploads, _ = LoopEngine(problem).train(rewards, ClientStates(), 1)
    own = problem.federation.client(1)
    with torch.no_grad():
        expected = F.cross_entropy(problem.layout.prototype(own.x), own.y)
    assert uploads.statistics["loss_before"][1].item() == pytest.approx(expected.item(), abs=1e-12)


def test_a_client_looks_at_no_more_batches_than_are_asked_for(make_problem, module):
    problem = make_problem(module(), small_federation((7, 300, 64, 129)))
    asked = Work(steps=1, epochs=None, batch_size=8, statistics=("batch_losses_before",))
    every, some = (
        Rewards(problem.layout.row(problem.layout.prototype), replace(asked, looks=looks)) for looks in (None, 2)
    )
    for engine in (LoopEngine(problem), VectorisedEngine(problem)):
        whole, cut = (engine.train(given, ClientStates(), 3)[0].statistics for given in (every, some))
        assert cut["batch_losses_before"].shape == (4, 2)
        assert torch.allclose(cut["batch_losses_before"], whole["batch_losses_before"][:, :2], equal_nan=True)
    with pytest.raises(UsageError, match="looks unset"):
        replace(asked, statistics=("loss_before",), looks=2)


def test_how_many_samples_are_looked_at_in_one_go_changes_nothing(make_problem, module):
    problem = make_problem(module(), small_federation((7, 300, 64, 129)))
    work = Work(steps=1, epochs=None, batch_size=8, statistics=("batch_losses_before",))
    found = []
    for samples in (64, 400, 10**6):
        engine = VectorisedEngine(problem)
        engine._looked_at = samples
        uploads, _ = engine.train(Rewards(problem.layout.row(problem.layout.prototype), work), ClientStates(), 3)
        found.append(uploads.statistics["batch_losses_before"])
    for other in found[1:]:
        assert torch.allclose(found[0], other, atol=1e-12, equal_nan=True)
