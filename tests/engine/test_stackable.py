"""Stacked convolutions are the convolutions of the models one by one."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import grad, vmap
from torch.utils._pytree import tree_leaves

from cofair.engine import stackable
from cofair.engine.forward import Forward
from cofair.engine.loop_engine import LoopEngine
from cofair.engine.protocol import ClientStates, Rewards
from cofair.engine.stackable import StackableConv1d, StackableConv2d, make_stackable
from cofair.engine.vectorised import VectorisedEngine
from cofair.engine.work import Work
from cofair.models import build
from tests.conftest import small_federation

SHAPES = {  # channels, outputs, kernel, stride, padding, height, width
    "plain": (2, 3, (3, 3), 1, 0, 6, 5),
    "one channel": (1, 4, (3, 3), 1, 1, 5, 5),
    "stride 2": (2, 3, (3, 3), 2, 1, 6, 7),
    "stride 3, a rest left over": (3, 2, (2, 2), 3, 0, 7, 6),
    "even kernel": (2, 2, (4, 2), 1, 1, 6, 6),
    "large kernel, wide padding": (1, 2, (7, 7), 2, 3, 8, 9),
    "1x1": (4, 3, (1, 1), 1, 0, 3, 4),
    "1x1, stride 2": (4, 3, (1, 1), 2, 0, 5, 4),
    "padding wider than the kernel": (2, 3, (2, 2), 1, 3, 3, 4),
    "rows of four": (4, 4, (2, 2), (1, 2), (0, 1), 5, 5),
    "over time": (4, 5, (1, 3), 1, 0, 1, 7),
    "over time, padded": (3, 2, (1, 4), 1, (0, 2), 1, 6),
    "over time, as long as the kernel": (2, 3, (1, 3), 1, 0, 1, 3),
    "over time, one place": (2, 3, (1, 1), 1, 0, 1, 4),
    "over time, stride 2": (2, 3, (1, 3), (1, 2), 0, 1, 7),
}


@pytest.fixture(autouse=True)
def on_cpu(monkeypatch):
    """Swap on the CPU, too; the kernels have tests of their own."""
    monkeypatch.setattr(stackable, "DEVICES", {"cpu"})
    monkeypatch.setattr(stackable, "kernels", None)
    stackable.kernels_work.cache_clear()


def layer_of(shape, bias, N=3, B=2):
    """Return a layer, stacked parameters and images, and the outputs' weights in a loss."""
    torch.manual_seed(0)
    C, O, kernel, stride, padding, height, width = shape  # noqa: E741
    layer = nn.Conv2d(C, O, kernel, stride, padding, bias=bias).double()
    make_stackable(layer)
    x = torch.randn(N, B, C, height, width, dtype=torch.float64)
    parameters = {name: torch.randn(N, *value.shape, dtype=torch.float64) for name, value in layer.named_parameters()}
    weights = torch.randn(N, *layer(x[0]).shape, dtype=torch.float64)
    return layer, parameters, x, weights


def plain(layer, parameters, x):
    return F.conv2d(x, parameters["weight"], parameters.get("bias"), layer.stride, layer.padding)


def ours(layer, parameters, x):
    return torch.func.functional_call(layer, parameters, (x,))


def results(call, layer, parameters, x, weights, in_dims):
    """Return the outputs and the gradients of a weighted sum of tanh of them, to all inputs and to some alone."""

    def loss(parameters, x, weights):
        return (call(layer, parameters, x).tanh() * weights).sum()

    found = [vmap(lambda p, x: call(layer, p, x), in_dims=in_dims)(parameters, x)]
    for argnums in ((0, 1), 0, 1):
        gradients = vmap(grad(loss, argnums=argnums), in_dims=(*in_dims, 0))(parameters, x, weights)
        found += tree_leaves(gradients)
    for some in (parameters, x, (parameters, x)):  # as the engine has them: backwards over the stack itself
        leaves = [leaf.requires_grad_() for leaf in tree_leaves(some)]
        total = vmap(loss, in_dims=(*in_dims, 0))(parameters, x, weights).sum()
        found += torch.autograd.grad(total, leaves)
        for leaf in leaves:
            leaf.requires_grad_(False)
    return found


