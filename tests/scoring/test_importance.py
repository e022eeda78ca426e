import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from cofair.data.federation import Federation
from cofair.errors import RunError, UsageError
from cofair.models import build
from cofair.models.stack import Stack
from cofair.scoring import scorer
from cofair.scoring.importance import TRANSFORMS, by_removal, taylor, transform
from cofair.scoring.scorer import Scorer
from tests.conftest import small_federation
from tests.scoring.test_scorer import STACKS


def without_each(problem, base):
    """Really remove each neuron: a module of its own and a plain forward."""
    validation = problem.federation.validation

    def loss(mask):
        row = base * problem.neurons.parameter_mask(mask)[0]
        module = problem.layout.module(row).eval()
        for name, value in problem.neurons.activation_masks(mask).items():
            module.get_buffer(name).copy_(value[0])
        with torch.no_grad():
            return float(problem.loss(module(validation.x), validation.y).mean())

    whole = loss(torch.ones(1, problem.neurons.count))
    return [loss(mask[None]) - whole for mask in 1 - torch.eye(problem.neurons.count)]


def small_cnn():
    return Stack(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 3, 2), nn.Tanh(),
        nn.Flatten(), nn.Linear(12, 5), nn.ReLU(), nn.Linear(5, 3),
    )  # fmt: skip


OTHERS = {
    "cnn": ((1, 8, 8), small_cnn),
    "resnet": ((1, 8, 8), lambda: build("resnet18", (1, 8, 8), 3, widths=(2, 2, 4, 4))),
}


@pytest.mark.parametrize("budget", [1, 2**28])
@pytest.mark.parametrize("stack", STACKS.values(), ids=STACKS)
def test_importance_of_a_stack_is_the_loss_of_really_removing_each_unit(stack, budget, make_problem, monkeypatch):
    torch.manual_seed(2)
    problem = make_problem(stack())
    monkeypatch.setattr(scorer, "_CPU_BUDGET", budget)
    base = problem.layout.row(problem.layout.prototype)
    got = by_removal(Scorer(problem, problem.federation.validation), base)
    assert got.tolist() == pytest.approx(without_each(problem, base), abs=1e-12)
    assert got.dtype == torch.float64
    assert got.abs().max() > 1e-4


@pytest.mark.parametrize(("shape", "module"), OTHERS.values(), ids=OTHERS)
def test_importance_of_channels_is_the_loss_of_really_removing_each(shape, module, make_problem):
    torch.manual_seed(2)
    problem = make_problem(module(), small_federation(shape=shape))
    base = problem.layout.row(problem.layout.prototype)
    got = by_removal(Scorer(problem, problem.federation.validation), base)
    assert got.tolist() == pytest.approx(without_each(problem, base), abs=1e-12)


def test_importance_in_single_precision_is_within_a_thousandth_of_the_largest(make_problem):
    torch.manual_seed(2)
    module = build("mlp", (6,), 3, hidden=(40, 30))
    exact = make_problem(module)
    base = exact.layout.row(exact.layout.prototype)
    expected = torch.tensor(without_each(exact, base))
    single = make_problem(module, dtype=torch.float32)
    got = by_removal(Scorer(single, single.federation.validation), base.float())
    assert (got - expected).abs().max() < 1e-3 * expected.abs().max()


def test_importance_by_hand(make_problem):
    """One unit fires: without it both logits are the biases 0, so the loss is ln 2."""
    module = build("mlp", (1,), 2, hidden=(2,))
    with torch.no_grad():
        module[1].weight.copy_(torch.tensor([[1.0], [-1.0]]))
        module[3].weight.copy_(torch.tensor([[1.0, 5.0], [0.0, 0.0]]))
        module[1].bias.zero_()
        module[3].bias.zero_()
    one, other = (torch.tensor([[2.0]]), torch.tensor([0])), (torch.tensor([[2.0]]), torch.tensor([1]))
    problem = make_problem(module, Federation([other], validation=one, test=other, classes=2))
    base = problem.layout.row(problem.layout.prototype)
    scorer = Scorer(problem, problem.federation.validation)
    with_it = math.log(1 + math.exp(-2))
    assert by_removal(scorer, base).tolist() == pytest.approx([math.log(2) - with_it, 0])
    # the first logit loses 2, and the loss falls by 1 − p₀ for each unit of it
    assert taylor(scorer, base).tolist() == pytest.approx([2 * (1 - math.exp(-with_it)), 0])


EVERY = [((6,), stack) for stack in STACKS.values()] + list(OTHERS.values())


