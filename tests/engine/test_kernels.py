"""The kernels give what the convolutions and poolings of the models one by one give.

On a GPU, or anywhere in Triton's interpreter: TRITON_INTERPRET=1 pytest tests/engine/test_kernels.py
"""

import copy
import os

import pytest
import torch
from torch import nn
from torch.func import functional_call, vmap

from cofair.engine import stackable
from cofair.engine.choose import arithmetic
from cofair.engine.loop_engine import LoopEngine
from cofair.engine.optimisers import OPTIMISERS, StackedSteps
from cofair.engine.problem import Problem
from cofair.engine.protocol import ClientStates, Rewards
from cofair.engine.stackable import (
    StackableConv1d,
    StackableConv2d,
    StackableGroupNorm,
    StackableMaxPool2d,
    make_stackable,
)
from cofair.engine.vectorised import VectorisedEngine
from cofair.engine.work import Work
from cofair.models import build
from cofair.models.parameters import Layout
from cofair.neurons.map import NeuronMap
from cofair.scoring.candidates import Candidates
from tests.conftest import small_federation
from tests.engine.test_stackable import SHAPES

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"
pytestmark = [] if INTERPRETED else [pytest.mark.gpu]

MORE = {  # beyond one tile, and channels that do not fill theirs
    "more channels": (20, 70, (3, 3), 1, 1, 6, 6),
    "many channels, stride 2": (40, 20, (3, 3), 2, 1, 8, 8),
    "wider than a tile": (36, 140, (3, 3), 1, 1, 4, 4),
    "many pixels": (1, 3, (3, 3), 1, 0, 20, 20),
    "patches that do not meet": (2, 3, (4, 4), 4, 0, 12, 9),
    "a kernel as wide as the images": (2, 3, (3, 20), 1, 0, 6, 20),
}


@pytest.fixture(autouse=True)
def on_device(monkeypatch):
    pytest.importorskip("triton")
    monkeypatch.setattr(stackable, "DEVICES", {DEVICE})
    stackable.kernels_work.cache_clear()
    with arithmetic("float32"):  # cuDNN's own default is TF32
        yield


def gradients(module, parameters, x, weights, in_dims=(0, 0)):
    """Return outputs and gradients of a weighted sum of them, as the engine has them: over the stack itself."""
    leaves = {name: value.detach().requires_grad_() for name, value in parameters.items()}
    x = x.detach().requires_grad_()
    out = vmap(lambda p, x: functional_call(module, p, (x,)), in_dims=in_dims)(leaves, x)
    found = torch.autograd.grad((out * weights(out)).sum(), [*leaves.values(), x])
    return [out.detach(), *found]


def waves(out):
    return torch.arange(out.numel(), dtype=out.dtype, device=out.device).view(out.shape).sin()


def apart(one, other):
    return float((one.double() - other.double()).norm() / other.double().norm().clamp(min=1e-12))


def check(module, x, shared=False, within=1e-5):
    """Compare the kernels in float32 with PyTorch in float64."""
    module = module.to(DEVICE)
    parameters = {name: torch.randn(3, *value.shape, device=DEVICE) for name, value in module.named_parameters()}
    stacked, exact = copy.deepcopy(module), copy.deepcopy(module).double()
    make_stackable(stacked)
    in_dims = (0, None) if shared else (0, 0)
    found = gradients(stacked, parameters, x, waves, in_dims)
    double = {name: value.double() for name, value in parameters.items()}
    for one, other in zip(found, gradients(exact, double, x.double().contiguous(), waves, in_dims), strict=True):
        assert one.shape == other.shape
        assert apart(one, other) < within


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", (SHAPES | MORE).values(), ids=SHAPES | MORE)
def test_a_convolution_is_that_of_each_model(shape, bias):
    torch.manual_seed(0)
    C, O, kernel, stride, padding, height, width = shape  # noqa: E741
    layer = nn.Conv2d(C, O, kernel, stride, padding, bias=bias)
    x = torch.randn(3, 5, C, height, width, device=DEVICE)
    check(layer, x)
    check(layer, x[0], shared=True)
    check(layer, x.movedim(2, -1).contiguous().movedim(-1, 2))  # channels last
    assert type(make_stackable(layer) or layer) is StackableConv2d


