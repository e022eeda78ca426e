import pytest
import torch
from torch import nn

from cofair.errors import UsageError
from cofair.models import build
from cofair.models.neuron_layers import NeuronLayer, Part
from cofair.models.parameters import Layout
from cofair.neurons.map import NeuronMap


def two_layers(frozen=False):
    module = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))
    if frozen:
        module[0].requires_grad_(False)
    return Layout(module)


HIDDEN = NeuronLayer("hidden", 3, made_by=("0.weight", "0.bias"), read_by=("2.weight",))


def test_leaving_a_neuron_out_takes_its_row_its_bias_and_its_column():
    layout = two_layers()
    mask = NeuronMap([HIDDEN], layout).parameter_mask(torch.tensor([[True, False, True]]))
    views = {name: view[0].int().tolist() for name, view in layout.views(mask).items()}
    assert views == {
        "0.weight": [[1, 1], [0, 0], [1, 1]],
        "0.bias": [1, 0, 1],
        "2.weight": [[1, 0, 1], [1, 0, 1]],
        "2.bias": [1, 1],
    }


def test_a_connection_between_two_neurons_needs_both():
    module = nn.Sequential(nn.Linear(1, 2), nn.ReLU(), nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1))
    layout = Layout(module)
    layers = [
        NeuronLayer("a", 2, made_by=("0.weight",), read_by=("2.weight",)),
        NeuronLayer("b", 2, made_by=("2.weight",), read_by=("4.weight",)),
    ]
    mask = NeuronMap(layers, layout).parameter_mask(torch.tensor([[1, 0, 0, 1]]))
    assert layout.views(mask)["2.weight"][0].int().tolist() == [[0, 0], [1, 0]]


def test_a_part_belongs_to_its_layer_and_the_rest_to_nobody():
    layout = two_layers()
    neurons = NeuronMap([NeuronLayer("some", 1, read_by=(Part("2.weight", 1, 3),))], layout)
    mask = neurons.parameter_mask(torch.tensor([[False]]))
    assert layout.views(mask)["2.weight"][0].int().tolist() == [[1, 0, 0], [1, 0, 0]]
    assert int((~mask).sum()) == 4


def test_frozen_parameters_of_a_neuron_are_masked_beside_the_row():
    layout = two_layers(frozen=True)
    neurons = NeuronMap([HIDDEN], layout)
    keep = torch.tensor([[True, False, True]])
    assert neurons.parameter_mask(keep).shape == (1, 2 * 3 + 2)
    frozen = neurons.frozen_masks(keep)
    assert frozen["0.weight"][0].int().tolist() == [[1, 1], [0, 0], [1, 1]]
    assert frozen["0.bias"][0].int().tolist() == [1, 0, 1]


@pytest.mark.parametrize(
    ("layer", "sentence"),
    [
        (NeuronLayer("hidden", 2, made_by=("0.weight",)), "'hidden' declares 2 neurons.*'0.weight'"),
        (NeuronLayer("hidden", 2, made_by=("5.weight",)), "no parameter '5.weight'"),
        (NeuronLayer("hidden", 2, read_by=(Part("2.weight", 2, 4),)), "cannot be divided"),
    ],
)
def test_a_declaration_that_does_not_fit_is_a_sentence(layer, sentence):
    with pytest.raises(UsageError, match=sentence):
        NeuronMap([layer], two_layers())


@pytest.mark.parametrize("module", [nn.Linear(2, 3), build("mlp", (4,), 3, hidden=())])
def test_a_module_without_neurons_has_no_map(module):
    assert NeuronMap.of(module, Layout(module)) is None


def test_a_module_with_a_number_called_neurons_declares_nothing():
    module = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))
    module.neurons = 16
    assert NeuronMap.of(module, Layout(module)).count == 3


@pytest.mark.parametrize("name", ["mlp", "cnn-cifar", "resnet18", "textcnn"])
def test_what_masks_keep_is_counted_without_making_them(name):
    shape, extra = ((12,), {"vocabulary": 30}) if name == "textcnn" else ((3, 32, 32), {})
    layout = Layout(build(name, shape, 3, **extra))
    neurons = NeuronMap.of(layout.prototype, layout)
    masks = torch.rand(4, neurons.count, generator=torch.Generator().manual_seed(0)) < torch.linspace(0, 1, 4)[:, None]
    assert neurons.kept_count(masks).tolist() == neurons.parameter_mask(masks).sum(1).tolist()


def test_frozen_parameters_and_those_of_nobody_are_counted_as_masks_have_them():
    for neurons in (
        NeuronMap([HIDDEN], two_layers(frozen=True)),
        NeuronMap([NeuronLayer("some", 1, read_by=(Part("2.weight", 1, 3),))], two_layers()),
    ):
        masks = torch.tensor([[True] * neurons.count, [False] * neurons.count])
        assert neurons.kept_count(masks).tolist() == neurons.parameter_mask(masks).sum(1).tolist()
