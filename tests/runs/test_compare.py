import pandas as pd
import pytest

from cofair.config.experiment import Experiment
from cofair.errors import UsageError
from cofair.runs.compare import compare

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
        (method, seed) for method in ("contributions", "standalone", "fedavg") for seed in (0, 1)
    }

    frame = comparison.to_frame().set_index("method")
    read = [outcome.cell().max for outcome in comparison.of("fedavg")]
    assert frame.loc["fedavg", "max"] == pytest.approx(sum(read) / 2)
    assert frame.loc["fedavg", "max_std"] == pytest.approx(abs(read[0] - read[1]) / 2**0.5)
    assert frame.loc["standalone", "download"] == 0

    written = pd.read_csv(tmp_path / "summary.csv")
    assert list(written["rule"]) == ["last", "last", "best", "best"]
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