@pytest.mark.parametrize(("channels", "stride", "padding"), [(3, 1, 0), (40, 2, 1)])
def test_a_convolution_over_time_is_that_of_each_model(channels, stride, padding):
    torch.manual_seed(0)
    layer = nn.Conv1d(channels, 5, 3, stride, padding)
    check(layer, torch.randn(3, 4, channels, 9, device=DEVICE))
    assert type(make_stackable(layer) or layer) is StackableConv1d


@pytest.mark.skipif(INTERPRETED, reason="the interpreter knows no TF32")
@pytest.mark.parametrize("shape", MORE.values(), ids=MORE)
def test_tf32_is_close(shape):
    torch.manual_seed(0)
    C, O, kernel, stride, padding, height, width = shape  # noqa: E741
    with arithmetic("tf32"):
        check(nn.Conv2d(C, O, kernel, stride, padding), torch.randn(3, 5, C, height, width, device=DEVICE), within=2e-3)


@pytest.mark.parametrize(("window", "side"), [(2, (6, 8)), (2, (7, 5)), ((3, 1), (7, 4)), ((1, 2), (4, 5))])
def test_a_pooling_takes_the_first_of_the_largest(window, side):
    torch.manual_seed(0)
    pool = nn.MaxPool2d(window)
    make_stackable(pool)
    assert type(pool) is StackableMaxPool2d
    x = torch.randn(3, 5, 4, *side, device=DEVICE).mul(2).round()  # many are equal
    for images in (x, x.movedim(2, -1).contiguous().movedim(-1, 2)):
        expected = gradients(nn.MaxPool2d(window), {}, images, waves)
        for one, other in zip(gradients(pool, {}, images, waves), expected, strict=True):
            assert torch.equal(one, other)
        alone = images[0].detach().requires_grad_()
        out = pool(alone).mul_(1)  # what follows may work in place
        assert torch.equal(out, expected[0][0])
        assert torch.equal(torch.autograd.grad((out * waves(expected[0])[0]).sum(), alone)[0], expected[1][0])


def test_what_is_not_a_number_wins():
    x = torch.randn(2, 3, 4, 6, 6, device=DEVICE)
    x[0, 0, 0, 1, 1] = x[1, 2, 3, 4, 4] = torch.nan
    x[0, 1, 0, 0, 0] = -torch.inf
    pool = nn.MaxPool2d(2)
    expected = vmap(pool)(x)
    make_stackable(pool)
    assert torch.equal(vmap(pool)(x).isnan(), expected.isnan())
    assert torch.equal(vmap(pool)(x).nan_to_num(7), expected.nan_to_num(7))
    small, empty = x[:, :, :, :1], x[:, :0]
    with pytest.raises(RuntimeError):
        vmap(pool)(small)
    assert vmap(pool)(empty).shape == (2, 0, 4, 3, 3)


class Then(nn.Module):
    def __init__(self, kernel, then):
        super().__init__()
        self.conv, self.then = nn.Conv2d(1, 5, kernel), then

    def forward(self, x):
        return self.then(self.conv(x))


TAILS = {
    "as wide as the images": ((3, 8), lambda out: out.squeeze(3).relu()),  # a stride of one pixel means nothing
    "turned": (3, lambda out: out.transpose(2, 3).relu().mean(1)),
    "expanded": (3, lambda out: out.sum((2, 3))),
    "a part": (3, lambda out: out[:, 1:4, ::2].relu()),
}


@pytest.mark.parametrize("tail", TAILS)
def test_a_gradient_may_lie_in_memory_as_it_likes(tail):
    torch.manual_seed(0)
    check(Then(*TAILS[tail]), torch.randn(3, 4, 1, 7, 8, device=DEVICE))


