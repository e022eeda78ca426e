import itertools
import math

import pytest
import torch
from torch import nn

from cofair.contributions import coalition_models, index, shapley
from cofair.contributions.leave_one_out import leave_one_out
from cofair.data.federation import Federation
from cofair.errors import RunError
from cofair.scoring.scorer import Scorer

SIZES = torch.tensor([7, 40, 19, 33])
ALL = torch.ones(4, dtype=torch.bool)


class LinearScorer:
    """Scores a model (D,) by its product with a direction, so that games can be worked out by hand."""

    def __init__(self, direction):
        self.direction, self.scored = torch.tensor(direction), 0

    def coalitions(self, base, updates, coefficients):
        self.scored += len(coefficients)
        rows = base + coefficients.to(updates.dtype) @ updates
        return type("Scores", (), {"metric": rows @ self.direction.to(rows)})


@pytest.fixture
def problem(make_problem):
    return make_problem()


@pytest.fixture
def scorer(problem):
    return Scorer(problem, problem.federation.validation)


@pytest.fixture
def updates(problem):
    random = torch.Generator().manual_seed(1)
    return 0.3 * torch.randn(4, problem.layout.size, generator=random, dtype=torch.float64)


def base_of(problem):
    return problem.layout.row(problem.layout.prototype)


def accuracy(problem, row):
    samples = problem.federation.validation
    with torch.no_grad():
        outputs = problem.layout.module(row).eval()(samples.x)
    return float((outputs.argmax(1) == samples.y).double().mean())


def average(problem, updates, members):
    """w + Σ (n_i / n_S) Δ_i, one member after another."""
    held = sum(int(SIZES[i]) for i in members)
    return base_of(problem) + sum(int(SIZES[i]) / held * updates[i] for i in members)


def test_a_round_s_values_are_shapley_values_of_the_models_that_orders_would_make(problem, scorer, updates):
    def value(members):
        return accuracy(problem, average(problem, updates, members) if members else base_of(problem))

    total = [0.0] * 4
    for order in itertools.permutations(range(4)):
        for k, client in enumerate(order):
            total[client] += value(order[: k + 1]) - value(order[:k])
    expected = [one / math.factorial(4) for one in total]
    found = index.coalition_shapley(scorer, base_of(problem), updates, SIZES, ALL, torch.Generator())
    assert found.dtype == torch.float64
    assert found.tolist() == pytest.approx(expected, abs=1e-12)
    assert float(found.sum()) == pytest.approx(value((0, 1, 2, 3)) - value(()))
    assert len({round(one, 9) for one in expected}) > 1  # the clients differ, or this would show nothing


def test_leave_one_out_is_what_the_average_of_all_loses(problem, scorer, updates):
    found = leave_one_out(scorer, base_of(problem), updates, SIZES, ALL)
    whole = accuracy(problem, average(problem, updates, (0, 1, 2, 3)))
    for i in range(4):
        without = tuple(j for j in range(4) if j != i)
        assert float(found[i]) == pytest.approx(whole - accuracy(problem, average(problem, updates, without)))


def test_two_clients_by_hand():
    # one parameter, sizes 1 and 3: M_0 = 8, M_1 = 4, both: (8 + 3 · 4) / 4 = 5; nobody: 0
    scorer, updates, sizes = LinearScorer([1.0]), torch.tensor([[8.0], [4.0]]), torch.tensor([1, 3])
    both = torch.ones(2, dtype=torch.bool)
    found = index.coalition_shapley(scorer, torch.zeros(1), updates, sizes, both, torch.Generator())
    assert found.tolist() == [(8 + 1) / 2, (4 - 3) / 2]
    assert leave_one_out(scorer, torch.zeros(1), updates, sizes, both).tolist() == [1, -3]


