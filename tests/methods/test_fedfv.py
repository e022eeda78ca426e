import math

import pytest
import torch
from torch import nn

from cofair.engine.phases import TRAIN
from cofair.engine.protocol import Uploads
from cofair.methods.fedfv import FedFV


def learned(make_server, method, gradients, losses, absent=(), state=None, t=1):
    """Let a server learn from gradients, the negatives of updates; only their first entries are not zero."""
    server = make_server([0.1] * len(gradients), module=nn.Linear(6, 3, bias=False))
    state = method.start(server) if state is None else state
    rows = torch.zeros(len(gradients), 18, dtype=torch.float64)
    for row, gradient in zip(rows, gradients, strict=True):
        row[: len(gradient)] = -torch.tensor(gradient, dtype=torch.float64)
    present = torch.ones(len(gradients), dtype=torch.bool)
    present[list(absent)] = False
    rows[~present] = 0
    losses = torch.tensor(losses, dtype=torch.float64).masked_fill(~present, torch.nan)
    uploads = Uploads(rows, present, server.sizes, {"loss_before": losses})
    new = method.learn(server, state, method.rewards(server, state, t, TRAIN), uploads, t, TRAIN)
    return new, (state.parameters - new.parameters)[: max(map(len, gradients))].tolist()


def test_two_gradients_in_conflict_are_bent_to_each_others_normal_plane(make_server):
    """g_1 = (1, 0) and g_2 = (−1, 1) become (0.5, 0.5) and (0, 1); their mean gets the length 1/2 of the plain mean."""
    _, step = learned(make_server, FedFV(alpha=0.0), [[1.0, 0.0], [-1.0, 1.0]], [1.0, 2.0])
    length = math.hypot(0.25, 0.75)
    assert step == pytest.approx([0.5 * 0.25 / length, 0.5 * 0.75 / length], abs=1e-9)


def test_the_clients_of_the_largest_losses_are_not_bent(make_server):
    """With g_2 kept the mean is (−0.25, 0.75), against g_1, and the external rule bends it to (0, 0.75)."""
    gradients = [[1.0, 0.0], [-1.0, 1.0]]
    _, step = learned(make_server, FedFV(alpha=0.5), gradients, [1.0, 2.0])
    assert step == pytest.approx([0, 0.5], abs=1e-9)
    # without the external rule it stays against g_1
    _, step = learned(make_server, FedFV(alpha=0.5, tau=0), gradients, [1.0, 2.0])
    assert step == pytest.approx([-0.5 * 0.25 / math.hypot(0.25, 0.75), 0.5 * 0.75 / math.hypot(0.25, 0.75)], abs=1e-9)


def bent_one_by_one(gradients, losses, kept):
    """The mean of gradients, those of the `kept` largest losses excepted bent with plain vectors, one after another."""
    order = sorted(range(len(gradients)), key=lambda i: losses[i])
    bent = []
    for i, vector in enumerate(gradients):
        for j in order:
            if i != j and i not in order[len(order) - kept :] and float(vector @ gradients[j]) < 0:
                vector = vector - (vector @ gradients[j]) / gradients[j].norm() ** 2 * gradients[j]
        bent.append(vector)
    return torch.stack(bent).mean(0)


@pytest.mark.parametrize(
    ("m", "alpha", "kept"),
    [(10, 0.1, 1), (10, 0.2, 2), (11, 0.3, 4), (3, 0.1, 1), (1, 0.1, 1), (5, 1.0, 5), (4, 0.0, 0)],
)
def test_how_many_are_kept(m, alpha, kept):
    """From place ⌈(m − 1)(1 − α)⌉ on: of ten clients the last for α = 0.1, of eleven the last four for α = 0.3."""
    random = torch.Generator().manual_seed(5)
    gradients = torch.randn(m, 4, generator=random, dtype=torch.float64)
    losses = torch.rand(m, generator=random, dtype=torch.float64)
    found = FedFV(alpha=alpha).internal(gradients, losses)
    assert torch.allclose(found, bent_one_by_one(gradients, losses, kept), atol=1e-12)
    if 0 < kept < m:
        assert not torch.allclose(found, bent_one_by_one(gradients, losses, kept - 1), atol=1e-12)


def brute_force(method, history, gradients, losses, present, t):
    """All of FedFV with plain vectors."""
    here = present.nonzero().flatten().tolist()
    for i in here:
        history[i] = (t, gradients[i])
    kept = len(here) - math.ceil((len(here) - 1) * (1 - method.alpha)) if method.alpha else 0
    step = bent_one_by_one(gradients[here], losses[here], kept)
    for age in reversed(range(method.tau if t >= method.tau else 0)):
        against = [g for when, g in history.values() if when == t - age and float(step @ g) < 0]
        if against:
            joined = torch.stack(against).sum(0)
            step = step - (step @ joined) / joined.norm() ** 2 * joined
    return step / step.norm() * gradients[here].mean(0).norm()


@pytest.mark.parametrize(("alpha", "tau"), [(0.0, 0), (0.1, 1), (0.4, 1), (0.1, 3), (0.6, 2)])
def test_the_gram_matrix_gives_what_projecting_vector_by_vector_gives(make_server, alpha, tau):
    method, random = FedFV(alpha=alpha, tau=tau), torch.Generator().manual_seed(4)
    state, history = None, {}
    for t in range(1, 7):
        gradients = torch.randn(6, 3, generator=random, dtype=torch.float64)
        losses = torch.rand(6, generator=random, dtype=torch.float64)
        present = torch.rand(6, generator=random) < 0.7
        absent = (~present).nonzero().flatten().tolist()
        state, step = learned(make_server, method, gradients.tolist(), losses.tolist(), absent, state, t)
        expected = brute_force(method, history, gradients, losses, present, t)
        assert step == pytest.approx(expected.tolist(), abs=1e-9)


def test_without_conflicts_it_is_the_mean(make_server):
    _, step = learned(make_server, FedFV(), [[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]], [1.0, 2.0, 3.0])
    assert step == pytest.approx([2 / 3, 1], abs=1e-9)


def test_gradients_that_cancel_out_and_gradients_of_zeros_leave_the_model(make_server):
    _, step = learned(make_server, FedFV(), [[1.0, 0.0], [-1.0, 0.0]], [1.0, 2.0])
    assert step == [0, 0]
    _, step = learned(make_server, FedFV(), [[0.0, 0.0], [0.0, 0.0]], [1.0, 2.0])
    assert step == [0, 0]
    _, step = learned(make_server, FedFV(), [[0.0, 0.0], [1.0, 3.0]], [1.0, 2.0])
    assert step == pytest.approx([0.5, 1.5], abs=1e-9)


def test_one_client_simply_steps(make_server):
    _, step = learned(make_server, FedFV(), [[3.0, -1.0]], [1.0])
    assert step == pytest.approx([3, -1], abs=1e-9)
