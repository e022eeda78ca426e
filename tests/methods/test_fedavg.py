"""FedAvg on a problem one can do by hand: f(x) = w x, client i has the samples (1, a_i), squared error.

A step of rate 1/4 moves w half of the way to a_i.
"""

import pytest
import torch
from torch import nn

import cofair
from cofair.engine.phases import PERSONALISE, TRAIN
from cofair.methods.fedavg import FedAvg

TARGETS = {"a": [0.0], "b": [4.0], "c": [8.0, 8.0, 8.0]}


def negative_error(outputs, targets):
    return -float((outputs.flatten() - targets).square().mean())


def line():
    module = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(module.weight)
    return module


def run(method, rounds):
    clients = [(torch.ones(len(y), 1), torch.tensor(y)) for y in TARGETS.values()]
    federation = cofair.Federation(clients, test=(torch.ones(1, 1), torch.tensor([4.0])), names=list(TARGETS))
    result = cofair.run(
        line, federation, method, rounds=rounds, loss="squared_error", metric=negative_error,
        contributions=[1, 2, 3], steps=1, lr=0.25, clip=None, execution={"precision": "float64"},
    )  # fmt: skip
    return [module.weight.item() for module in result.rewards]


@pytest.mark.parametrize(
    ("method", "rounds", "expected"),
    [
        # (0 + 2 + 4) / 3 = 2; then each half way from 2 to its own target
        (FedAvg(personalise_units=0), 1, [2, 2, 2]),
        (FedAvg(personalise_units=1), 1, [1, 3, 5]),
        (FedAvg(personalise_units=3), 1, [0.25, 3.75, 7.25]),
        # weighted by samples (1, 1, 3): (0 + 2 + 3 · 4) / 5 = 2.8
        (FedAvg(personalise_units=0, weights="size"), 1, [2.8, 2.8, 2.8]),
        # the second round starts from the average 2: (1 + 3 + 5) / 3 = 3
        (FedAvg(personalise_units=0), 2, [3, 3, 3]),
        (FedAvg(personalise_units=1), 2, [1.5, 3.5, 5.5]),
        # or from the personal models 1, 3, 5: (0.5 + 3.5 + 6.5) / 3 = 3.5
        (FedAvg(personalise_units=1, carry_over=True), 2, [1.75, 3.75, 5.75]),
    ],
)
def test_rewards_worked_out_by_hand(method, rounds, expected):
    assert run(method, rounds) == pytest.approx(expected, abs=1e-12)


def test_personal_models_are_made_only_when_they_are_looked_at_or_carried_over():
    class Server:
        def __init__(self, tested):
            self.tested = tested

        def evaluates(self, t):
            return t in self.tested

    server = Server({2})
    assert FedAvg().phases(server, 1) == (TRAIN,)
    assert FedAvg().phases(server, 2) == (TRAIN, PERSONALISE)
    assert FedAvg(personalise_units=0).phases(server, 2) == (TRAIN,)
    assert FedAvg(carry_over=True).phases(server, 1) == (TRAIN, PERSONALISE)


def test_what_is_downloaded_is_one_model_a_round_in_every_variant():
    random = torch.Generator().manual_seed(0)
    share = (torch.randn(12, 4, generator=random), torch.arange(12) % 2)
    federation = cofair.Federation([share, share], test=share)
    for method in (FedAvg(), FedAvg(personalise_units=0), FedAvg(personalise_units=3, carry_over=True)):
        result = cofair.run(lambda: nn.Linear(4, 2), federation, method, rounds=4, contributions=[0.1, 0.2])
        last = result.history[-1].download
        # with carry-over the very first round hands out the initial model as well
        assert last == pytest.approx([1.25, 1.25] if method.carry_over else [1.0, 1.0])
