import dataclasses
import importlib.util

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, grad

from cofair.models import build
from cofair.models.neuron_layers import NeuronLayer, Part
from cofair.models.parameters import Layout
from cofair.models.resnet import BasicBlock
from cofair.neurons.find import find_layers
from cofair.neurons.map import NeuronMap
from cofair.scoring.importance import by_removal
from cofair.scoring.scorer import Scorer
from tests.conftest import small_federation

needs_torch_pruning = pytest.mark.skipif(
    importlib.util.find_spec("torch_pruning") is None, reason="Torch-Pruning is not installed"
)


class Tutorial(nn.Module):
    """As in every introduction to PyTorch: layers here, how they are called there."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 4, 3)
        self.conv2 = nn.Conv2d(4, 6, 2)
        self.pool = nn.MaxPool2d(2)
        self.fc1 = nn.Linear(6 * 2 * 2, 7)
        self.fc2 = nn.Linear(7, 3)

    def forward(self, x):
        x = self.pool(F.relu(self.conv1(x)))
        x = torch.tanh(self.conv2(x)) * 2
        x = x.view(x.size(0), -1)
        return self.fc2(F.dropout(F.relu(self.fc1(x)), training=self.training))


class Odd(nn.Module):
    """Its forward looks at values, so it cannot be followed as a whole; its parts can."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 6))
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        if x.sum() > 1e9:
            return self.head(self.body(-x))
        return self.head(self.body(x).relu())


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(1, 8, 3, padding=1)
        self.norm = nn.GroupNorm(2, 8)
        self.block1, self.block2 = BasicBlock(8, 8, 1), BasicBlock(8, 12, 2)
        self.head = nn.Linear(12, 3)

    def forward(self, x):
        x = self.norm(self.stem(x)).relu()
        return self.head(self.block2(self.block1(x)).mean((2, 3)))


def encoder(**settings):
    return nn.Sequential(
        nn.TransformerEncoder(
            nn.TransformerEncoderLayer(8, 4, 6, batch_first=True, dropout=0.0, **settings),
            2,
            enable_nested_tensor=False,
        ),
        nn.Flatten(),
        nn.Linear(24, 3),
    )


def hidden(name, count, made_by=("weight", "bias"), read_by=()):
    return NeuronLayer(name, count, tuple(f"{name}.{own}" for own in made_by), read_by)


