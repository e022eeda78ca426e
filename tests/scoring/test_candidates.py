"""Candidates that run together give what one forward each gives, whatever they share."""

import pytest
import torch
from torch import nn

from cofair.models import build
from cofair.models.neuron_layers import NeuronLayer
from cofair.scoring.candidates import Candidates
from tests.conftest import small_federation


class Normalised(nn.Module):
    """Channels that are normalised together: leaving one out changes its neighbours."""

    def __init__(self, zeros=False):
        super().__init__()
        self.make, self.norm = nn.Conv2d(3, 4, 3), nn.GroupNorm(1, 4)
        self.read = nn.Linear(4, 3)
        if zeros:
            nn.init.zeros_(self.read.weight)
            nn.init.zeros_(self.read.bias)

    def forward(self, x):
        return self.read(self.norm(self.make(x)).relu().mean((2, 3)))

    def neurons(self):
        return (NeuronLayer("channels", 4, made_by=("make.weight", "make.bias"), read_by=("read.weight",)),)


class Buffered(nn.Module):
    """Neurons that a buffer silences, which has a dimension of one before theirs."""

    def __init__(self):
        super().__init__()
        self.make, self.read = nn.Linear(3 * 32 * 32, 4), nn.Linear(4, 3)
        self.register_buffer("keep", torch.ones(1, 4))

    def forward(self, x):
        return self.read(self.make(x.flatten(1)).relu() * self.keep)

    def neurons(self):
        return (NeuronLayer("hidden", 4, mask="keep"),)


MODULES = {
    "a buffer of more dimensions": (Buffered, True),
    "cnn": (lambda: build("cnn-cifar", (3, 32, 32), 3), True),
    "resnet": (lambda: build("resnet18", (3, 32, 32), 3, widths=(4, 4, 6, 8)), True),
    "normalised": (Normalised, False),
    "normalised, a head of zeros": (lambda: Normalised(zeros=True), False),
}


@pytest.mark.parametrize("case", MODULES)
def test_together_is_one_by_one(case, make_problem):
    make, shares = MODULES[case]
    torch.manual_seed(0)
    problem = make_problem(make(), small_federation(shape=(3, 32, 32)))
    x = problem.federation.test.x
    base = problem.layout.row(problem.layout.prototype)
    assert Candidates(problem)._readers_suffice(base, x) is shares
    rows = base + 0.1 * torch.randn(3, len(base), dtype=base.dtype)
    masks = torch.rand(3, problem.neurons.count) < 0.5
    together, apart = Candidates(problem), Candidates(problem)
    together.together, apart.together = True, False
    in_last = torch.ones_like(masks)
    in_last[:, problem.neurons.slices[-1]] = masks[:, problem.neurons.slices[-1]]
    cases = [(base, masks), (rows, masks), (rows, None), (base, None), (base, masks[:1])]
    for parameters, own_masks in [*cases, (base, in_last), (base, masks[:1].expand(3, -1))]:
        for at_once in (1, len(x)):
            found = together.outputs(parameters, own_masks, x, at_once)
            torch.testing.assert_close(found, apart.outputs(parameters, own_masks, x, at_once), rtol=1e-9, atol=1e-9)


def test_what_no_mask_changes_is_held_once(make_problem):
    problem = make_problem(build("cnn-cifar", (3, 32, 32), 3), small_federation(shape=(3, 32, 32)))
    candidates = Candidates(problem)
    candidates.together = True
    base = problem.layout.row(problem.layout.prototype)
    masks = torch.ones(5, problem.neurons.count, dtype=torch.bool)
    named = candidates._given(base, masks, problem.federation.test.x).named
    held = sum(value.numel() for value in named.values())
    first = problem.layout.slices[0]
    assert named[first.name].shape == first.shape  # the first convolution reads no neuron: it is computed once
    assert held < 5 * len(base)


class Recurrent(nn.Module):
    """An LSTM, which torch.func can run with weights that all share and not with weights of their own."""

    def __init__(self):
        super().__init__()
        self.recurrent, self.make, self.read = nn.LSTM(4, 5, batch_first=True), nn.Linear(5, 6), nn.Linear(6, 3)

    def forward(self, x):
        return self.read(self.make(self.recurrent(x)[0][:, -1]).relu())

    def neurons(self):
        return (NeuronLayer("hidden", 6, made_by=("make.weight", "make.bias"), read_by=("read.weight",)),)


def test_what_can_be_batched_is_asked_for_each_kind_of_candidates(make_problem):
    problem = make_problem(Recurrent(), small_federation(shape=(3, 4)))
    x, base = problem.federation.test.x, problem.layout.row(problem.layout.prototype)
    together, apart = Candidates(problem), Candidates(problem)
    together.together, apart.together = True, False
    masks = torch.rand(3, 6) < 0.5
    for rows, own in [(base, masks), (torch.stack([base, 2 * base]), None), (base, masks)]:
        torch.testing.assert_close(together.outputs(rows, own, x, 4), apart.outputs(rows, own, x, 4))