def check(layer, parameters, x, weights, in_dims=(0, 0)):
    expected = results(plain, layer, parameters, x, weights, in_dims)
    found = results(ours, layer, parameters, x, weights, in_dims)
    for one, other in zip(expected, found, strict=True):
        assert one.shape == other.shape
        torch.testing.assert_close(other, one, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_stacked_it_is_the_convolution(shape, bias):
    check(*layer_of(shape, bias))


def test_models_may_share_images_or_kernels_and_one_is_enough():
    layer, parameters, x, weights = layer_of(SHAPES["stride 2"], True)
    check(layer, parameters, x[0], weights, (0, None))
    shared = {name: value[0] for name, value in parameters.items()}
    check(layer, shared, x, weights, (None, 0))
    own_bias = {"weight": shared["weight"], "bias": parameters["bias"]}
    check(layer, own_bias, x, weights, ({"weight": None, "bias": 0}, 0))
    check(layer, {name: value[:1] for name, value in parameters.items()}, x[:1], weights[:1])
    last = {"weight": parameters["weight"].movedim(0, 2), "bias": parameters["bias"].movedim(0, 1)}
    check(layer, last, x.movedim(0, 1), weights, ({"weight": 2, "bias": 1}, 1))


def test_one_model_alone_is_the_plain_layer():
    layer, parameters, x, weights = layer_of(SHAPES["stride 2"], True)
    inputs = [x[0].requires_grad_(), *(value[0].requires_grad_() for value in parameters.values())]
    out = ours(layer, dict(zip(parameters, inputs[1:], strict=True)), inputs[0])
    expected = plain(layer, dict(zip(parameters, inputs[1:], strict=True)), inputs[0])
    assert torch.equal(out, expected)
    for one, other in zip(*(torch.autograd.grad((o * weights[0]).sum(), inputs) for o in (out, expected)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_only_plain_convolutions_are_swapped_and_only_for_stacks(make_problem):
    kinds = [
        nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 3, groups=2), nn.Conv2d(4, 4, 3, dilation=2),
        nn.Conv2d(4, 4, 3, padding="same"), nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect"),
        nn.Conv1d(4, 4, 3), nn.ConvTranspose2d(4, 4, 3),
    ]  # fmt: skip
    module = nn.Sequential(*kinds)
    names = list(module.state_dict())
    make_stackable(module)
    assert [isinstance(part, StackableConv1d | StackableConv2d) for part in module] == [True] + [False] * 4 + [
        True,
        False,
    ]
    assert list(module.state_dict()) == names
    problem = make_problem(build("cnn-cifar", (3, 16, 16), 3), small_federation((3, 4), (3, 16, 16)))
    for stacked in (False, True):
        forward = Forward(problem.layout, problem.neurons, stacked=stacked)
        assert any(type(part) is StackableConv2d for part in forward.training.modules()) == stacked
        assert any(type(part) is StackableConv2d for part in forward.evaluation.modules()) == stacked
    assert not any(type(part) is StackableConv2d for part in problem.layout.prototype.modules())


IN_PLACE = {
    "images": ((2, 8, 8), lambda: nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.ReLU(inplace=True), nn.Conv2d(4, 4, 3), nn.ReLU(inplace=True), nn.GroupNorm(2, 4),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3),
    )),
    "over time": ((2, 8), lambda: nn.Sequential(
        nn.Conv1d(2, 4, 3), nn.ReLU(inplace=True), nn.Conv1d(4, 4, 2, padding=1), nn.ReLU(inplace=True),
        nn.Flatten(), nn.Linear(28, 3),
    )),
}  # fmt: skip


@pytest.mark.parametrize(("shape", "make"), IN_PLACE.values(), ids=IN_PLACE)
def test_what_follows_may_work_in_place(make_problem, shape, make):
    torch.manual_seed(0)
    problem = make_problem(make(), small_federation((5, 9, 3), shape))
    rewards = Rewards(problem.layout.row(problem.layout.prototype), Work(steps=2, epochs=None, batch_size=4, lr=0.1))
    loop, _ = LoopEngine(problem).train(rewards, ClientStates(), 1)
    engine = VectorisedEngine(problem)
    vectorised, _ = engine.train(rewards, ClientStates(), 1)
    assert engine.gradients.are_fast
    assert float((loop.updates - vectorised.updates).abs().max()) < 1e-9