IMAGES, ROWS, WORDS = (1, 8, 8), (5,), (3, 8)
S, C, L = nn.Sequential, nn.Conv2d, nn.Linear
FOUND = {
    "units": (
        ROWS, lambda: S(L(5, 4), nn.Sigmoid(), nn.Dropout(), L(4, 6), L(6, 3)),
        [hidden("0", 4, read_by=("3.weight",)), hidden("3", 6, read_by=("4.weight",))],
    ),
    "no biases, nested": (
        ROWS, lambda: S(S(L(5, 4, bias=False), nn.GELU()), S(nn.Identity(), L(4, 3))),
        [hidden("0.0", 4, ("weight",), ("1.1.weight",))],
    ),
    "features in turns": (
        WORDS, lambda: S(L(8, 4), nn.Softplus(), nn.Flatten(), L(12, 3)),
        [hidden("0", 4, read_by=tuple(Part("3.weight", i, i + 4) for i in (0, 4, 8)))],
    ),
    "over the width of images": (
        IMAGES, lambda: S(C(1, 6, 3), L(6, 2), nn.Flatten(), L(72, 3)),
        [hidden("1", 2, read_by=tuple(Part("3.weight", i, i + 2) for i in range(0, 72, 2)))],
    ),
    "channels": (
        IMAGES,
        lambda: S(C(1, 4, 3), nn.ReLU(), nn.AvgPool2d(2), C(4, 2, 2), nn.ELU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(),
                  L(8, 3)),
        [hidden("0", 4, read_by=("3.weight",)), hidden("3", 2, read_by=("7.weight",))],
    ),
    "channels in time": (
        WORDS, lambda: S(nn.Conv1d(3, 4, 3), nn.PReLU(4), nn.Conv1d(4, 5, 2), nn.PReLU(), nn.Flatten(), L(25, 3)),
        [NeuronLayer("0", 4, ("0.weight", "0.bias", "1.weight"), ("2.weight",)), hidden("2", 5, read_by=("5.weight",))],
    ),
    "depthwise": (
        IMAGES, lambda: S(C(1, 4, 3), nn.ReLU(), C(4, 8, 3, groups=4), nn.ReLU(), nn.Flatten(), L(8 * 16, 3)),
        [NeuronLayer("0", 4, ("0.weight", "0.bias", "2.weight", "2.bias"), ("5.weight",))],
    ),
    "groups of a convolution": (
        IMAGES, lambda: S(C(1, 4, 3), nn.ReLU(), C(4, 6, 3, groups=2), nn.Flatten(), L(6 * 16, 3)),
        [hidden("2", 6, read_by=("4.weight",))],
    ),
    "groups of a norm": (
        IMAGES, lambda: S(C(1, 6, 3), nn.GroupNorm(3, 6), nn.ReLU(), nn.Flatten(), L(6 * 36, 3)),
        [NeuronLayer("0", 3, ("0.weight", "0.bias", "1.weight", "1.bias"), ("4.weight",))],
    ),
    "a norm a channel": (
        IMAGES, lambda: S(C(1, 6, 3), nn.InstanceNorm2d(6, affine=True), nn.ReLU(), nn.Flatten(), L(6 * 36, 3)),
        [NeuronLayer("0", 6, ("0.weight", "0.bias", "1.weight", "1.bias"), ("4.weight",))],
    ),
    "a norm in one group": (IMAGES, lambda: S(C(1, 6, 3), nn.GroupNorm(1, 6), nn.Flatten(), L(216, 3)), []),
    "norms whose groups do not fit": (
        IMAGES, lambda: S(C(1, 6, 3), nn.GroupNorm(2, 6), nn.GroupNorm(3, 6), nn.Flatten(), L(216, 3)), [],
    ),
    "under LayerNorm": (
        ROWS, lambda: S(L(5, 4), nn.LayerNorm(4), nn.ReLU(), L(4, 6), nn.ReLU(), L(6, 3)),
        [hidden("3", 6, read_by=("5.weight",))],
    ),
    "under softmax": (ROWS, lambda: S(L(5, 4), nn.Softmax(-1), L(4, 3)), []),
    "the tutorial's": (
        IMAGES, Tutorial,
        [hidden("conv1", 4, read_by=("conv2.weight",)), hidden("conv2", 6, read_by=("fc1.weight",)),
         hidden("fc1", 7, read_by=("fc2.weight",))],
    ),
    "parts of an odd one": (ROWS, Odd, [hidden("body.0", 4, read_by=("body.2.weight",))]),
}  # fmt: skip


@pytest.mark.parametrize(("shape", "module", "expected"), FOUND.values(), ids=FOUND)
def test_what_is_found(shape, module, expected):
    assert list(find_layers(module())) == expected


@pytest.mark.parametrize(
    ("name", "shape", "settings"),
    [
        ("mlp", (1, 8, 8), {}),
        ("cnn-mnist", (1, 8, 8), {}),
        ("cnn-cifar", (3, 16, 16), {}),
        ("textcnn", (5,), {"vocabulary": 9}),
    ],
)
def test_a_foreign_module_has_the_neurons_that_ours_declares(name, shape, settings):
    if name == "textcnn" and importlib.util.find_spec("torch_pruning") is None:
        pytest.skip("Torch-Pruning is not installed")
    model = build(name, shape, 10, **settings)
    foreign = nn.Sequential(*model) if isinstance(model, nn.Sequential) else model
    assert name == "textcnn" or not hasattr(foreign, "neurons")
    example = torch.zeros(1, *shape, dtype=torch.long if settings else torch.float)

    def nameless(layers):
        return [dataclasses.replace(layer, name="") for layer in layers]

    assert nameless(find_layers(foreign, example)) == nameless(model.neurons())


def silencing(name, layer, neuron):
    """A hook that zeroes a neuron where the layer `name` reads it."""

    def hook(part, inputs):
        (x,) = inputs
        dim = -1 if isinstance(part, nn.Linear) else 1
        keep = torch.ones(x.shape[dim], dtype=x.dtype)
        for item in layer.read_by:
            if (item if isinstance(item, str) else item.parameter) == f"{name}.weight":
                start, stop = (0, len(keep)) if isinstance(item, str) else (item.start, item.stop)
                run = (stop - start) // layer.count
                keep[start + neuron * run : start + (neuron + 1) * run] = 0
        return (x * keep if dim == -1 else x * keep.view(-1, *[1] * (x.dim() - 2)),)

    return hook