@pytest.mark.parametrize("N", [1, 3])
def test_what_kernels_cannot_count_goes_another_way(N, monkeypatch):
    """Numbers of 64 bits, empty batches, and images beyond their reach."""
    torch.manual_seed(0)
    layer = nn.Conv2d(2, 3, 3).to(DEVICE)
    plain = copy.deepcopy(layer)
    make_stackable(layer)
    parameters = {name: torch.randn(N, *value.shape, device=DEVICE) for name, value in layer.named_parameters()}
    x = torch.randn(N, 4, 2, 6, 6, device=DEVICE)
    double = {name: value.double() for name, value in parameters.items()}
    exact = gradients(copy.deepcopy(plain).double(), double, x.double(), waves)
    called = []
    product = stackable.kernels.product
    monkeypatch.setattr(stackable.kernels, "product", lambda *a, **k: called.append(1) or product(*a, **k))
    assert all(
        apart(a, b) < 1e-12 for a, b in zip(gradients(layer.double(), double, x.double(), waves), exact, strict=True)
    )
    layer.float()
    assert gradients(layer, parameters, x[:, :0], waves)[1].abs().sum() == 0
    monkeypatch.setattr(stackable.memory, "LARGEST", 100)
    assert all(apart(a, b) < 1e-5 for a, b in zip(gradients(layer, parameters, x, waves), exact, strict=True))
    assert not called
    # models between the samples, as torch.func may leave them: offsets are beyond reach, the numbers are not
    monkeypatch.setattr(stackable.memory, "LARGEST", 4 * 2 * 36 * N - 80 * N if N > 1 else 10**6)
    between = x.transpose(0, 1).contiguous().transpose(0, 1)
    assert all(apart(a, b) < 1e-5 for a, b in zip(gradients(layer, parameters, between, waves), exact, strict=True))
    assert called


def test_where_triton_cannot_compile_that_is_said_once(monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("no C compiler\nand more")

    monkeypatch.setattr(stackable.kernels, "product", broken)
    layer = nn.Conv2d(2, 3, 3)
    x = torch.randn(3, 4, 2, 6, 6, device=DEVICE)
    with pytest.warns(UserWarning, match="no C compiler$"):
        check(layer, x)
    check(layer, x)
    stackable.kernels_work.cache_clear()


@pytest.mark.parametrize(
    ("channels", "groups", "side"), [(4, 2, (3, 5)), (6, 1, (1, 1)), (70, 2, (9, 4)), (8, 8, (40, 31))]
)
def test_a_norm_is_that_of_each_model(channels, groups, side):
    torch.manual_seed(0)
    norm = nn.GroupNorm(groups, channels)
    x = 3 + 2 * torch.randn(3, 5, channels, *side, device=DEVICE)
    check(norm, x, within=1e-4)
    check(norm, x[0], shared=True, within=1e-4)
    check(norm, x.movedim(2, -1).contiguous().movedim(-1, 2), within=1e-4)
    assert type(make_stackable(norm) or norm) is StackableGroupNorm


def test_other_poolings_stay():
    others = [
        nn.MaxPool2d(3, 2),
        nn.MaxPool2d(2, padding=1),
        nn.MaxPool2d(2, dilation=2),
        nn.MaxPool2d(2, ceil_mode=True),
    ]
    for pool in [*others, nn.MaxPool2d(2, return_indices=True), nn.MaxPool2d(12)]:
        make_stackable(pool)
        assert type(pool) is nn.MaxPool2d


@pytest.mark.parametrize("scaled", [False, True])
def test_adam_steps_each_model_as_it_would_step_alone(scaled):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(40, 60), nn.Linear(60, 3))  # more than a block, and less
    layout = Layout(module.to(DEVICE))
    rows = layout.new_rows(3, torch.device(DEVICE)).copy_(torch.randn(3, layout.size))
    alone = [row.double().clone().requires_grad_() for row in rows]
    rates = torch.tensor([0.1, 0.02, 0.3], device=DEVICE)
    usual = [torch.optim.Adam([row], lr=float(lr)) for row, lr in zip(alone, rates, strict=True)]
    everybody = torch.arange(3, device=DEVICE)
    adam = StackedSteps(OPTIMISERS["adam"], {}, everybody, 3, layout, rows, lambda _, x: x.clone())
    scale = torch.tensor([1.0, 0.5, 0.1], device=DEVICE) if scaled else None
    for active in (3, 3, 2):
        gradients = torch.randn(active, layout.size, device=DEVICE)
        own = {name: value[:active] for name, value in layout.views(rows).items()}
        adam.step(own, layout.views(gradients), rates[:active], None if scale is None else scale[:active], {})
        for i in range(active):
            alone[i].grad = gradients[i].double() * (1.0 if scale is None else scale[i].double())
            usual[i].step()
    for i, row in enumerate(alone):
        torch.testing.assert_close(rows[i].double(), row.detach(), rtol=1e-5, atol=1e-5)
    moments = [optimiser.state[row]["exp_avg_sq"] for optimiser, row in zip(usual, alone, strict=True)]
    torch.testing.assert_close(adam.remembered()["second"].double(), torch.stack(moments), rtol=1e-4, atol=1e-7)


