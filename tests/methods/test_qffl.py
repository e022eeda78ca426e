"""q-FFL on the line f(x) = w x with squared error: client i has the samples (1, a_i), a step of rate 1/4, so L = 4.

From w = 0 and targets 0, 4, 8: F = (0, 16, 64), trained models (0, 2, 4), Δ = 4 · (0 − w_k) = (0, −8, −16).
"""

import pytest
import torch
from torch import nn

import cofair
from cofair.engine.phases import PERSONALISE, TRAIN
from cofair.engine.protocol import Uploads
from cofair.methods.fedavg import FedAvg
from cofair.methods.qffl import QFFL
from tests.methods.test_fedavg import line, negative_error, run


def test_one_round_of_the_standard_version():
    # (16 · 8 + 64 · 16) / ((8² + 4 · 16) + (16² + 4 · 64)) = 1152 / 640; a client of loss 0 adds nothing to either sum
    assert run(QFFL(personalise_units=0), 1) == pytest.approx([1.8] * 3, abs=1e-9)


def test_other_powers_of_the_loss():
    # q = 2: Σ F² Δ = 256 · 8 + 4096 · 16 and Σ 2 F ‖Δ‖² + L F² = (2 · 16 · 64 + 4 · 256) + (2 · 64 · 256 + 4 · 4096)
    assert run(QFFL(personalise_units=0, q=2.0), 1) == pytest.approx([67584 / 52224] * 3, abs=1e-9)
    # q = 0: every loss counts 1 and no length counts, which is the mean
    assert run(QFFL(personalise_units=0, q=0.0), 3) == pytest.approx(run(FedAvg(personalise_units=0), 3), abs=1e-12)


def test_by_samples_the_third_client_counts_three_times():
    # (128 + 3 · 1024) / (128 + 3 · 512)
    assert run(QFFL(personalise_units=0, weights="size"), 1) == pytest.approx([3200 / 1664] * 3, abs=1e-9)


def test_the_second_round_starts_from_the_model_or_from_the_personal_models():
    # from 1.8: F = (3.24, 4.84, 38.44), Δ = (3.6, −4.4, −12.4)
    standard = 1.8 + (-3.24 * 3.6 + 4.84 * 4.4 + 38.44 * 12.4) / (2 * (3.6**2 + 4.4**2 + 12.4**2))
    assert run(QFFL(personalise_units=0), 2) == pytest.approx([standard] * 3, abs=1e-8)
    # personal models are half way from 1.8 to the targets: (0.9, 2.9, 4.9); there F = (0.81, 1.21, 9.61)
    assert run(QFFL(), 1) == pytest.approx([0.9, 2.9, 4.9], abs=1e-9)
    carried = 1.8 + (-0.81 * 1.8 + 1.21 * 2.2 + 9.61 * 6.2) / (2 * (1.8**2 + 2.2**2 + 6.2**2))
    assert run(QFFL(), 2) == pytest.approx([(carried + a) / 2 for a in (0, 4, 8)], abs=1e-8)
    # personal, but not carried over: the next round starts from 1.8 again
    assert run(QFFL(carry_over=False), 2) == pytest.approx([(standard + a) / 2 for a in (0, 4, 8)], abs=1e-8)


def learned(make_server, method, updates, losses, absent=()):
    server = make_server([0.1] * len(updates), module=nn.Linear(6, 3, bias=False), training={"lr": 0.5})
    state = method.start(server)
    rows = torch.zeros(len(updates), 18, dtype=torch.float64)
    rows[:, 0] = torch.tensor(updates)
    present = torch.ones(len(updates), dtype=torch.bool)
    present[list(absent)] = False
    uploads = Uploads(rows, present, server.sizes, {"loss_before": torch.tensor(losses)})
    new = method.learn(server, state, method.rewards(server, state, 1, TRAIN), uploads, 1, TRAIN)
    return float(new.parameters[0] - state.parameters[0])


def test_an_absent_client_does_not_count(make_server):
    three = learned(make_server, QFFL(), [1.0, 2.0, 0.0], [1.0, 2.0, torch.nan], absent=[2])
    assert three == learned(make_server, QFFL(), [1.0, 2.0], [1.0, 2.0])
    # L = 2: (1 · 2 + 2 · 4) / ((4 + 2) + (16 + 4)) = 10 / 26
    assert three == pytest.approx(10 / 26, abs=1e-6)


@pytest.mark.parametrize("losses", [[0.0, 0.0], [-3.0, -1.0], [1e30, 1e-30]])
@pytest.mark.parametrize("q", [0.0, 0.5, 1.0, 50.0])
def test_losses_of_zero_below_zero_or_of_any_size_give_a_finite_step(make_server, losses, q):
    assert abs(learned(make_server, QFFL(q=q), [1.0, 1.0], losses)) <= 1 + 1e-9


def test_what_is_asked_of_clients(make_server):
    server = make_server([0.1, 0.2])
    state = QFFL().start(server)
    assert QFFL().rewards(server, state, 1, TRAIN).work.statistics == ("loss_before",)
    assert QFFL().rewards(server, state, 1, PERSONALISE).work.statistics == ()


def test_a_worse_off_client_pulls_harder_than_in_fedavg():
    clients = [(torch.ones(1, 1), torch.tensor([a])) for a in (0.0, 0.0, 9.0)]
    federation = cofair.Federation(clients, test=(torch.ones(1, 1), torch.tensor([4.0])))
    reached = []
    for method in (FedAvg(personalise_units=0), QFFL(personalise_units=0, q=2.0)):
        result = cofair.run(
            line, federation, method, rounds=80, loss="squared_error", metric=negative_error,
            contributions=[1, 2, 3], steps=1, lr=0.25, clip=None,
            execution={"precision": "float64", "evaluate_every": 80},
        )  # fmt: skip
        reached.append(result.rewards[0].weight.item())
    assert reached[0] == pytest.approx(3, abs=1e-6)
    # the minimum of 2 w⁶ + (w − 9)⁶: w = 9 / (1 + 2^(1/5))
    assert reached[1] == pytest.approx(9 / (1 + 2**0.2), abs=0.05)
