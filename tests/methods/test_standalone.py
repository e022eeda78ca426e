import pytest
import torch
from torch import nn

import cofair
from cofair.models import build


@pytest.fixture(scope="module")
def federation():
    return cofair.federate("digits", "pow", clients=4, seed=1)


def test_training_alone_gives_exactly_what_is_counted_as_contribution(federation):
    result = cofair.run(lambda: build("mlp", (1, 8, 8), 10, hidden=(30,)), federation, "standalone", rounds=50)
    assert result.accuracies == pytest.approx(result.contributions)
    assert result.fairness == pytest.approx(100)
    assert result.download == 0
    assert [record.round for record in result.history] == [1]


def test_a_model_trained_alone_has_seen_only_its_own_data():
    random = torch.Generator().manual_seed(0)
    own = (torch.randn(20, 5, generator=random), torch.arange(20) % 2)
    others = [(torch.randn(30, 5, generator=random), torch.arange(30) % 2) for _ in range(2)]
    weights = []
    for other in others:
        federation = cofair.Federation([own, other], test=own, names=["me", "other"])
        module = nn.Linear(5, 2)
        nn.init.constant_(module.weight, 0.1)
        nn.init.zeros_(module.bias)
        result = cofair.run(module, federation, "standalone", contribution={"epochs": 3})
        weights.append([result.rewards[i].weight for i in range(2)])
    assert torch.allclose(weights[0][0], weights[1][0], atol=1e-7)
    assert not torch.allclose(weights[0][1], weights[1][1], atol=1e-3)


def test_an_empty_client_brings_what_the_initial_model_can_do():
    random = torch.Generator().manual_seed(0)
    full = (torch.randn(40, 5, generator=random), torch.arange(40) % 2)
    empty = (torch.zeros(0, 5), torch.zeros(0, dtype=torch.int64))
    module = nn.Linear(5, 2)
    nn.init.zeros_(module.weight)
    nn.init.constant_(module.bias, 0.0)
    result = cofair.run(module, cofair.Federation([full, empty], test=full), "fedavg", rounds=3)
    assert result.contributions[1] == 0.5  # all outputs equal: the first class, half of the samples
    assert result.contributions[0] > 0.5