def problem_of(module, shape):
    federation = small_federation((5, 9, 3), shape).to(torch.device(DEVICE), torch.float32)
    module = module.to(DEVICE)
    layout = Layout(module)
    return Problem(layout, NeuronMap.of(module, layout), federation, seed=0)


MODULES = {
    "cnn-mnist": (lambda: build("cnn-mnist", (1, 16, 16), 3), (1, 16, 16)),
    "cnn-cifar": (lambda: build("cnn-cifar", (3, 18, 18), 3), (3, 18, 18)),
    "resnet18": (lambda: build("resnet18", (3, 12, 12), 3, widths=(4, 6, 8, 10)), (3, 12, 12)),
    "in place": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 3), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.ReLU(inplace=True), nn.Conv2d(4, 4, 2),
            nn.GroupNorm(2, 4), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(16, 3),
        ),
        (2, 8, 8),
    ),
}  # fmt: skip


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", MODULES)
def test_engines_agree(name, masked):
    torch.manual_seed(3)
    make, shape = MODULES[name]
    problem = problem_of(make(), shape)
    masks = torch.rand(3, problem.neurons.count, generator=torch.Generator().manual_seed(0)).to(DEVICE) < 0.6
    start = problem.layout.row(problem.layout.prototype)
    rewards = Rewards(start, Work(steps=2, epochs=None, batch_size=4, lr=0.1), masks if masked else None)
    loop, _ = LoopEngine(problem).train(rewards, ClientStates(), 1)
    engine = VectorisedEngine(problem)
    vectorised, _ = engine.train(rewards, ClientStates(), 1)
    assert engine.gradients.are_fast is True
    assert apart(vectorised.updates, loop.updates) < 1e-3
    x, rows = problem.federation.test.x, start + 0.1 * torch.randn(3, len(start), device=DEVICE)
    together, alone = Candidates(problem), Candidates(problem)
    together.together, alone.together = True, False
    for parameters, own in [(start, masks), (rows, masks), (rows, None)]:
        found = together.outputs(parameters, own, x, len(x))
        assert apart(found, alone.outputs(parameters, own, x, len(x))) < 1e-4
    assert set(together._ways.values()) == {together._stacked}


def test_a_view_after_a_convolution_takes_another_way():
    """Channels come last in memory there, where a view asks for memory in order."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.head = nn.Conv2d(2, 4, 3), nn.Linear(4 * 36, 3)

        def forward(self, x):
            return self.head(self.conv(x).view(len(x), -1))

    problem = problem_of(Net(), (2, 8, 8))
    start = problem.layout.row(problem.layout.prototype)
    rewards = Rewards(start, Work(steps=2, epochs=None, batch_size=4, lr=0.1))
    loop, _ = LoopEngine(problem).train(rewards, ClientStates(), 1)
    engine = VectorisedEngine(problem)
    vectorised, _ = engine.train(rewards, ClientStates(), 1)
    assert engine.gradients.are_fast is False
    assert apart(vectorised.updates, loop.updates) < 1e-3
    candidates = Candidates(problem)
    candidates.together = True
    rows = start + 0.1 * torch.randn(3, len(start), device=DEVICE)
    assert candidates.outputs(rows, None, problem.federation.test.x, 4).shape[0] == 3
    assert set(candidates._ways.values()) == {candidates.forward}
