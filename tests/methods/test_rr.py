"""Round robin on the line f(x) = w x: a turn moves w half of the way to the client's target, 0, 4 or 8."""

import pytest
import torch

import cofair
from cofair.methods.rr import RR
from tests.methods.test_fedavg import line, negative_error, run


@pytest.mark.parametrize(
    ("turns", "rounds", "expected"),
    [
        (1, 1, [0, 0, 0]),  # a: from 0 to 0; b and c still hold the initial model
        (1, 2, [0, 2, 0]),  # b: from 0 to 2
        (1, 3, [0, 2, 5]),  # c: from 2 to 5
        (1, 4, [2.5, 2, 5]),  # a again: from 5 to 2.5
        (3, 1, [0, 2, 5]),  # all in one round
        (2, 2, [2.5, 2, 5]),  # the cycle goes on where it stopped
    ],
)
def test_turns_worked_out_by_hand(turns, rounds, expected):
    assert run(RR(turns=turns), rounds) == pytest.approx(expected, abs=1e-12)


def federation(names, targets):
    clients = [(torch.ones(len(y), 1), torch.tensor(y)) for y in targets]
    return cofair.Federation(clients, test=(torch.ones(1, 1), torch.tensor([4.0])), names=names)


def rewards(names, targets, rounds):
    result = cofair.run(
        line, federation(names, targets), RR(), rounds=rounds, loss="squared_error", metric=negative_error,
        contributions=[1] * len(names), steps=1, lr=0.25, clip=None, execution={"precision": "float64"},
    )  # fmt: skip
    return [module.weight.item() for module in result.rewards], list(result.history[-1].download)


def test_the_cycle_follows_names_and_numbers_by_size():
    reached, download = rewards(["10", "2", "1"], [[8.0], [4.0], [0.0]], 2)
    assert reached == [0, 2, 0]
    assert download == [0, 0.5, 0.5]


def test_an_absent_client_loses_its_turn():
    reached, _ = rewards(["a", "b", "c"], [[2.0], [], [8.0]], 3)
    assert reached == [1, 0, 4.5]


def test_every_turn_of_a_round_sees_batches_of_its_own(make_server):
    server = make_server([0.1, 0.2])
    method = RR(turns=3)
    works = [method.rewards(server, method.start(server), 1, phase).work for phase in method.phases(server, 1)]
    assert len({work.phase for work in works}) == 3
