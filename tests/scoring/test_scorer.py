import copy
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from cofair.data.federation import Samples
from cofair.engine.linear_stack import LinearStack
from cofair.errors import UsageError
from cofair.models import build
from cofair.models.neuron_layers import NeuronLayer
from cofair.models.parameters import Layout
from cofair.neurons.map import NeuronMap
from cofair.scoring.importance import by_removal
from cofair.scoring.nested import nesting, prefix_masks
from cofair.scoring.scorer import Scorer
from tests.conftest import small_federation

MODULES = {
    "mlp": lambda: build("mlp", (1, 8, 8), 3, hidden=(12, 7)),
    "cnn": lambda: build("cnn-cifar", (3, 32, 32), 3),
}


def plain_scores(problem, rows, masks=None):
    """One forward a candidate, with a module of its own."""
    losses, accuracies = [], []
    test = problem.federation.test
    for i, row in enumerate(rows):
        if masks is not None:
            row = row * problem.neurons.parameter_mask(masks[i : i + 1])[0]
        with torch.no_grad():
            outputs = problem.layout.module(row).eval()(test.x)
        losses.append(float(F.cross_entropy(outputs, test.y)))
        accuracies.append(float((outputs.argmax(1) == test.y).double().mean()))
    return losses, accuracies


@pytest.fixture(params=MODULES.values(), ids=MODULES)
def problem(request, make_problem):
    torch.manual_seed(0)
    shape = (1, 8, 8) if request.param is MODULES["mlp"] else (3, 32, 32)
    return make_problem(request.param(), small_federation(shape=shape))


def candidates(problem, count):
    random = torch.Generator().manual_seed(1)
    base = problem.layout.row(problem.layout.prototype)
    rows = base + 0.1 * torch.randn(count, len(base), generator=random, dtype=torch.float64)
    return rows, torch.rand(count, problem.neurons.count, generator=random) < 0.5


@pytest.mark.parametrize("budget", [1, 10_000, 2**28])
def test_scores_equal_one_forward_a_candidate_whatever_the_chunks(problem, monkeypatch, budget):
    monkeypatch.setattr("cofair.scoring.scorer._CPU_BUDGET", budget)
    rows, masks = candidates(problem, 5)
    scorer = Scorer(problem, problem.federation.test)
    base = rows[0]
    for scores, expected in [
        (scorer.score(rows), plain_scores(problem, rows)),
        (scorer.score(base), plain_scores(problem, [base])),
        (scorer.score(base, masks), plain_scores(problem, [base] * 5, masks)),
        (scorer.score(rows, masks), plain_scores(problem, rows, masks)),
    ]:
        assert scores.loss.tolist() == pytest.approx(expected[0], abs=1e-10)
        assert scores.metric.tolist() == pytest.approx(expected[1])


STACKS = {
    "one hidden layer": lambda: build("mlp", (6,), 3, hidden=(9,)),
    "two": lambda: build("mlp", (6,), 3, hidden=(9, 5)),
    "four": lambda: build("mlp", (6,), 3, hidden=(9, 12, 12, 8)),
    "tanh": lambda: WithNeurons(nn.Tanh),
    "sigmoid": lambda: WithNeurons(nn.Sigmoid),
    "only the second layer": lambda: WithNeurons(nn.ReLU, declared=(1,)),
    "only the first layer": lambda: WithNeurons(nn.ReLU, declared=(0,)),
}


class WithNeurons(nn.Sequential):
    """Layers without and with biases, of which some declare neurons."""

    def __init__(self, activation, declared=(0, 1)):
        super().__init__(
            nn.Linear(6, 9), activation(), nn.Linear(9, 5, bias=False), activation(), nn.Linear(5, 4), nn.Linear(4, 3)
        )
        self.declared = declared

    def neurons(self):
        layers = [
            NeuronLayer("first", 9, made_by=("0.weight", "0.bias"), read_by=("2.weight",)),
            NeuronLayer("second", 5, made_by=("2.weight",), read_by=("4.weight",)),
        ]
        return [layers[i] for i in self.declared]


@pytest.mark.parametrize("budget", [1, 3_000, 2**28])
@pytest.mark.parametrize("stack", STACKS.values(), ids=STACKS)
def test_prefixes_of_an_order_equal_one_forward_each(stack, budget, make_problem, monkeypatch):
    torch.manual_seed(3)
    problem = make_problem(stack())
    monkeypatch.setattr("cofair.scoring.scorer._CPU_BUDGET", budget)
    K = problem.neurons.count
    order, counts = torch.randperm(K), torch.tensor([3, 1, K, 0, 4, 4, K - 1])
    masks = prefix_masks(order, counts)
    assert nesting(masks) is not None
    base = problem.layout.row(problem.layout.prototype)
    scorer = Scorer(problem, problem.federation.test)
    losses, accuracies = plain_scores(problem, [base] * len(counts), masks)
    for scores in scorer.prefixes(base, order, counts), scorer.score(base, masks.double()):
        assert scores.loss.tolist() == pytest.approx(losses, abs=1e-12)
        assert scores.metric.tolist() == pytest.approx(accuracies)


