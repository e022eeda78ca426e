import gc
import weakref
from dataclasses import replace

import pandas as pd
import pytest
import torch
from torch import nn

import cofair
from cofair.config.experiment import Experiment
from cofair.engine.vectorised import VectorisedEngine
from cofair.errors import RunError, UsageError
from cofair.methods.fedsac import FedSAC
from cofair.results.listener import Listener
from cofair.runs.compare import compare
from cofair.runs.run import Run
from cofair.runs.single import run_experiment
from tests.driving import Heard

SMALL = Experiment.from_dict(
    {
        "federation": {"clients": 4},
        "model": {"hidden": [16]},
        "training": {"rounds": 12, "steps": 3, "lr": 0.1},
        "contribution": {"epochs": 3},
        "method": {"name": "fedavg", "personalise_units": 2},
    }
)


def test_methods_meet_the_same_federation_and_contributions(tmp_path):
    heard = []
    comparison = compare(SMALL, ["standalone", "fedavg"], 2, tmp_path, listener=lambda *what: heard.append(what))
    assert comparison.methods == ["standalone", "fedavg"]
    for alone, averaged in zip(comparison.of("standalone"), comparison.of("fedavg"), strict=True):
        assert alone.seed == averaged.seed
        assert alone.contributions == averaged.contributions
        assert alone.accuracies == pytest.approx(alone.contributions)
    first, second = comparison.of("fedavg")
    assert first.contributions != second.contributions
    assert {(method, seed) for method, seed, _ in heard} == {
        (method, seed) for method in ("standalone", "fedavg") for seed in (0, 1)
    }

    frame = comparison.to_frame().set_index("method")
    read = [outcome.cell().max for outcome in comparison.of("fedavg")]
    assert frame.loc["fedavg", "max"] == pytest.approx(sum(read) / 2)
    assert frame.loc["fedavg", "max_std"] == pytest.approx(abs(read[0] - read[1]) / 2**0.5)
    assert frame.loc["standalone", "download"] == 0

    written = pd.read_csv(tmp_path / "summary.csv")
    assert list(written["rule"]) == ["delivered", "delivered", "last", "last", "best", "best"]
    assert len(pd.read_csv(tmp_path / "clients.csv")) == 2 * 2 * 4
    assert (tmp_path / "fedavg-seed1" / "history.jsonl").exists()
    assert "personalise_units = 2" in (tmp_path / "fedavg-seed1" / "experiment.toml").read_text()


def test_a_folder_with_results_is_refused_before_anything_is_trained(tmp_path):
    compare(SMALL, ["standalone"], 1, tmp_path)
    heard = []
    with pytest.raises(UsageError, match="holds results already"):
        compare(SMALL, ["standalone"], 1, tmp_path, listener=lambda *what: heard.append(what))
    assert not heard


def test_earlier_tables_are_not_replaced_unless_asked(tmp_path):
    compare(SMALL, ["standalone"], 1, tmp_path)
    before = (tmp_path / "summary.csv").read_text()
    with pytest.raises(UsageError, match="holds results already"):
        compare(SMALL, ["fedavg"], 1, tmp_path)
    assert (tmp_path / "summary.csv").read_text() == before
    assert not (tmp_path / "fedavg-seed0").exists()


def test_nothing_to_compare_is_a_sentence():
    with pytest.raises(UsageError, match="at least one method"):
        compare(SMALL, [])


def broken(self, *given):
    raise RunError("It diverged.")


def test_a_run_that_fails_is_left_out_and_the_others_are_compared(tmp_path, monkeypatch):
    monkeypatch.setattr(FedSAC, "learn", broken)
    heard = Heard()
    comparison = compare(SMALL, ["fedsac", "fedavg"], 2, tmp_path, listener=heard)
    assert comparison.methods == ["fedavg"]
    assert comparison.failures == heard.failures == {"fedsac-seed0": "It diverged.", "fedsac-seed1": "It diverged."}
    assert list(pd.read_csv(tmp_path / "summary.csv")["method"]) == ["fedavg"] * 3
    with pytest.raises(RunError, match="It diverged"):  # nothing is left to compare
        compare(SMALL, ["fedsac"])


def test_workers_measure_what_one_process_measures(tmp_path):
    names = ["standalone", "fedavg", "contract"]
    here = Heard()
    alone, shared = compare(SMALL, names, 2), compare(SMALL, names, 2, tmp_path, workers=2, listener=here)
    assert shared.clients_frame().equals(alone.clients_frame())
    assert set(here.noted) == {"contract-seed0", "contract-seed1"}
    (tmp_path / "fedavg-seed1" / "summary.json").unlink()
    again = compare(SMALL, names, 2, tmp_path, workers=2, resume=True)
    assert again.clients_frame().equals(alone.clients_frame())