def check_removal_is_silence(module, shape, example=None):
    """Masked parameters give the outputs of a neuron that readers see as zero, and get no gradient."""
    torch.manual_seed(0)
    module = module.double().eval()
    for parameter in module.parameters():  # no start of ones and zeros may hide a mistake
        nn.init.normal_(parameter, std=0.5)
    layout = Layout(module)
    neurons = NeuronMap.of(module, layout, example)
    x, row = torch.randn(4, *shape, dtype=torch.float64), layout.row(module)
    full = module(x).detach()
    for layer, where in zip(neurons.layers, neurons.slices, strict=True):
        readers = {(item if isinstance(item, str) else item.parameter).rpartition(".")[0] for item in layer.read_by}
        change = 0.0
        for neuron in {0, layer.count // 2, layer.count - 1}:
            hooks = [
                module.get_submodule(name).register_forward_pre_hook(silencing(name, layer, neuron)) for name in readers
            ]
            silent = module(x).detach()
            for hook in hooks:
                hook.remove()
            mask = torch.ones(1, neurons.count)
            mask[0, where.start + neuron] = 0
            kept = neurons.parameter_mask(mask)[0]

            def outputs(row, kept=kept):
                return functional_call(module, layout.views(row * kept), (x,))

            torch.testing.assert_close(outputs(row), silent)
            gradient = grad(lambda row, outputs=outputs: outputs(row).square().sum())(row)
            assert (gradient[~kept] == 0).all()
            change = max(change, float((silent - full).abs().max()))
        assert change > 0
    return neurons


@pytest.mark.parametrize("name", [name for name, (_, _, expected) in FOUND.items() if expected])
def test_leaving_out_what_is_found_is_silencing_it(name):
    shape, module, _ = FOUND[name]
    check_removal_is_silence(module(), shape)


class TestTransformers:
    def test_heads_and_feed_forward_units_are_neurons_and_the_residual_stream_is_not(self):
        layers = find_layers(encoder(), torch.randn(2, *WORDS))
        assert [(layer.name, layer.count) for layer in layers] == [
            ("0.layers.0.self_attn.heads", 4), ("0.layers.0.linear1", 6),
            ("0.layers.1.self_attn.heads", 4), ("0.layers.1.linear1", 6),
        ]  # fmt: skip

    @pytest.mark.parametrize("settings", [{}, {"norm_first": True}, {"bias": False}], ids=str)
    def test_leaving_out_a_head_is_zeroing_its_output(self, settings):
        """The outputs of attention are those of a hand-written one in which the head's values are zero."""
        torch.manual_seed(0)
        module = encoder(**settings).double().eval()
        layout = Layout(module)
        neurons = NeuronMap.of(module, layout)
        for head in range(4):
            mask = torch.ones(1, neurons.count)
            mask[0, head] = 0
            views = layout.views(layout.row(module) * neurons.parameter_mask(mask)[0])
            attention = module[0].layers[0].self_attn
            prefix = "0.layers.0.self_attn."
            masked = {name.removeprefix(prefix): view for name, view in views.items() if name.startswith(prefix)}
            x = torch.randn(2, *WORDS, dtype=torch.float64)
            got = functional_call(attention, masked, (x, x, x))[0]
            q, k, v = (
                F.linear(x, attention.in_proj_weight, attention.in_proj_bias)
                .view(2, 3, 3, 4, 2).permute(2, 0, 3, 1, 4)
            )  # fmt: skip
            values = torch.softmax(q @ k.transpose(-1, -2) / 2**0.5, -1) @ v
            values[:, head] = 0
            expected = F.linear(values.transpose(1, 2).flatten(2), attention.out_proj.weight, attention.out_proj.bias)
            torch.testing.assert_close(got, expected)

    def test_a_masked_head_or_unit_gets_no_gradient(self):
        torch.manual_seed(0)
        module = encoder().double().train()
        layout = Layout(module)
        neurons = NeuronMap.of(module, layout)
        x = torch.randn(2, *WORDS, dtype=torch.float64)
        mask = torch.ones(1, neurons.count)
        mask[0, [1, 5, 11]] = 0
        kept = neurons.parameter_mask(mask)[0]
        gradient = grad(lambda row: functional_call(module, layout.views(row * kept), (x,)).square().sum())(
            layout.row(module)
        )
        assert (gradient[~kept] == 0).all()
        head, unit = 3 * (2 * 8 + 2) + 2 * 8, 8 + 1 + 8
        assert int((~kept).sum()) == 2 * head + unit

    def test_attention_of_ones_own_widths(self):
        class Cross(nn.Module):
            def __init__(self):
                super().__init__()
                self.attention = nn.MultiheadAttention(8, 2, kdim=5, vdim=5, batch_first=True)
                self.head = nn.Linear(8, 3)

            def forward(self, x):
                return self.head(self.attention(x, x[..., :5], x[..., :5])[0].mean(1))

        module = Cross().double()
        layout = Layout(module)
        neurons = NeuronMap.of(module, layout)
        assert [(layer.name, layer.count) for layer in neurons.layers] == [("attention.heads", 2)]
        row = layout.row(module) * neurons.parameter_mask(torch.tensor([[0, 0]]))[0]
        x = torch.randn(2, *WORDS, dtype=torch.float64)
        without = F.linear(module.attention.out_proj.bias, module.head.weight, module.head.bias)
        torch.testing.assert_close(functional_call(module, layout.views(row), (x,)), without.expand(2, 3))

    def test_importance_of_heads(self, make_problem):
        torch.manual_seed(0)
        problem = make_problem(encoder(), small_federation(shape=WORDS))
        importance = by_removal(
            Scorer(problem, problem.federation.validation), problem.layout.row(problem.layout.prototype)
        )
        assert (importance != 0).all()
        assert importance.shape == (20,)


class TestTies:
    def test_a_weight_that_is_used_twice_makes_no_neurons(self):
        shared = nn.Linear(4, 4)
        assert find_layers(nn.Sequential(shared, nn.ReLU(), shared, nn.ReLU(), nn.Linear(4, 3))) == ()

    def test_a_tied_weight_makes_no_neurons(self):
        module = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 9))
        assert [layer.name for layer in find_layers(module)] == ["1"]
        module[3].weight = module[0].weight
        assert find_layers(module) == ()

    def test_only_what_is_tied_is_left_alone(self):
        module = nn.Sequential(
            nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 4)
        )
        module[6].weight = module[0].weight
        assert [layer.name for layer in find_layers(module)] == ["2"]

    def test_a_layer_that_is_called_twice_makes_no_neurons(self):
        class Twice(nn.Module):
            def __init__(self):
                super().__init__()
                self.first, self.again, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)

            def forward(self, x):
                return self.head(self.again(self.again(self.first(x)).relu()).relu())

        assert find_layers(Twice()) == ()

    def test_an_activation_may_be_used_twice(self):
        relu = nn.ReLU()
        module = nn.Sequential(nn.Linear(5, 4), relu, nn.Linear(4, 4), relu, nn.Linear(4, 3))
        assert [layer.name for layer in find_layers(module)] == ["0", "2"]


