from pathlib import Path

import pytest
import torch
from torch import nn

import cofair
from cofair.cli.command_inputs import experiment_of
from cofair.config.experiment import Experiment
from cofair.errors import UsageError
from tests.conftest import small_federation

QUICK = {"training": {"rounds": 3, "steps": 2}, "contribution": {"epochs": 1}}


def call_of(file):
    """The call that the sentence names where a file of a run with own data is given to the command line."""
    with pytest.raises(UsageError, match="came from Python: there it goes on with the same, ") as refused:
        experiment_of(file, {}, None)
    return str(refused.value).partition("with the same, ")[2].partition(". (To use")[0]


def test_a_run_of_own_data_trains_nothing_else_and_goes_on_by_the_call_that_is_named(tmp_path):
    federation, model = small_federation(), nn.Linear(6, 3, dtype=torch.float64)
    done = cofair.run(
        model, federation, "cgsv", rounds=3, steps=2, seed=4, lr=0.1, out=tmp_path / "run",
        contributions=[1, 2, 3, 4], method_settings={"beta": 3}, execution={"precision": "float64"},
    )  # fmt: skip
    call = call_of(tmp_path / "run" / "experiment.toml")
    names = {"cofair": cofair, "model": model, "federation": federation, "contributions": [1, 2, 3, 4]}
    again = eval(call, names)
    assert again.history == done.history
    (tmp_path / "run" / "summary.json").unlink()
    assert eval(call, names).accuracies == done.accuracies


def test_a_comparison_of_own_data_goes_on_by_the_call_that_is_named(tmp_path):
    federation = small_federation()
    done = cofair.compare(Experiment.from_dict(QUICK), ["standalone", "fedavg"], out=tmp_path, federation=federation)
    call = call_of(tmp_path / "fedavg-seed0" / "experiment.toml")
    again = eval(call, {"cofair": cofair, "Path": Path, "federation": federation})
    assert again.outcomes == tuple(done.of("fedavg"))


def test_a_file_that_has_left_its_folder_names_no_folder(tmp_path):
    cofair.run(nn.Linear(6, 3), small_federation(), rounds=1, contributions=[1, 2, 3, 4], out=tmp_path / "run")
    moved = tmp_path / "moved.toml"
    moved.write_text((tmp_path / "run" / "experiment.toml").read_text())
    assert call_of(moved) == "cofair.run(model, federation, 'fedavg', rounds=1, contributions=contributions)"
    moved.write_text(moved.read_text().partition("\n")[2])  # as the sentence says
    assert experiment_of(moved, {}, None).training.rounds == 1
