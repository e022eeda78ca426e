"""What holds for every method, ours and those to come."""

import dataclasses
import json
from fractions import Fraction
from pathlib import Path

import pytest
import torch

from cofair import methods
from cofair.config.experiment import Experiment
from cofair.data.federation import Federation
from cofair.errors import RunError
from cofair.models import build
from cofair.settings import describe
from tests.driving import prepare, rounds

methods.load_installed()
every_method = pytest.mark.parametrize("name", methods.names())
OURS = {f"cofair.methods.{file.stem}" for file in Path(methods.__file__).parent.glob("*.py")}
PAGES = Path(__file__).parents[2] / "docs" / "methods"
CLASSES = 3


def shares(sizes, seed=0):
    random = torch.Generator().manual_seed(seed)
    centres = torch.randn(CLASSES, 6, generator=random)

    def samples(n):
        y = torch.randint(0, CLASSES, (n,), generator=random)
        return centres[y] + 0.8 * torch.randn(n, 6, generator=random), y

    return [samples(n) for n in sizes], samples(60), samples(40)


def mlp():
    torch.manual_seed(0)
    return build("mlp", (6,), CLASSES, hidden=(10, 6))


def run(name, sizes=(8, 30, 70, 20), order=None, contributions=None, last=4, module=None, **tables):
    clients, validation, test = shares(sizes)
    order = list(range(len(sizes))) if order is None else order
    federation = Federation(
        [clients[i] for i in order], validation=validation, test=test, names=[f"client {i}" for i in order],
        classes=CLASSES,
    )  # fmt: skip
    settings = {
        "training": {"rounds": last, "steps": 3, "batch_size": 8, "lr": 0.1},
        "contribution": {"epochs": 4},
        "run": {"precision": "float64", "engine": "vectorised"},
        "method": {"name": name},
    }
    for table, values in tables.items():
        settings[table] = settings.get(table, {}) | values
    given = None if contributions is None else torch.tensor(contributions, dtype=torch.float64)
    prepared = prepare(
        Experiment.from_dict(settings), federation=federation, model=module or mlp(), contributions=given
    )
    return rounds(prepared), prepared


def rows(delivered, prepared):
    parameters = delivered.parameters.expand(prepared.server.clients, -1)
    if delivered.neuron_masks is not None:
        parameters = parameters * prepared.server.neurons.parameter_mask(delivered.neuron_masks)
    return parameters


@every_method
def test_engines_agree(name):
    results = {engine: run(name, run={"engine": engine}) for engine in ("loop", "vectorised")}
    for (one, loop), (other, vectorised) in zip(results["loop"][0], results["vectorised"][0], strict=True):
        difference = rows(loop, results["loop"][1]) - rows(vectorised, results["vectorised"][1])
        assert float(difference.abs().max()) < 1e-9
        assert one.accuracies == other.accuracies


@every_method
def test_permuting_clients_permutes_everything(name):
    order = [2, 0, 3, 1]
    plain, prepared = run(name)
    permuted, again = run(name, order=order)
    assert again.server.contributions.tolist() == pytest.approx(prepared.server.contributions[order].tolist())
    for (one, before), (other, after) in zip(plain, permuted, strict=True):
        assert torch.allclose(rows(after, again), rows(before, prepared)[order], atol=1e-9)
        assert other.accuracies == pytest.approx([one.accuracies[i] for i in order])
        assert other.download == pytest.approx([one.download[i] for i in order])


@every_method
@pytest.mark.parametrize(
    "given",
    [
        {"sizes": (40,)},
        {"sizes": (30, 0, 20), "contributions": [0.4, 0.3, 0.5]},
        {"sizes": (20, 20, 20), "contributions": [0.5, 0.5, 0.5]},
        {"sizes": (20, 20, 20), "contributions": [0.0, 0.0, 0.0]},
        {"sizes": (20, 20, 20), "contributions": [0.0, 1e-9, 1.0]},
    ],
    ids=["one client", "an empty client", "equal contributions", "no contributions", "far apart"],
)
def test_odd_federations_are_harmless(name, given):
    tested, prepared = run(name, **given)
    for record, delivered in tested:
        assert bool(torch.isfinite(rows(delivered, prepared)).all())
        assert all(0 <= share <= 2 for share in record.download)
        assert record.reputation is None or all(value == value for value in record.reputation)


@every_method
def test_updates_that_are_not_finite_end_in_a_sentence_and_never_in_rewards(name):
    with pytest.raises(RunError, match=r"diverged|is not finite"):
        run(name, contributions=[0.1, 0.2, 0.3, 0.4], training={"lr": 1e200})


@every_method
def test_rewards_read_the_state_and_do_not_change_it(name):
    _, prepared = run(name, last=1)
    method, server = prepared.experiment.method, prepared.server
    state = method.start(server)
    before = {
        f.name: value.clone()
        for f in dataclasses.fields(state)
        if isinstance(value := getattr(state, f.name), torch.Tensor)
    }
    for phase in method.phases(server, 1):
        first, again = (method.rewards(server, state, 1, phase) for _ in range(2))
        assert torch.equal(first.parameters, again.parameters)
    assert all(torch.equal(getattr(state, key), value) for key, value in before.items())


@every_method
def test_every_setting_is_explained_and_its_default_is_valid(name):
    cls = methods.get(name)
    assert cls.paper
    assert (cls.__doc__ or "").strip()
    settings = describe(cls)
    assert all(setting.text for setting in settings)
    assert methods.make(name, {setting.name: setting.default for setting in settings}) == cls()


@pytest.mark.parametrize("name", [name for name in methods.names() if methods.get(name).__module__ in OURS])
def test_the_page_of_a_method_lists_every_setting_with_its_default(name):
    page = (PAGES / f"{methods.get(name).__module__.rpartition('.')[2]}.md").read_text()
    rows = [[cell.strip() for cell in line.split("|")[1:3]] for line in page.splitlines() if line.startswith("| `")]
    for setting in describe(methods.get(name)):
        found = [(left.split(", "), right) for left, right in rows if f"`{setting.name}`" in left]
        assert found, setting.name
        keys, cell = found[0]
        defaults = cell.split(", ") if len(keys) > 1 else [cell]
        given = dict(zip((key.split()[0] for key in keys), defaults, strict=True))[f"`{setting.name}`"]
        if isinstance(setting.default, float):
            assert float(Fraction(given)) == pytest.approx(setting.default)
        else:
            assert given == ("none" if setting.default is None else json.dumps(setting.default))


@every_method
def test_the_true_contributions_can_decide(name):
    if "reputation_from" not in {setting.name for setting in describe(methods.get(name))}:
        pytest.skip("has no reputation of its own, or always uses the contributions")
    tested, _ = run(name, method={"reputation_from": "contributions"}, last=6)
    assert all(value == value for value in tested[-1][0].reputation or [])