def test_data_and_a_model_of_ones_own_are_compared():
    x = torch.randn(120, 4, generator=torch.Generator().manual_seed(0))
    y = (x.sum(1) > 0).long()
    federation = cofair.Federation([(x[:10], y[:10]), (x[10:60], y[10:60])], test=(x[60:], y[60:]))
    comparison = compare(SMALL, ["standalone", "fedavg"], 2, federation=federation, model=lambda: nn.Linear(4, 2))
    assert [outcome.sizes for outcome in comparison.outcomes] == [(10, 50)] * 4
    with pytest.raises(UsageError, match="Several workers need an experiment that names everything"):
        compare(SMALL, ["fedavg"], 2, workers=2, federation=federation, model=lambda: nn.Linear(4, 2))


def test_losses_and_metrics_are_named_in_a_comparison():
    x = torch.randn(160, 4, generator=torch.Generator().manual_seed(0))
    y = x @ torch.tensor([1.0, -2.0, 0.5, 0.0])
    parts = {"federation": cofair.Federation([(x[:40], y[:40]), (x[40:100], y[40:100])], test=(x[100:], y[100:]))}
    parts["model"] = lambda: nn.Linear(4, 1)
    chosen = replace(SMALL, contribution=replace(SMALL.contribution, measure="size"))
    comparison = compare(chosen, ["fedavg"], loss="mse", metric="r2", **parts)
    assert min(comparison.outcomes[0].accuracies) > 0.5
    assert comparison.jobs[0].experiment.run.metric == "r2"
    with pytest.raises(UsageError, match="Unknown loss 'msee': did you mean 'mse'"):
        compare(chosen, ["fedavg"], loss="msee", metric="r2", **parts)


def test_nothing_of_a_run_stays_in_memory_when_it_fails_or_ends(monkeypatch):
    alive, begun = weakref.WeakSet(), Run.__init__
    most = []

    def noted(run, *given, **options):
        begun(run, *given, **options)
        most.append(len(alive))
        alive.add(run)

    monkeypatch.setattr(Run, "__init__", noted)
    monkeypatch.setattr(FedSAC, "learn", broken)
    gc.disable()  # what waits for it may wait long
    try:
        compare(SMALL, ["fedsac", "fedavg", "cgsv"], 2)
    finally:
        gc.enable()
    assert most == [0] * 6
    assert not alive


def test_a_federation_that_cannot_be_measured_fails_once_for_all_methods(monkeypatch):
    trained, train = [], VectorisedEngine.train
    monkeypatch.setattr(VectorisedEngine, "train", lambda self, *given: trained.append(1) or train(self, *given))
    wild = replace(SMALL, training=replace(SMALL.training, lr=1e30))
    with pytest.raises(RunError, match="diverged when it trained alone"):
        compare(wild, ["fedavg", "cgsv", "fedsac"])
    assert len(trained) == 1


def test_settings_of_single_methods_leave_those_of_the_experiment():
    comparison = compare(
        SMALL, ["fedavg", "cgsv"], method_settings={"cgsv": {"beta": 3}, "fedavg": {"carry_over": True}}
    )
    averaged, cosine = (job.experiment.method for job in comparison.jobs)
    assert (averaged.personalise_units, averaged.carry_over) == (2, True)
    assert cosine.beta == 3
    with pytest.raises(UsageError, match="not compared: did you mean 'cgsv'"):
        compare(SMALL, ["cgsv"], method_settings={"cgsvv": {"beta": 3}})


@pytest.mark.parametrize("wrong", [{"seeds": 0}, {"workers": 0}])
def test_no_seed_or_no_worker_is_a_sentence(wrong):
    with pytest.raises(UsageError, match="at least one"):
        compare(SMALL, ["fedavg"], **wrong)


def test_a_listener_hears_of_every_end():
    class Ends(Listener):
        heard = ()

        def finished(self, job, outcome):
            self.heard += ((job.name, outcome.method),)

    ends = Ends()
    compare(SMALL, ["standalone", "fedavg"], listener=ends)
    run_experiment(SMALL, listener=ends)
    assert ends.heard == (("standalone-seed0", "standalone"), ("fedavg-seed0", "fedavg"), ("fedavg-seed0", "fedavg"))
