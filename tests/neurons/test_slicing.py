import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.func import functional_call

from cofair.errors import UsageError
from cofair.models import build
from cofair.models.neuron_layers import NeuronLayer
from cofair.models.parameters import Layout
from cofair.neurons.map import NeuronMap
from cofair.neurons.slicing import scatter, slice_row, small_module
from cofair.scoring.nested import nesting, prefix_masks

STACKS = {
    "mlp": ((4,), lambda: build("mlp", (4,), 3, hidden=(5, 4))),
    "cnn": ((3, 16, 16), lambda: build("cnn-cifar", (3, 16, 16), 3)),
    "norms of groups": (
        (1, 8, 8),
        lambda: nn.Sequential(
            nn.Conv2d(1, 6, 3), nn.GroupNorm(3, 6), nn.PReLU(6), nn.Conv2d(6, 4, 3, bias=False), nn.Sigmoid(),
            nn.InstanceNorm2d(4, affine=True), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 3),
        ),
    ),
    "depthwise": (
        (1, 8, 8),
        lambda: nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 8, 3, groups=4), nn.Sequential(nn.Flatten(), nn.Linear(128, 3))
        ),
    ),
    "features in turns": (
        (3, 8),
        lambda: nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 4), nn.Softplus(), nn.Flatten(), nn.Linear(12, 3)),
    ),
}  # fmt: skip


def prepared(name):
    torch.manual_seed(0)
    shape, module = STACKS[name]
    module = module().double()
    layout = Layout(module)
    return module, layout, NeuronMap.of(module, layout), torch.randn(5, *shape, dtype=torch.float64)


@given(st.sampled_from(sorted(STACKS)), st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=60)
def test_sliced_and_scattered_is_masked_bit_for_bit(name, random):
    module, layout, neurons, _ = prepared(name)
    mask = torch.tensor([[random.random() < 0.5 for _ in range(neurons.count)]])
    kept, row = neurons.parameter_mask(mask)[0], layout.row(module)
    values = slice_row(row, kept)
    assert values.shape == (int(kept.sum()),)
    assert torch.equal(scatter(values, kept), row * kept)
    assert torch.equal(scatter(values, kept, row).view(torch.int64), row.view(torch.int64))  # the bits themselves
    other = torch.randn_like(row)
    assert torch.equal(scatter(values, kept, other), torch.where(kept, row, other))
    assert torch.equal(slice_row(scatter(values, kept, other), kept), values)


def test_scattering_leaves_the_row_that_fills_in_as_it_was():
    fill = torch.zeros(3)
    scatter(torch.ones(1), torch.tensor([True, False, False]), fill)
    assert torch.equal(fill, torch.zeros(3))


@given(st.sampled_from(sorted(STACKS)), st.randoms(use_true_random=False), st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.0]))
@settings(deadline=None, max_examples=60)
def test_a_small_module_gives_the_outputs_of_the_masked_one(name, random, share):
    module, layout, neurons, x = prepared(name)
    mask = torch.tensor([random.random() < share for _ in range(neurons.count)])
    before = {key: value.clone() for key, value in module.state_dict().items()}
    small = small_module(module, neurons, mask)
    masked = functional_call(module, layout.views(layout.row(module) * neurons.parameter_mask(mask[None])[0]), (x,))
    assert (small(x) - masked).abs().max() < 1e-12
    assert all(torch.equal(value, before[key]) for key, value in module.state_dict().items())


def test_a_small_module_is_small_and_has_neurons_of_its_own():
    module, _, neurons, _ = prepared("mlp")
    mask = torch.tensor([1, 0, 1, 0, 0, 0, 1, 0, 0])
    small = small_module(module, neurons, mask)
    assert [tuple(value.shape) for value in small.parameters()] == [(2, 4), (2,), (1, 2), (1,), (3, 1), (3,)]
    assert [(part.in_features, part.out_features) for part in small if isinstance(part, nn.Linear)] == [
        (4, 2), (2, 1), (1, 3),
    ]  # fmt: skip
    assert NeuronMap.of(small, Layout(small)).count == 3


