"""The models have the published sizes, run in a batch of clients, and declare neurons that can really be left out."""

from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F

from cofair.errors import UsageError
from cofair.models import MODELS, build, model_settings
from cofair.models.parameters import Layout
from cofair.neurons.map import NeuronMap


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """These models are tiny: on a busy machine threads wait for each other longer than they compute."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@dataclass(frozen=True)
class Case:
    """A model on small inputs, and for each layer of neurons the module whose output they are."""

    name: str
    shape: tuple[int, ...]
    activations: dict[str, str]
    settings: dict[str, object] = field(default_factory=dict)
    vocabulary: int | None = None

    def build(self, seed=0) -> nn.Module:
        torch.manual_seed(seed)
        return build(self.name, self.shape, 4, self.vocabulary, **self.settings).double().eval()

    def inputs(self, n=3) -> torch.Tensor:
        generator = torch.Generator().manual_seed(1)
        if self.vocabulary:
            return torch.randint(self.vocabulary, (n, *self.shape), generator=generator)
        return torch.randn(n, *self.shape, generator=generator, dtype=torch.float64)


MASKS = {"stem": "relu", "stage1": "stage1", "stage2": "stage2", "stage3": "stage3", "stage4": "average"}
FILTERS = {f"filters{i + 1}": f"convolutions.{i}" for i in range(3)}
CASES = {
    "mlp": Case("mlp", (1, 8, 8), {"hidden1": "2", "hidden2": "4"}),
    "mlp, three layers": Case("mlp", (6,), {"hidden1": "2", "hidden2": "4", "hidden3": "6"}, {"hidden": (5, 3, 4)}),
    "cnn-mnist": Case("cnn-mnist", (1, 28, 28), {"hidden1": "2", "hidden2": "5", "hidden3": "9"}),
    "cnn-mnist, digits": Case("cnn-mnist", (1, 8, 8), {"hidden1": "2", "hidden2": "5", "hidden3": "9"}),
    "cnn-cifar": Case("cnn-cifar", (3, 32, 32), {"hidden1": "1", "hidden2": "4", "hidden3": "8", "hidden4": "10"}),
    "cnn-cifar, oblong": Case(
        "cnn-cifar", (2, 20, 17), {"hidden1": "1", "hidden2": "4", "hidden3": "8", "hidden4": "10"}
    ),
    "resnet18, cifar": Case("resnet18", (3, 32, 32), MASKS, {"widths": (4, 6, 8, 10)}),
    "resnet18, tiny": Case("resnet18", (3, 16, 16), MASKS, {"variant": "tiny", "widths": (4, 6, 8, 10)}),
    "resnet18, emnist": Case("resnet18", (1, 28, 28), MASKS, {"variant": "emnist", "widths": (4, 6, 8, 10)}),
    "textcnn": Case(
        "textcnn",
        (7,),
        FILTERS,
        {"embedding": 6, "filters": 5},
        vocabulary=11,
    ),
    "textcnn, short": Case(
        "textcnn",
        (2,),
        FILTERS,
        {"embedding": 6, "filters": 5},
        vocabulary=11,
    ),
}
every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def parameters_of(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def loss(model, named, x):
    return F.cross_entropy(functional_call(model, named, (x,)), torch.arange(len(x)) % 4)


class TestPublishedSizes:
    @pytest.mark.parametrize(
        ("name", "shape", "classes", "settings", "parameters", "neurons"),
        [
            ("mlp", (3, 32, 32), 10, {}, 3072 * 200 + 200 + 200 * 200 + 200 + 2010, 400),
            ("mlp", (1, 28, 28), 62, {}, 784 * 200 + 200 + 200 * 200 + 200 + 200 * 62 + 62, 400),
            ("cnn-mnist", (1, 28, 28), 10, {}, 104_242, 64 + 16 + 200),
            ("cnn-mnist", (1, 32, 32), 10, {}, 104_242, 64 + 16 + 200),
            ("cnn-cifar", (3, 32, 32), 10, {}, 121_182, 16 + 32 + 120 + 84),
            # torchvision's ResNet-18 has 11,689,512 parameters with 1000 classes and a 7×7 stem of 9,408
            ("resnet18", (3, 32, 32), 10, {}, 11_689_512 - 990 * 513, 1024),
            ("resnet18", (3, 32, 32), 200, {"variant": "tiny"}, 11_689_512 - 800 * 513 - 9408 + 1728, 1024),
            ("resnet18", (1, 28, 28), 26, {"variant": "emnist"}, 11_689_512 - 974 * 513 - 9408 + 3136, 1024),
        ],
    )
    def test_parameters_and_neurons(self, name, shape, classes, settings, parameters, neurons):
        model = build(name, shape, classes, **settings)
        assert parameters_of(model) == parameters
        assert sum(layer.count for layer in model.neurons()) == neurons

    def test_textcnn(self):
        model = build("textcnn", (30,), 2, vocabulary=1000)
        assert parameters_of(model) == 1000 * 300 + 3 * (128 * 300 * 3 + 128) + 384 * 2 + 2
        assert sum(layer.count for layer in model.neurons()) == 384
        assert model.dropout.p == 0.5

    def test_mlp_is_a_plain_stack_with_pytorchs_own_start(self):
        torch.manual_seed(3)
        model = build("mlp", (2, 3), 5, hidden=[4])
        torch.manual_seed(3)
        first, last = nn.Linear(6, 4), nn.Linear(4, 5)
        assert isinstance(model, nn.Sequential)
        assert [type(part) for part in model] == [nn.Flatten, nn.Linear, nn.ReLU, nn.Linear]
        assert torch.equal(model[1].weight, first.weight)
        assert torch.equal(model[3].bias, last.bias)

    @pytest.mark.parametrize(
        ("variant", "sides"), [("cifar", (16, 16, 2)), ("tiny", (32, 32, 4)), ("emnist", (16, 8, 1))]
    )
    def test_resnet_stems_see_32x32(self, variant, sides):
        model = build("resnet18", (1, 28, 28) if variant == "emnist" else (3, 32, 32), 26, variant=variant)
        seen = {}
        for name in ("relu", "stage1", "stage4"):
            model.get_submodule(name).register_forward_hook(
                lambda _, __, out, name=name: seen.update({name: out.shape[-1]})
            )
        model(torch.zeros(1, *((1, 28, 28) if variant == "emnist" else (3, 32, 32))))
        assert tuple(seen.values()) == sides

    def test_resnet_starts_as_its_authors_start_it(self):
        for variant, spread in [("cifar", (2 / (64 * 9)) ** 0.5), ("tiny", (3 * 64 * 9) ** -0.5)]:
            convolution = build("resnet18", (3, 32, 32), 10, variant=variant).stage1[0].residual[0]
            assert convolution.weight.std().item() == pytest.approx(spread, rel=0.03)

    def test_every_norm_has_two_groups(self):
        norms = [part for part in build("resnet18", (3, 32, 32), 10).modules() if isinstance(part, nn.GroupNorm)]
        assert len(norms) == 20
        assert {norm.num_groups for norm in norms} == {2}


class TestInputs:
    def test_padding_inside_is_padding_outside(self):
        x = torch.randn(2, 1, 28, 28)
        torch.manual_seed(0)
        inside = build("cnn-mnist", (1, 28, 28), 10, pad_value=-0.4)
        torch.manual_seed(0)
        outside = build("cnn-mnist", (1, 32, 32), 10)
        torch.testing.assert_close(inside(x), outside(F.pad(x, (2, 2, 2, 2), value=-0.4)))
        torch.manual_seed(0)
        inside = build("resnet18", (1, 27, 27), 10, variant="emnist", widths=(4, 6, 8, 10), pad_value=-0.4)
        torch.manual_seed(0)
        outside = build("resnet18", (1, 32, 32), 10, variant="emnist", widths=(4, 6, 8, 10))
        torch.testing.assert_close(inside(x[..., 1:, 1:]), outside(F.pad(x[..., 1:, 1:], (2, 3, 2, 3), value=-0.4)))

    def test_a_short_text_is_padded_by_words_that_mean_nothing(self):
        model = CASES["textcnn"].build()
        x = torch.tensor([[3, 5], [9, 9]])
        words = F.pad(model.embedding(x), (0, 0, 0, 1)).transpose(1, 2)  # a third word: the zero vector
        expected = model.head(torch.cat([one(words).relu().amax(-1) for one in model.convolutions], -1))
        assert torch.equal(model(x), expected)

    def test_textcnn_without_dropout_is_the_same_while_training(self):
        torch.manual_seed(0)
        model = build("textcnn", (5,), 2, vocabulary=9, dropout=0.0).train()
        x = torch.randint(9, (3, 5))
        assert torch.equal(model(x), model(x))


class TestManyClientsAtOnce:
    @every_case
    def test_vmap_over_clients_is_each_client(self, case):
        model, x = case.build(), case.inputs()
        layout = Layout(model)
        rows = torch.stack([layout.row(model), layout.row(case.build(seed=5))])
        neurons = NeuronMap.of(model, layout)
        masks = torch.ones(2, neurons.count)
        masks[1, ::2] = 0
        extras = {name: mask.double() for name, mask in neurons.activation_masks(masks).items()}
        rows = rows * neurons.parameter_mask(masks)

        def both(named, buffers):
            def of(named):
                return loss(model, {**named, **buffers}, x)

            return of(named), layout.flatten(grad(of)(named))

        with torch.no_grad():
            together = vmap(both)(layout.views(rows), extras)
        for i in range(2):
            alone = both(
                {name: value[i] for name, value in layout.views(rows).items()},
                {name: value[i] for name, value in extras.items()},
            )
            torch.testing.assert_close(together[0][i], alone[0])
            torch.testing.assert_close(together[1][i], alone[1])


class TestNeurons:
    @every_case
    def test_leaving_a_neuron_out_is_silencing_it(self, case):
        """Masked parameters give the outputs and gradients of a unit whose activation is zeroed by a hook."""
        model, x = case.build(), case.inputs()
        layout = Layout(model)
        neurons = NeuronMap.of(model, layout)
        named = dict(model.named_parameters())
        full = functional_call(model, named, (x,))
        assert [layer.name for layer in neurons.layers] == list(case.activations)
        for layer, where in zip(neurons.layers, neurons.slices, strict=True):
            change = 0.0
            for unit in {0, layer.count // 2, layer.count - 1}:

                def silence(_, __, output, unit=unit):
                    keep = torch.ones(output.shape[1], dtype=output.dtype)
                    keep[unit] = 0
                    return output * keep.view(-1, *[1] * (output.dim() - 2))

                hook = model.get_submodule(case.activations[layer.name]).register_forward_hook(silence)
                silent = functional_call(model, named, (x,))
                silent_gradient = layout.flatten(grad(lambda named: loss(model, named, x))(named))
                hook.remove()

                mask = torch.ones(1, neurons.count)
                mask[0, where.start + unit] = 0
                kept = neurons.parameter_mask(mask)[0]
                extras = {name: value[0].double() for name, value in neurons.activation_masks(mask).items()}

                def masked(row, kept=kept, extras=extras):
                    return {**layout.views(row * kept), **extras}

                row = layout.row(model)
                torch.testing.assert_close(functional_call(model, masked(row), (x,)), silent)
                gradient = grad(lambda row, masked=masked: loss(model, masked(row), x))(row)
                torch.testing.assert_close(gradient, silent_gradient)
                if layer.mask is None:
                    assert not kept.all()
                    assert (gradient[~kept] == 0).all()
                    assert (gradient[kept] != 0).any()
                change = max(change, (silent - full).abs().max().item())
            assert change > 0  # or the test would say nothing

    @pytest.mark.parametrize(
        ("name", "owned"),
        [
            ("mlp", [64 + 1 + 200, 200 + 1 + 4]),
            ("cnn-mnist", [9 + 1 + 16 * 49, 64 * 49 + 1 + 200 * 16, 256 + 1 + 4]),
            ("cnn-cifar", [75 + 1 + 32 * 25, 16 * 25 + 1 + 120 * 25, 800 + 1 + 84, 120 + 1 + 4]),
            ("resnet18, cifar", [0, 0, 0, 0, 0]),
            ("textcnn", [6 * 3 + 1 + 4] * 3),
        ],
    )
    def test_a_neuron_owns_what_makes_it_and_what_reads_it(self, name, owned):
        model = CASES[name].build()
        layout = Layout(model)
        neurons = NeuronMap.of(model, layout)
        masks = 1 - torch.eye(neurons.count)
        for where, expected in zip(neurons.slices, owned, strict=True):
            removed = ~neurons.parameter_mask(masks[[where.start, where.stop - 1]])
            assert removed.sum(1).tolist() == [expected, expected]

    @every_case
    def test_without_its_last_layer_only_the_output_biases_are_left(self, case):
        model, x = case.build(), case.inputs()
        layout = Layout(model)
        neurons = NeuronMap.of(model, layout)
        mask = torch.ones(1, neurons.count)
        # the filters of a text network are one layer in three parts
        mask[0, 0 if case.name == "textcnn" else neurons.slices[-1].start :] = 0
        named = layout.views(layout.row(model) * neurons.parameter_mask(mask)[0])
        extras = {name: value[0].double() for name, value in neurons.activation_masks(mask).items()}
        bias = list(model.parameters())[-1]
        got = functional_call(model, {**named, **extras}, (x,))
        assert torch.equal(got, bias.expand_as(got))

    @given(st.lists(st.booleans(), min_size=9, max_size=9), st.integers(0, 50))
    @settings(deadline=None, max_examples=25)
    def test_a_masked_mlp_is_the_smaller_mlp(self, kept, seed):
        case = Case("mlp", (4,), {}, {"hidden": (5, 4)})
        model, x = case.build(seed), case.inputs()
        mask = torch.tensor([kept])
        layout = Layout(model)
        named = layout.views(layout.row(model) * NeuronMap.of(model, layout).parameter_mask(mask)[0])
        first, second = mask[0, :5], mask[0, 5:]
        with torch.no_grad():
            h = F.linear(x, model[1].weight[first], model[1].bias[first]).relu()
            h = F.linear(h, model[3].weight[second][:, first], model[3].bias[second]).relu()
            torch.testing.assert_close(
                functional_call(model, named, (x,)), F.linear(h, model[5].weight[:, second], model[5].bias)
            )

    def test_a_channel_mask_of_ones_changes_nothing(self):
        model, x = CASES["resnet18, cifar"].build(), CASES["resnet18, cifar"].inputs()
        assert {name for name, _ in model.named_buffers()} == {layer.mask for layer in model.neurons()}
        for _, buffer in model.named_buffers():
            assert torch.equal(buffer, torch.ones_like(buffer))
        bare = nn.Sequential(*(part for name, part in model.named_children() if not name.startswith("mask")))
        assert torch.equal(model(x), bare(x))


class TestRefusals:
    @pytest.mark.parametrize(
        ("arguments", "settings", "sentence"),
        [
            (("resnet", (3, 32, 32), 10), {}, "did you mean 'resnet18'"),
            (("mlp", (4,), 10), {"hiden": (3,)}, "no setting 'hiden': did you mean 'hidden'"),
            (("mlp", (4,), 10), {"hidden": (3, 0)}, "widths from 1"),
            (("mlp", (4,), 10), {"hidden": 200}, r"hidden = 200: give a list"),
            (("mlp", (4,), 1), {}, "at least 2"),
            (("mlp", (), 3), {}, "every side"),
            (("mlp", (4,), 2, 100), {}, "choose 'textcnn'"),
            (("textcnn", (4,), 2), {}, "needs the size of their vocabulary"),
            (("textcnn", (1, 8, 8), 2, 100), {}, r"shape \(1, 8, 8\)"),
            (("textcnn", (4,), 2, 100), {"dropout": 1.0}, "below 1"),
            (("cnn-mnist", (64,), 10), {}, "needs images"),
            (("resnet18", (64,), 10), {}, "needs images"),
            (("cnn-mnist", (1, 8, 8), 10), {"pad": 4}, "at least 18×18: leave pad out or set it to 5"),
            (("cnn-cifar", (3, 32, 32), 10), {"pad": -1}, "pad = -1"),
            (("resnet18", (3, 32, 32), 10), {"variant": "cifr"}, "did you mean 'cifar'"),
            (("resnet18", (3, 32, 32), 10), {"widths": (4, 6, 8)}, "four channel counts"),
            (("resnet18", (3, 32, 32), 10), {"widths": (4, 6, 8, 9)}, "a multiple of 2"),
        ],
    )
    def test_a_wrong_model_is_one_sentence(self, arguments, settings, sentence):
        with pytest.raises(UsageError, match=sentence):
            build(*arguments, **settings)

    def test_settings_are_listed_with_their_defaults(self):
        assert model_settings("mlp") == {"hidden": (200, 200)}
        assert model_settings("resnet18") == {"variant": "cifar", "widths": (64, 128, 256, 512), "pad_value": 0.0}
        assert all(model_settings(name) for name in MODELS)