@pytest.mark.parametrize("measure", ["index", "leave-one-out"])
def test_who_is_absent_or_empty_gets_nothing_and_changes_nothing(measure, problem, scorer, updates):
    def found(updates, sizes, present):
        if measure == "leave-one-out":
            return leave_one_out(scorer, base_of(problem), updates, sizes, present)
        return index.coalition_shapley(scorer, base_of(problem), updates, sizes, present, torch.Generator())

    three = [0, 1, 3]
    others = found(updates[three], SIZES[three], ALL[three]).tolist()
    absent = updates.clone()
    absent[2] = torch.nan
    for given in (
        (absent, SIZES, torch.tensor([True, True, False, True])),
        (absent, torch.tensor([7, 40, 0, 33]), ALL),
    ):
        values = found(*given)
        assert values[2] == 0
        assert values[three].tolist() == pytest.approx(others)
    alone = found(updates, SIZES, torch.tensor([False, False, True, False]))
    gain = accuracy(problem, base_of(problem) + updates[2]) - accuracy(problem, base_of(problem))
    assert alone.tolist() == pytest.approx([0, 0, gain, 0])
    assert found(updates, SIZES, ~ALL).tolist() == [0, 0, 0, 0]
    with pytest.raises(RunError, match="The update of client 2 is not finite"):
        found(absent, SIZES, ALL)


def test_ten_clients_are_sampled_and_no_coalition_is_scored_twice():
    random = torch.Generator().manual_seed(3)
    updates, sizes = torch.randn(10, 6, generator=random), torch.arange(1, 11)
    scorer = LinearScorer([1.0, -2, 0.5, 3, 1, 1])
    everyone = torch.ones(10, dtype=torch.bool)
    draw = torch.Generator().manual_seed(0)
    few = index.coalition_shapley(scorer, torch.zeros(6), updates, sizes, everyone, draw, 20)
    assert scorer.scored <= 20 * 8 + 2 + 10 + 10
    chosen = coalition_models.players(updates, sizes, everyone)
    game = coalition_models.utility(scorer, torch.zeros(6), updates, sizes, chosen)
    exact = shapley.exact(game, 10)
    assert float(few.sum()) == pytest.approx(float(exact.sum()), abs=1e-5)
    many = index.coalition_shapley(scorer, torch.zeros(6), updates, sizes, everyone, draw, 2000)
    assert float((many - exact).norm()) < 0.3 * float((few - exact).norm())
    nine = LinearScorer([1.0, -2, 0.5, 3, 1, 1])
    index.coalition_shapley(nine, torch.zeros(6), updates[:9], sizes[:9], everyone[:9], draw)
    assert nine.scored == 2**9


def test_the_index_adds_shares_that_fade_with_the_rounds():
    found = torch.zeros(2, dtype=torch.float64)
    found = index.accumulated(found, torch.tensor([3.0, 1.0]), 1, 0.5)
    assert found.tolist() == [0.375, 0.125]
    found = index.accumulated(found, torch.tensor([-0.1, 0.3]), 2, 0.5)
    assert found.tolist() == pytest.approx([0.375 - 0.125, 0.125 + 0.375])
    for nothing in ([0.0, 0.0], [0.1, -0.1], [0.2, -0.7]):  # together they gain nothing, so no share can be told
        assert index.accumulated(found, torch.tensor(nothing), 3, 0.5).tolist() == found.tolist()


def test_the_average_of_a_coalition_weighs_by_samples():
    members = torch.tensor([[True, True, False], [False, True, True], [False, False, False]])
    found = coalition_models.coefficients(members, torch.tensor([1, 3, 6]))
    assert found.tolist() == [[0.25, 0.75, 0], [0, 3 / 9, 6 / 9], [0, 0, 0]]


def test_works_for_a_model_without_a_stack(make_problem):
    random = torch.Generator().manual_seed(0)

    def samples(n):
        return torch.randn(n, 1, 6, 6, generator=random), torch.randint(0, 3, (n,), generator=random)

    federation = Federation([samples(9), samples(5)], test=samples(20), validation=samples(20), classes=3)
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32, 3))
    problem = make_problem(module, federation)
    updates = torch.randn(2, problem.layout.size, generator=random, dtype=torch.float64)
    scorer, both = Scorer(problem, problem.federation.validation), torch.ones(2, dtype=torch.bool)
    sizes = problem.federation.sizes
    found = index.coalition_shapley(scorer, base_of(problem), updates, sizes, both, torch.Generator())
    gain = accuracy(problem, base_of(problem) + (9 * updates[0] + 5 * updates[1]) / 14) - accuracy(
        problem, base_of(problem)
    )
    assert float(found.sum()) == pytest.approx(gain)
