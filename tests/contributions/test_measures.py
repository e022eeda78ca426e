import pytest
import torch
from torch import nn

import cofair
from cofair.config.experiment import Experiment
from cofair.contributions import MEASURES, Measure, cosine, find, measure
from cofair.contributions.diversity import classes_held, label_entropy
from cofair.contributions.size import relative_sizes
from cofair.errors import RunError, UsageError
from cofair.models import build

NAMES = list(MEASURES)


def model():
    return build("mlp", (1, 8, 8), 10, hidden=(16,))


def contributions(federation, name, **settings):
    result = cofair.run(
        model, federation, rounds=1, steps=1, lr=0.1, contribution={"measure": name, "epochs": 3, **settings}
    )
    return torch.tensor(result.contributions, dtype=torch.float64)


@pytest.fixture(scope="module")
def federation():
    return cofair.federate("digits", "pow", clients=4)


@pytest.fixture(scope="module")
def measured(federation):
    return {name: contributions(federation, name) for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_settings_take_every_measure(name):
    assert Experiment.from_dict({"contribution": {"measure": name}}).contribution.measure == name


@pytest.mark.parametrize("name", NAMES)
def test_any_measure_gives_one_finite_number_a_client(measured, name):
    assert measured[name].shape == (4,)
    assert torch.isfinite(measured[name]).all()
    assert len(set(measured[name].tolist())) > 1 or name in ("diversity", "entropy")


@pytest.mark.parametrize("name", NAMES)
def test_the_same_seed_gives_the_same_contributions(federation, measured, name):
    assert contributions(federation, name).tolist() == measured[name].tolist()


@pytest.mark.parametrize("name", NAMES)
def test_permuting_clients_permutes_their_contributions(name):
    """Ten clients, of which random orders are drawn, and draws follow the clients' names."""
    random = torch.Generator().manual_seed(0)
    x = torch.randn(1200, 5, generator=random, dtype=torch.float64)
    y = (x @ torch.randn(5, generator=random, dtype=torch.float64) > 0).long()
    sizes = [150, 20, 90, 30, 200, 140, 70, 110, 130, 60]
    shares = list(zip(x[:1000].split(sizes), y[:1000].split(sizes), strict=True))
    torch.manual_seed(0)
    module, found = nn.Linear(5, 2).double(), []
    rest = (x[1000:], y[1000:])
    for order in (list(range(10)), [3, 9, 0, 4, 8, 1, 7, 2, 6, 5]):
        federation = cofair.Federation(
            [shares[i] for i in order], test=rest, validation=rest, names=[f"client {i}" for i in order]
        )
        result = cofair.run(
            module, federation, rounds=1, steps=1, execution={"precision": "float64"},
            contribution={"measure": name, "epochs": 1, "permutations": 5},
        )  # fmt: skip
        found.append([result.contributions[order.index(i)] for i in range(10)])
    assert found[1] == pytest.approx(found[0], abs=1e-9)


def test_measures_of_what_clients_bring_rank_the_largest_above_the_smallest(measured):
    # the scene `pow` gives the first client the fewest samples and the last the most
    for name in ("standalone", "cosine", "cosine-exact", "cosine-sampled", "index", "size"):
        assert measured[name][-1] > measured[name][0], name


def test_cosine_values_are_those_of_the_models_trained_alone(federation, measured):
    assert float(measured["cosine-exact"].sum()) == pytest.approx(1)
    # with four clients all 24 orders are used
    assert torch.allclose(measured["cosine-exact"], measured["cosine-sampled"], atol=1e-9)


def test_cosines_weigh_by_samples():
    random = torch.Generator().manual_seed(0)
    x = torch.randn(60, 5, generator=random, dtype=torch.float64)
    y = (x @ torch.randn(5, generator=random, dtype=torch.float64) > 0).long()
    sizes = [30, 20, 7, 3]
    shares = list(zip(x.split(sizes), y.split(sizes), strict=True))
    torch.manual_seed(0)
    module = nn.Linear(5, 2).double()
    start = nn.utils.parameters_to_vector(module.parameters()).detach().clone()
    for name, expected in {"cosine": cosine.approximate, "cosine-exact": cosine.exact}.items():
        result = cofair.run(
            module, cofair.Federation(shares, test=(x, y)), "standalone",
            contribution={"measure": name, "epochs": 2}, execution={"precision": "float64"},
        )  # fmt: skip
        alone = torch.stack([nn.utils.parameters_to_vector(one.parameters()) for one in result.rewards]).detach()
        values = expected(alone - start, torch.tensor(sizes) / 60)
        assert result.contributions == pytest.approx(values.tolist(), abs=1e-6)


@pytest.mark.parametrize("name", ["index", "leave-one-out", "divergence"])
def test_coalitions_are_judged_on_the_validation_set_and_never_on_the_test_set(federation, measured, name):
    assert contributions(federation, name, on="validation").tolist() == measured[name].tolist()
    assert contributions(federation, "standalone", on="validation").tolist() != measured["standalone"].tolist()


def test_sizes_are_relative_to_the_largest(federation, measured):
    assert measured["size"].tolist() == (federation.sizes / federation.sizes.max().double()).tolist()
    assert relative_sizes(torch.tensor([0, 5, 20])).tolist() == [0, 0.25, 1]
    assert relative_sizes(torch.tensor([0])).tolist() == [0]


def test_label_diversity_by_hand():
    counts = torch.tensor([[5, 5, 0, 0], [1, 0, 0, 0], [3, 3, 3, 3], [0, 0, 0, 0]])
    assert classes_held(counts).tolist() == [0.5, 0.25, 1, 0]
    assert label_entropy(counts).tolist() == pytest.approx([0.5, 0, 1, 0])
    assert label_entropy(torch.tensor([[7]])).tolist() == [0]


def test_diversity_counts_the_classes_a_client_holds():
    federation = cofair.federate("digits", "cla", clients=5, samples=40)
    assert contributions(federation, "diversity").tolist() == pytest.approx([0.1, 0.3, 0.5, 0.7, 1.0])
    assert contributions(federation, "entropy").argsort().tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("name", NAMES)
def test_without_a_validation_set_measures_that_need_one_say_so(name):
    federation = cofair.federate("digits", "pow", clients=3, validation=0)
    if MEASURES[name].needs_validation:
        with pytest.raises(UsageError, match=f"The contribution '{name}' needs a validation set at the server"):
            contributions(federation, name)
    else:
        assert len(contributions(federation, name)) == 3


@pytest.mark.parametrize("name", [name for name in NAMES if name != "standalone"])
def test_an_empty_client_brings_nothing(name):
    random = torch.Generator().manual_seed(0)
    x = torch.randn(60, 5, generator=random)
    y = (x[:, 0] > 0).long()
    empty = (x[:0], y[:0])
    federation = cofair.Federation([(x[:30], y[:30]), empty, (x[30:], y[30:])], test=(x, y), validation=(x, y))
    settings = {"measure": name, "epochs": 3}
    result = cofair.run(lambda: nn.Linear(5, 2), federation, rounds=1, steps=1, contribution=settings)
    assert result.contributions[1] == 0


@pytest.mark.parametrize("name", NAMES)
def test_one_client_alone_is_defined(name):
    random = torch.Generator().manual_seed(0)
    x = torch.randn(200, 5, generator=random)
    y = (x[:, 0] > 0).long()
    federation = cofair.Federation([(x, y)], test=(x, y), validation=(x, y))
    settings = {"measure": name, "epochs": 3}
    result = cofair.run(lambda: nn.Linear(5, 2), federation, rounds=1, steps=1, contribution=settings)
    expected = {"cosine": 1, "cosine-exact": 1, "cosine-sampled": 1, "size": 1, "diversity": 1, "divergence": 1}
    if name in expected:
        assert result.contributions[0] == pytest.approx(expected[name])


def test_diversity_of_labels_that_are_no_classes_is_refused():
    x = torch.randn(20, 5, generator=torch.Generator().manual_seed(0))
    federation = cofair.Federation([(x, x[:, :1])] * 2, test=(x, x[:, :1]))
    with pytest.raises(UsageError, match="labels are not classes"):
        cofair.run(
            nn.Linear(5, 1), federation, rounds=1, loss="squared_error", contribution={"measure": "diversity"},
            metric=lambda outputs, y: -(outputs - y).square().mean(),
        )  # fmt: skip


def test_an_unknown_measure_is_refused(federation):
    with pytest.raises(UsageError, match=r"contribution.measure = 'sizes' is not a choice: did you mean 'size'\?"):
        contributions(federation, "sizes")
    with pytest.raises(UsageError, match=r"Unknown measure of contribution 'sizes': did you mean 'size'\?"):
        find("sizes")


def test_a_measure_that_is_not_finite_is_a_sentence(monkeypatch):
    broken = Measure(lambda given: torch.tensor([1.0, torch.nan]), needs_training=False)
    monkeypatch.setitem(MEASURES, "broken", broken)
    with pytest.raises(RunError, match="The contribution 'broken' of some client is not a finite number"):
        measure("broken", "test", None, None, None, None)


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_a_gpu_measures_the_same(federation, measured, name):
    settings = {"measure": name, "epochs": 3}
    result = cofair.run(
        model, federation, rounds=1, steps=1, lr=0.1, contribution=settings, execution={"device": "cuda"}
    )
    assert result.contributions == pytest.approx(measured[name].tolist(), abs=0.02)