MODELS = {
    "cnn-mnist": ((1, 16, 16), {}),
    "cnn-cifar": ((3, 18, 18), {}),
    "resnet18": ((3, 12, 12), {"widths": (4, 6, 8, 10)}),
}


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
def test_engines_agree_on_texts(make_problem, optimiser):
    torch.manual_seed(3)
    module = build("textcnn", (9,), 3, vocabulary=30, embedding=6, filters=4)
    problem = make_problem(module, small_federation((5, 9, 3), (9,), tokens=30))
    work = Work(steps=3, epochs=None, batch_size=4, lr=0.01, optimiser=optimiser)
    rewards = Rewards(problem.layout.row(problem.layout.prototype), work)
    loop, _ = LoopEngine(problem).train(rewards, ClientStates(), 1)
    engine = VectorisedEngine(problem)
    vectorised, _ = engine.train(rewards, ClientStates(), 1)
    assert engine.gradients.are_fast
    assert float((loop.updates - vectorised.updates).abs().max()) < 1e-9


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_engines_agree_on_swapped_convolutions(make_problem, name, masked):
    torch.manual_seed(3)
    shape, settings = MODELS[name]
    problem = make_problem(build(name, shape, 3, **settings), small_federation((5, 9, 3), shape))
    masks = torch.rand(3, problem.neurons.count, generator=torch.Generator().manual_seed(0)) < 0.6
    work = Work(steps=2, epochs=None, batch_size=4, lr=0.1)
    rewards = Rewards(problem.layout.row(problem.layout.prototype), work, masks if masked else None)
    loop, _ = LoopEngine(problem).train(rewards, ClientStates(), 1)
    vectorised, _ = VectorisedEngine(problem).train(rewards, ClientStates(), 1)
    assert float((loop.updates - vectorised.updates).abs().max()) < 1e-9
    assert float(loop.updates.abs().max()) > 1e-4


class Net(nn.Module):
    """A convolution, something that is done to what it gives, and a linear layer."""

    def __init__(self, then):
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.Linear(4 * 9, 3)
        self.then = then

    def forward(self, x):
        return self.head(self.then(self, nn.functional.max_pool2d(self.conv(x), 2).relu()))


def hooked(net, found):
    if found.requires_grad:
        found.register_hook(lambda g: g / (g.norm() + 1e-6))
    return found.flatten(1)


def differentiated(net, found):
    slope = torch.autograd.grad(found.tanh().sum(), found, create_graph=True)[0] if found.requires_grad else 1
    return (found * slope).flatten(1)


THEN = {
    "a view, which asks for memory in order": lambda net, found: found.view(len(found), -1),
    "a norm called by keyword": lambda net, found: net.norm(input=found).flatten(1),
    "a hook on the gradient": hooked,
    "a gradient of its own": differentiated,
}


@pytest.mark.parametrize("then", THEN.values(), ids=THEN)
def test_what_the_fast_way_cannot_do_is_done_the_safe_way(make_problem, then):
    torch.manual_seed(0)
    problem = make_problem(Net(then), small_federation((5, 9, 3), (2, 8, 8)))
    rewards = Rewards(problem.layout.row(problem.layout.prototype), Work(steps=2, epochs=None, batch_size=4, lr=0.1))
    loop, _ = LoopEngine(problem).train(rewards, ClientStates(), 1)
    engine = VectorisedEngine(problem)
    vectorised, _ = engine.train(rewards, ClientStates(), 1)
    assert float((loop.updates - vectorised.updates).abs().max()) < 1e-9


def test_plain_networks_are_trained_the_fast_way(make_problem):
    problem = make_problem(build("cnn-cifar", (3, 18, 18), 3), small_federation((5, 9, 3), (3, 18, 18)))
    engine = VectorisedEngine(problem)
    engine.train(Rewards(problem.layout.row(problem.layout.prototype), Work(steps=1, batch_size=4)), ClientStates(), 1)
    assert engine.gradients.are_fast is True


def test_over_time_no_samples_and_samples_too_short_are_as_usual():
    layer = nn.Conv1d(2, 3, 3).double()
    make_stackable(layer)
    parameters = {name: torch.randn(4, *value.shape).double() for name, value in layer.named_parameters()}
    stacked = vmap(lambda p, x: ours(layer, p, x))
    assert stacked(parameters, torch.zeros(4, 0, 2, 7).double()).shape == (4, 0, 3, 5)
    with pytest.raises(RuntimeError, match="Kernel size"):
        stacked(parameters, torch.zeros(4, 1, 2, 2).double())