@needs_torch_pruning
class TestCoupled:
    def test_channels_of_a_residual_stream_under_group_norm_are_whole_groups(self):
        neurons = check_removal_is_silence(Residual(), IMAGES, torch.randn(1, *IMAGES))
        found = {layer.name: (layer.count, set(layer.makers), set(layer.read_by)) for layer in neurons.layers}
        norms = {f"{name}.{own}" for name in ("norm", "block1.residual.4") for own in ("weight", "bias")}
        assert found["stem"] == (
            2,
            {"stem.weight", "stem.bias", "block1.residual.3.weight"} | norms,
            {"block1.residual.0.weight", "block2.shortcut.0.weight", "block2.residual.0.weight"},
        )
        assert len(found) == 4
        assert {count for count, _, _ in found.values()} == {2}

    def test_without_an_example_only_what_is_not_coupled_is_found(self):
        names = [layer.name for layer in find_layers(Residual())]
        assert names == ["block1.residual.0", "block2.residual.0"]

    def test_what_leaks_is_no_neuron(self):
        class Leaky(nn.Module):
            """Hidden values are read by a layer, and their maximum by everything."""

            def __init__(self):
                super().__init__()
                self.first, self.second = nn.Linear(5, 4), nn.Linear(4, 3)

            def forward(self, x):
                h = self.first(x)
                return self.second(h) * torch.softmax(h, 1).amax(1, keepdim=True)

        assert find_layers(Leaky(), torch.randn(1, 5)) == ()

    def test_a_module_it_cannot_follow_has_what_our_walk_finds(self):
        assert [layer.name for layer in find_layers(Odd(), torch.randn(1, 99))] == ["body.0"]


def test_the_core_does_without_torch_pruning(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert [layer.name for layer in find_layers(Residual(), torch.randn(1, *IMAGES))] == [
        "block1.residual.0", "block2.residual.0",
    ]  # fmt: skip