def test_a_base_that_changed_in_place_is_scored_anew(make_problem):
    torch.manual_seed(3)
    problem = make_problem(build("mlp", (6,), 3, hidden=(9, 5)))
    scorer, base = Scorer(problem, problem.federation.test), problem.layout.row(problem.layout.prototype)
    order, counts = torch.randperm(14), torch.tensor([3, 8, 14])
    for _ in range(2):  # what the first neurons give is kept from the first look to the second
        expected = plain_scores(problem, [base] * 3, prefix_masks(order, counts))[0]
        assert scorer.prefixes(base, order, counts).loss.tolist() == pytest.approx(expected, abs=1e-12)
        order = order.flip(0)
    base.mul_(0.5)
    expected = plain_scores(problem, [base] * 3, prefix_masks(order, counts))[0]
    assert scorer.prefixes(base, order, counts).loss.tolist() == pytest.approx(expected, abs=1e-12)
    assert scorer.prefixes(base, order, counts[:1]).loss.tolist() == pytest.approx(expected[:1], abs=1e-12)


@pytest.mark.parametrize("most", [1, 5, 6, 1000])
def test_a_thinned_scorer_has_as_many_samples_as_asked_for_or_all(problem, most):
    whole = Scorer(problem, problem.federation.test)
    thinned = whole.thinned(most)
    assert whole.thinned(most) is thinned
    assert len(thinned.samples) == min(most, len(whole.samples))
    flat = whole.samples.x.flatten(1)
    for x, y in zip(thinned.samples.x.flatten(1), thinned.samples.y, strict=True):
        place = int((flat == x).all(1).nonzero()[0])
        assert whole.samples.y[place] == y


def test_classes_that_stand_in_a_pattern_are_mixed(make_problem):
    problem = make_problem(build("mlp", (6,), 3, hidden=(4,)))
    whole = Scorer(problem, Samples(torch.randn(60, 6, dtype=torch.float64), torch.arange(60) % 2))
    for part in (whole.thinned(30), *whole.halves()):
        assert len(part.samples) == 30
        assert 5 < int(part.samples.y.sum()) < 25


def test_scores_carry_no_gradients_and_an_order_that_is_written_into_is_read_again(make_problem):
    problem = make_problem(build("mlp", (6,), 3, hidden=(8, 6)))
    scorer = Scorer(problem, problem.federation.test)
    base = problem.layout.row(problem.layout.prototype).requires_grad_()
    order, counts = torch.randperm(14), torch.tensor([3, 8, 14])
    for _ in range(2):
        found = scorer.prefixes(base, order, counts)
        assert not found.loss.requires_grad
        expected = plain_scores(problem, [base.detach()] * 3, prefix_masks(order, counts))[0]
        assert found.loss.tolist() == pytest.approx(expected, abs=1e-12)
        order.copy_(order.flip(0).clone())


def test_halves_divide_the_samples(problem):
    whole = Scorer(problem, problem.federation.test)
    rows, _ = candidates(problem, 2)
    first, second = whole.halves()
    assert whole.halves()[0] is first
    n, m = len(first.samples), len(second.samples)
    assert (n + m, n - m in (0, 1)) == (len(whole.samples), True)
    joined = (n * first.score(rows).metric + m * second.score(rows).metric) / (n + m)
    assert joined.tolist() == pytest.approx(whole.score(rows).metric.tolist())


def test_prefixes_are_the_masked_forward_in_single_precision_too(make_problem):
    torch.manual_seed(3)
    problem = make_problem(build("mlp", (6,), 3, hidden=(150, 120)), dtype=torch.float32)
    order, counts = torch.randperm(270), torch.arange(3, 271, 3)
    scorer = Scorer(problem, problem.federation.test)
    base = problem.layout.row(problem.layout.prototype)
    expected = plain_scores(problem, [base] * len(counts), prefix_masks(order, counts))[0]
    assert scorer.prefixes(base, order, counts).loss.tolist() == pytest.approx(expected, abs=1e-6)


def test_coalitions_are_the_base_plus_weighted_updates(problem):
    rows, _ = candidates(problem, 3)
    base, updates = rows[0], rows[1:] - rows[0]
    coefficients = torch.tensor([[1.0, 0.0], [0.5, 0.5], [0.0, 0.0]])
    scorer = Scorer(problem, problem.federation.test)
    expected = plain_scores(problem, [rows[1], (rows[1] + rows[2]) / 2, base])
    assert scorer.coalitions(base, updates, coefficients).loss.tolist() == pytest.approx(expected[0], abs=1e-10)
    many = torch.cat([coefficients, torch.rand(9, 2, generator=torch.Generator().manual_seed(0))])
    expected = plain_scores(problem, [base + own.to(updates) @ updates for own in many])
    found = scorer.coalitions(base, updates, many, per_sample=True)
    assert found.loss.tolist() == pytest.approx(expected[0], abs=1e-10)
    assert found.losses.mean(1).tolist() == pytest.approx(expected[0], abs=1e-10)


