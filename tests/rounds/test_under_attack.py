"""Attacks, defences and changing participation in whole runs: in lockstep, and after an interruption."""

import tomllib

import pytest
import torch

from cofair.config.experiment import Experiment
from cofair.report.reported_runs import read_run
from cofair.runs.lockstep_batch import run_in_lockstep
from cofair.runs.single import run_experiment
from tests.driving import Heard, collected
from tests.methods.test_every_method import rows, run
from tests.runs.test_sweep import SMALL, jobs_of

STORM = {
    "attack": {"name": "echo", "clients": [1]},
    "participation": {"dropout": 0.3},
    "defence": {"norm_bound": 1.5, "threshold": 0.2, "patience": 2, "memory": 0.5},
    "contribution": {"epochs": 2, "every": 2},
}


def test_attacks_act_in_lockstep_as_in_runs_one_by_one(tmp_path):
    attacks = [
        {"name": name, "clients": [1]} for name in ("noise", "echo", "follow", "copy", "nan", "label_flip", "sybil")
    ]
    attacks.append({"name": "defect", "clients": [1], "from_round": 3})
    grid = {"attack": attacks, "method": ["fedrac"]}
    tables = SMALL | {"participation": {"dropout": 0.2}, "contribution": {"epochs": 2, "every": 3}, "grid": grid}
    jobs = jobs_of(tables, tmp_path)
    run_in_lockstep(jobs, Heard())
    for job in jobs:
        together, alone = read_run(job.folder).outcome, run_experiment(job.experiment)
        assert together.contributions == pytest.approx(alone.contributions, abs=1e-9)
        for ours, theirs in zip(together.history, alone.history, strict=True):
            assert ours.accuracies == pytest.approx(theirs.accuracies, abs=1e-9), job.folder.name
            assert ours.refused == theirs.refused
    refused = [read_run(job.folder).outcome.history[0].refused for job in jobs if job.experiment.attack.name == "nan"]
    assert all(found == {"1": "its update is not finite"} for found in refused)


@pytest.mark.parametrize("name", ["fedrac", "cgsv", "fedave"])
def test_a_run_goes_on_from_any_round_to_the_same_bits(name):
    _, prepared = run(name, last=6, run={"evaluate_every": 1}, **STORM)
    whole = collected(prepared)
    for state in whole.states[1:5]:
        rest = collected(prepared, begun=state).rounds
        assert [tested.record.round for tested in rest] == list(range(state.round + 1, 7))
        for one, other in zip(rest, whole.rounds[state.round :], strict=True):
            assert torch.equal(rows(one.delivered, prepared), rows(other.delivered, prepared))
            assert one.record.refused == other.record.refused


def test_one_preparation_serves_several_methods_although_contributions_change():
    tested, prepared = run("fedrac", last=5, **STORM)
    again = collected(prepared).rounds
    assert torch.equal(rows(again[-1].delivered, prepared), rows(tested[-1][1], prepared))


def test_what_is_off_is_not_written_and_what_is_on_is_read_back():
    assert not {"attack", "defence", "participation"} & set(Experiment().to_dict())
    assert "every" not in Experiment().to_dict()["contribution"]
    experiment = Experiment.from_dict(STORM)
    assert Experiment.from_dict(tomllib.loads(experiment.to_toml())).to_dict() == experiment.to_dict()
