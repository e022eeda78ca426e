import tomllib

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import cofair
from cofair.config.experiment import Experiment
from cofair.errors import UsageError
from cofair.methods.fedavg import FedAvg
from tests.driving import prepare


def experiment(tmp_path, text, *overrides):
    path = tmp_path / "experiment.toml"
    path.write_text(text)
    return Experiment.from_file(path, overrides)


def test_an_empty_file_is_the_default_experiment(tmp_path):
    made = experiment(tmp_path, "")
    assert made == Experiment()
    work = made.training.work()
    assert (work.steps, work.epochs, work.batch_size, work.lr, work.clip) == (15, None, 32, 0.03, None)


def test_settings_come_from_the_file_and_overrides_win(tmp_path):
    made = experiment(
        tmp_path,
        '[federation]\nscene = "cla"\n[training]\nlr = 0.1\nepochs = 2\n[method]\nname = "fedavg"\ncarry_over = true\n',
        "training.lr=0.2",
        "method.personalise_units=3",
        "training.clip=none",
        "model.hidden=[10]",
    )
    assert made.federation.scene == "cla"
    assert (made.training.work().lr, made.training.work().steps, made.training.work().epochs) == (0.2, None, 2)
    assert made.training.work().clip is None
    assert made.method == FedAvg(personalise_units=3, carry_over=True)
    assert made.model.hidden == (10,)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[trainin]\nlr = 1", r"Unknown table 'trainin': did you mean 'training'\?"),
        ("[training]\nlearning_rate = 1", "Unknown setting 'training.learning_rate'"),
        ("[training]\nlr = 'fast'", "training.lr must be a number, but is 'fast'"),
        ("[training]\nlr = -1", "training.lr must be above 0, but is -1"),
        ("[training]\nsteps = 3\nepochs = 3", "either steps or epochs"),
        ("[method]\nname = 'fedavgg'", r"Unknown method 'fedavgg': did you mean 'fedavg'\?"),
        ("[method]\nname = 3", "method.name must be text"),
        ("[method]\nname = 'fedavg'\nbeta = 3", "Unknown setting 'method.beta'"),
        ("[method]\nname = 'standalone'\nbeta = 3", "Unknown setting 'method.beta': there are none"),
        ("training = 3", "'training' must be a table"),
        ("[training", "is not valid TOML"),
        ("[run]\nengine = 'loops'", r"run.engine = 'loops' is not a choice: did you mean 'loop'\?"),
    ],
)
def test_a_wrong_file_is_refused_in_a_sentence(tmp_path, text, sentence):
    with pytest.raises(UsageError, match=sentence):
        experiment(tmp_path, text)


@pytest.mark.parametrize("text", ["lr=1", "training.lr", "=1", "training.=1", ".lr=1"])
def test_an_override_of_a_wrong_form_is_refused(tmp_path, text):
    with pytest.raises(UsageError, match=r"table\.key=value"):
        experiment(tmp_path, "", text)


def test_a_missing_file_is_a_sentence(tmp_path):
    with pytest.raises(UsageError, match="Cannot read the experiment"):
        Experiment.from_file(tmp_path / "none.toml")


@given(
    lr=st.floats(1e-6, 10), clip=st.none() | st.floats(0.01, 5), seed=st.integers(0, 2**40),
    data=st.text(min_size=0, max_size=20), noise=st.lists(st.floats(0, 1), max_size=4), carry=st.booleans(),
)  # fmt: skip
def test_a_resolved_experiment_reads_back_as_itself(lr, clip, seed, data, noise, carry):
    made = Experiment.from_dict(
        {
            "training": {"lr": lr, "clip": clip},
            "run": {"seed": seed},
            "federation": {"data": data, "noise": noise},
            "method": {"name": "fedavg", "carry_over": carry},
        }
    )
    again = Experiment.from_dict(tomllib.loads(made.to_toml()))
    assert again.to_dict() == made.to_dict()
    assert again.training.lr == lr
    assert again.federation.data == data


def test_settings_of_a_model_reach_it():
    federation = cofair.federate("digits", "uni", clients=2)
    chosen = Experiment.from_dict({"model": {"name": "cnn-cifar", "pad_value": -0.5, "hidden": [7]}})
    module = prepare(chosen, federation=federation, contributions=torch.ones(2)).problem.layout.prototype
    assert [part.value for part in module.modules() if isinstance(part, nn.ConstantPad2d)] == [-0.5]
    chosen = Experiment.from_dict({"model": {"hidden": [7]}})
    module = prepare(chosen, federation=federation, contributions=torch.ones(2)).problem.layout.prototype
    assert [part.out_features for part in module.modules() if isinstance(part, nn.Linear)] == [7, 10]