def test_a_small_module_keeps_what_is_frozen_frozen():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    module[0].requires_grad_(False)
    layout = Layout(module)
    small = small_module(module, NeuronMap.of(module, layout), torch.tensor([0, 1, 1]))
    assert [value.requires_grad for value in small.parameters()] == [False, False, True, True]
    assert torch.equal(small[0].weight, module[0].weight[1:])


class Doubled(nn.Module):
    def forward(self, x):
        return 2 * x


REFUSED = {
    "has a TransformerEncoderLayer": lambda: nn.Sequential(nn.TransformerEncoderLayer(8, 2, 4), nn.Linear(8, 3)),
    "has a GroupNorm without weights": lambda: nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4, affine=False), nn.Flatten(), nn.Linear(16, 2)
    ),
    "has a ChannelMask": lambda: build("resnet18", (1, 8, 8), 3, widths=(2, 2, 2, 2)),
    "has a Doubled": lambda: nn.Sequential(nn.Linear(4, 3), Doubled(), nn.Linear(3, 2)),
    "has a TextCNN": lambda: build("textcnn", (5,), 2, vocabulary=7),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_cannot_be_made_smaller_is_a_sentence(reason):
    module = REFUSED[reason]()
    neurons = NeuronMap.of(module, Layout(module))
    with pytest.raises(UsageError, match=rf"Only a plain nn.Sequential .*{reason}.*: use the masked"):
        small_module(module, neurons, torch.ones(neurons.count))


def test_neurons_of_a_layer_that_cannot_be_cut_are_a_sentence():
    module = nn.Sequential(nn.Embedding(7, 4), nn.Flatten(), nn.Linear(8, 2))
    neurons = NeuronMap([NeuronLayer("words", 7, made_by=("0.weight",))], Layout(module))
    with pytest.raises(UsageError, match=r"'0\.weight' belongs to a Embedding"):
        small_module(module, neurons, torch.ones(7))


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (lambda: slice_row(torch.zeros(3), torch.ones(4)), r"row of shape \(3,\).*mask of shape \(4,\)"),
        (lambda: scatter(torch.zeros(3), torch.tensor([True, False])), "1 entries that the mask keeps"),
        (lambda: scatter(torch.zeros(1), torch.tensor([True, False]), torch.zeros(3)), r"shape \(2,\), not \(3,\)"),
        (lambda: small_module(*[prepared("mlp")[i] for i in (0, 2)], torch.ones(4)), r"shape \(9,\), not \(4,\)"),
        (lambda: prefix_masks(torch.tensor([0, 2, 2]), torch.tensor([1])), "each of 0 to 2 once"),
    ],
)
def test_what_does_not_fit_is_a_sentence(wrong, sentence):
    with pytest.raises(UsageError, match=sentence):
        wrong()


class TestNestedMasks:
    @given(st.permutations(range(7)), st.lists(st.integers(0, 7), min_size=1, max_size=6))
    def test_prefixes_are_nested_and_their_order_is_found_again(self, order, counts):
        masks = prefix_masks(torch.tensor(order), torch.tensor(counts))
        assert masks.sum(1).tolist() == counts
        for mask, count in zip(masks, counts, strict=True):
            assert set(mask.nonzero()[:, 0].tolist()) == set(order[:count])
        found = nesting(masks)
        assert torch.equal(prefix_masks(found.order, found.counts), masks)

    @given(st.lists(st.lists(st.booleans(), min_size=4, max_size=4), min_size=1, max_size=4))
    def test_masks_are_nested_if_of_any_two_one_holds_the_other(self, rows):
        sets = [{i for i, kept in enumerate(row) if kept} for row in rows]
        nested = all(a <= b or b <= a for a in sets for b in sets)
        found = nesting(torch.tensor(rows))
        assert (found is not None) == nested
        if found is not None:
            assert torch.equal(prefix_masks(found.order, found.counts), torch.tensor(rows))