def test_losses_of_each_sample_have_the_mean_that_is_told(problem):
    rows, _ = candidates(problem, 4)
    scores = Scorer(problem, problem.federation.test).score(rows, per_sample=True)
    assert scores.losses.shape == (4, len(problem.federation.test))
    assert torch.allclose(scores.losses.mean(1), scores.loss)


def test_a_model_without_neurons_has_no_submodels(make_problem):
    problem = make_problem(nn.Linear(6, 3))
    scorer = Scorer(problem, problem.federation.test)
    with pytest.raises(UsageError, match="has no neurons"):
        scorer.score(torch.zeros(problem.layout.size).double(), torch.ones(2, 4))


def test_scoring_does_not_drop_out(make_problem):
    torch.manual_seed(0)
    problem = make_problem(nn.Sequential(nn.Linear(6, 50), nn.Dropout(0.5), nn.Linear(50, 3)))
    scorer = Scorer(problem, problem.federation.test)
    row = problem.layout.row(problem.layout.prototype)
    assert scorer.score(row).loss.tolist() == pytest.approx(plain_scores(problem, [row])[0], abs=1e-12)


@pytest.mark.parametrize("shape", [(9,), (2, 8), (2, 9, 1)])
def test_masks_of_another_number_of_neurons_are_a_sentence(shape, make_problem):
    problem = make_problem(build("mlp", (6,), 3, hidden=(9,)))
    scorer = Scorer(problem, problem.federation.test)
    with pytest.raises(UsageError, match=r"9 neurons must have shape \(C, 9\)"):
        scorer.score(problem.layout.row(problem.layout.prototype), torch.ones(shape))


@pytest.mark.gpu
def test_prefixes_and_removal_are_the_same_on_a_gpu(make_problem):
    torch.manual_seed(3)
    module = build("mlp", (6,), 3, hidden=(9, 8))
    order, counts = torch.randperm(17), torch.arange(1, 18, 3)
    results = []
    for device in "cpu", "cuda":
        problem = make_problem(module, device=device)
        scorer = Scorer(problem, problem.federation.test)
        base = problem.layout.row(problem.layout.prototype)
        results.append((scorer.prefixes(base, order, counts).loss.cpu(), by_removal(scorer, base).cpu()))
    for here, there in zip(*results, strict=True):
        torch.testing.assert_close(here, there)


class Branching(nn.Module):
    """A module that looks at its values, which torch.func cannot batch."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x):
        found = self.layer(x)
        return found if bool(found.sum() > 0) else -found


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_module_that_cannot_be_batched_is_scored_one_by_one(make_problem, device):
    problem = make_problem(Branching(), device=device)
    scorer = Scorer(problem, problem.federation.test)
    scorer.candidates.together = True
    row = problem.layout.row(problem.layout.prototype)
    rows = torch.stack([row, 2 * row])
    assert scorer.score(rows).loss.tolist() == pytest.approx(plain_scores(problem, rows)[0], abs=1e-10)
    assert set(scorer.candidates._ways.values()) == {None}


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("sizes", [(20, 13, 10, 7), (784, 200, 200, 62), (300, 30, 10)])
@pytest.mark.parametrize("bias", [True, False])
def test_layers_of_any_width_are_computed_as_in_float64(device, sizes, bias):
    torch.manual_seed(0)
    parts = [part for a, b in pairwise(sizes) for part in (nn.Linear(a, b, bias=bias), nn.ReLU())]
    module, x = nn.Sequential(*parts[:-1]), torch.randn(70, sizes[0])
    rows = torch.stack([Layout(module).row(module)] * 5)
    rows += 0.02 * torch.randn(rows.shape)
    masks = torch.rand(5, sum(sizes[1:-1])) < 0.6
    here, exact = _stack(module), _stack(copy.deepcopy(module).double())
    for given, kept in [(rows[0], None), (rows[0], masks), (rows, None), (rows, masks)]:
        there = None if kept is None else kept.to(device)
        found = here.outputs(given.to(device), x.to(device), there).cpu().double()
        expected = exact.outputs(given.double(), x.double(), kept)
        assert found.shape == expected.shape
        assert float((found - expected).norm() / expected.norm()) < 1e-5


def _stack(module):
    layout = Layout(module)
    return LinearStack.of(layout, NeuronMap.of(module, layout))


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_number_that_is_not_finite_reaches_the_loss(make_problem, device):
    problem = make_problem(MODULES["mlp"](), small_federation(shape=(1, 8, 8)))
    row = problem.layout.row(problem.layout.prototype).clone()
    row[0] = torch.nan  # a weight of the first layer: what a model that diverged is told by
    assert not torch.isfinite(_stack(problem.layout.prototype).outputs(row, problem.federation.test.x, None)).all()
    module = copy.deepcopy(problem.layout.prototype).float()
    found = _stack(module).outputs(row.float().to(device), problem.federation.test.x.float().to(device), None)
    assert not torch.isfinite(found).all()
