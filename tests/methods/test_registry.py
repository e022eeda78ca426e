import importlib.metadata
from pathlib import Path

import pytest
import torch
from torch import nn

import cofair
from cofair import methods
from cofair.engine.phases import TRAIN
from cofair.errors import UsageError
from cofair.methods import registry
from tests.conftest import uploads_of

EXAMPLE = Path(__file__).parents[2] / "examples" / "my_method.py"


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    """Forget the methods that a test registers."""
    monkeypatch.setattr(registry, "METHODS", dict(registry.METHODS))


def test_the_example_is_known_by_its_name_once_its_file_is_loaded():
    with pytest.raises(UsageError, match=r"Unknown method 'ranked'"):
        methods.make("ranked", {})
    methods.load_file(EXAMPLE)
    methods.load_file(EXAMPLE)  # once more does no harm
    assert methods.names()[-1] == "ranked"
    assert methods.make("ranked", {"least": 0.25}).least == 0.25
    with pytest.raises(UsageError, match=r"method.least must be at most 1"):
        methods.make("ranked", {"least": 2.0})


@pytest.mark.parametrize(
    ("contributions", "shares"),
    [([0.3, 0.1, 0.2], [1, 0.5, 0.75]), ([0.2, 0.1, 0.2], [1, 0.5, 1]), ([0.2, 0.2, 0.2], [1, 1, 1]), ([0.4], [1])],
)
def test_the_example_dilutes_by_rank_and_equal_contributions_alike(make_server, contributions, shares):
    methods.load_file(EXAMPLE)
    method = methods.make("ranked", {})
    server = make_server(contributions, module=nn.Linear(6, 3, bias=False))
    state = method.start(server)
    uploads = uploads_of([[2.0] * 18] * len(shares), [12] * len(shares))
    state = method.learn(server, state, method.rewards(server, state, 1, TRAIN), uploads, 1, TRAIN)
    gained = method.delivered(server, state).parameters - server.initial
    assert torch.allclose(gained, 2 * torch.tensor(shares, dtype=torch.float64)[:, None].expand(-1, 18))


def test_the_example_runs():
    methods.load_file(EXAMPLE)
    federation = cofair.federate("digits", "pow", clients=3)
    result = cofair.run(lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), federation, "ranked", rounds=2)
    assert len(result.rewards) == 3


def test_two_methods_cannot_have_one_name():
    class Other(methods.get("fedavg")):
        name = "cgsv"

    with pytest.raises(UsageError, match=r"There is a method 'cgsv' already"):
        methods.register(Other)


def test_installed_packages_offer_methods_by_an_entry_point(monkeypatch):
    class Entry:
        def load(self):
            methods.load_file(EXAMPLE)

    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: {"cofair.methods": [Entry()]}[group])
    methods.load_installed()
    assert "ranked" in methods.names()


def test_a_file_that_is_missing_or_fails_is_a_sentence(tmp_path):
    with pytest.raises(UsageError, match=r"Cannot load methods from .*: name a Python file"):
        methods.load_file(tmp_path / "nowhere.py")
    broken = tmp_path / "broken.py"
    broken.write_text("1 / 0")
    with pytest.raises(UsageError, match=r"Loading .* failed: ZeroDivisionError: division by zero"):
        methods.load_file(broken)