@pytest.mark.parametrize(("shape", "module"), EVERY, ids=[*STACKS, *OTHERS])
def test_taylor_is_the_slope_of_silencing_a_neuron(shape, module, make_problem, monkeypatch):
    """Scale what a neuron sends by 1 − ε: the loss grows by ε times the estimate."""
    torch.manual_seed(2)
    monkeypatch.setattr(scorer, "_CPU_BUDGET", 20_000)  # several chunks of samples
    problem = make_problem(module(), small_federation(shape=shape))
    neurons, validation = problem.neurons, problem.federation.validation
    base = problem.layout.row(problem.layout.prototype)
    estimate = taylor(Scorer(problem, validation), base)
    small = 1e-5

    def loss(k, scale):
        layer, where = next((a, b) for a, b in zip(neurons.layers, neurons.slices, strict=True) if k < b.stop)
        unit = k - where.start
        module = problem.layout.module(base).eval()
        with torch.no_grad():
            if layer.mask is not None:
                module.get_buffer(layer.mask)[unit] *= scale
            for name in layer.read_by:
                weight = module.get_parameter(name)
                run = weight.shape[1] // layer.count
                weight[:, unit * run : (unit + 1) * run] *= scale
            return float(problem.loss(module(validation.x), validation.y).mean())

    some = torch.linspace(0, neurons.count - 1, 12).long().unique().tolist()
    slopes = [(loss(k, 1 - small) - loss(k, 1 + small)) / (2 * small) for k in some]
    assert estimate[some].tolist() == pytest.approx(slopes, abs=1e-8)
    assert estimate.dtype == torch.float64
    assert estimate.abs().max() > 1e-4


def test_taylor_is_the_removal_of_neurons_that_hardly_speak(make_problem):
    torch.manual_seed(2)
    problem = make_problem(build("mlp", (6,), 3, hidden=(9,)))
    base = problem.layout.row(problem.layout.prototype)
    problem.layout.views(base)["3.weight"].mul_(1e-4)
    scorer = Scorer(problem, problem.federation.validation)
    exact, estimate = by_removal(scorer, base), taylor(scorer, base)
    assert (exact - estimate).abs().max() < 1e-3 * exact.abs().max()
    assert exact.min() < 0 < exact.max()  # or signs would not be tested


def test_units_that_never_fire_do_not_matter(make_problem):
    torch.manual_seed(2)
    problem = make_problem(build("mlp", (6,), 3, hidden=(40, 30)))
    base = problem.layout.row(problem.layout.prototype)
    views = problem.layout.views(base)
    views["1.bias"][:33] = -1e3
    views["3.bias"][:] = -1e3
    scorer = Scorer(problem, problem.federation.validation)
    assert by_removal(scorer, base).tolist() == [0] * 70
    views["3.bias"][:] = 1
    got = by_removal(scorer, base)
    assert (got[:33] == 0).all()
    assert (got[33:] != 0).any()
    assert got.tolist() == pytest.approx(without_each(problem, base), abs=1e-12)


def test_importance_is_of_the_problems_own_loss(make_problem):
    torch.manual_seed(2)

    def doubled(outputs, y):
        return 2 * F.cross_entropy(outputs, y, reduction="none")

    module = build("mlp", (6,), 3, hidden=(4, 3))
    once, twice = make_problem(module), make_problem(module, loss=doubled)
    base = once.layout.row(module)
    for measure in by_removal, taylor:
        plain = measure(Scorer(once, once.federation.validation), base)
        torch.testing.assert_close(measure(Scorer(twice, twice.federation.validation), base), 2 * plain)


@pytest.mark.parametrize("measure", [by_removal, taylor])
def test_a_model_without_neurons_has_no_importances(measure, make_problem):
    problem = make_problem(nn.Linear(6, 3))
    with pytest.raises(UsageError, match="has no neurons that a submodel could leave out"):
        measure(Scorer(problem, problem.federation.validation), torch.zeros(problem.layout.size).double())


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("shift", [0, 50, 50]),
        ("sigmoid", [100 / 7, 300 / 7, 300 / 7]),
        ("clamp", [0, 50, 50]),
        ("abs", [100 / 3, 100 / 3, 100 / 3]),
        ("raw", [-100, 100, 100]),
    ],
)
def test_transforms_by_hand(how, expected):
    a = math.log(3)  # its sigmoid is 3/4, that of −a is 1/4
    assert transform(torch.tensor([-a, a, a]), how).tolist() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("how", "importance"),
    [
        ("shift", [-0.3, -0.3, -0.3, -0.3]),
        ("shift", [0.0, 0.0, 0.0, 0.0]),
        ("clamp", [-1.0, -2.0, 0.0, -0.1]),
        ("abs", [0.0, 0.0, 0.0, 0.0]),
        ("raw", [1.0, -1.0, 2.0, -2.0]),
        ("raw", [-1.0, -2.0, 1.0, 0.0]),
    ],
)
def test_where_nothing_is_left_to_share_all_share_alike(how, importance):
    assert transform(torch.tensor(importance), how).tolist() == [25] * 4


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=8), st.sampled_from(["shift", "sigmoid", "clamp", "abs"]))
def test_shares_are_never_negative_and_sum_to_100(importance, how):
    got = transform(torch.tensor(importance), how)
    assert (got >= 0).all()
    assert got.sum().item() == pytest.approx(100)


@pytest.mark.parametrize("how", TRANSFORMS)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_importances_that_are_no_numbers_are_a_sentence(how, bad):
    with pytest.raises(RunError, match="1 of 3 neurons are not finite"):
        transform(torch.tensor([1.0, bad, 2.0]), how)


def test_an_unknown_transform_is_a_sentence():
    with pytest.raises(UsageError, match="did you mean 'shift'"):
        transform(torch.ones(3), "shfit")
