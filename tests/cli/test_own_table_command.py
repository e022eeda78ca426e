"""From a CSV file to results on the command line."""

import json
import sys

import numpy as np
import pandas as pd
import pytest

from cofair.cli.main import main
from cofair.config.experiment import Experiment
from cofair.config.job import Job
from cofair.runs.scheduling import batches

QUICK = [
    "--set", "training.rounds=3", "--set", "training.steps=2", "--set", "contribution.epochs=2",
    "--set", "model.hidden=[8]", "--set", "run.device=cpu",
]  # fmt: skip
OWN = ["--data", "hospitals.csv", "--label", "died", "--by", "hospital", "--leave-out", "id"]


@pytest.fixture
def cofair(capsys, monkeypatch, tmp_path):
    """Call the command line in a folder with a table of three hospitals."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    columns = {
        "id": [f"P{i}" for i in range(200)], "hospital": rng.choice(["north", "east", "old town"], 200),
        "age": rng.normal(60, 10, 200), "sex": rng.choice(["f", "m"], 200),
    }  # fmt: skip
    died = np.where(columns["age"] > 60, "yes", "no")
    pd.DataFrame(columns | {"died": died}).to_csv("hospitals.csv", index=False)

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["cofair", *arguments])
        code = 0
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def test_compare_names_the_sites_of_a_table(cofair):
    code, out, err = cofair("compare", *OWN, *QUICK, "--methods", "standalone,fedavg")
    assert code == 0, err
    for words in ("hospitals.csv, by hospital, 3 rounds", "north", "east", "old town"):
        assert words in out


def test_a_run_goes_on_from_its_folder_and_its_model_says_what_it_takes(cofair, tmp_path):
    code, _, err = cofair("run", *OWN, *QUICK, "--out", "runs/one")
    assert code == 0, err
    code, _, err = cofair("run", "runs/one/experiment.toml", "--out", "runs/one", "--resume")
    assert code == 0, err
    code, _, err = cofair("export", "runs/one", "--client", "old town", "reward")
    assert code == 0, err
    written = (tmp_path / "reward.safetensors").read_bytes()
    facts = json.loads(written[8 : 8 + int.from_bytes(written[:8], "little")])["__metadata__"]
    assert "age less " in facts["inputs"]
    assert "sex=f, sex=m" in facts["inputs"]


def test_a_finished_run_is_not_taken_for_one_of_a_table_that_has_changed(cofair, tmp_path):
    call = ["compare", *OWN, *QUICK, "--methods", "fedavg", "--out", "results"]
    assert cofair(*call)[0] == 0
    assert cofair(*call, "--resume")[0] == 0
    table = tmp_path / "hospitals.csv"
    table.write_text(table.read_text() + "P200,north,61.0,f,yes\n")
    code, _, err = cofair(*call, "--resume")
    assert code == 2
    assert "holds a run of hospitals.csv as it was before that file changed" in " ".join(err.split())


@pytest.mark.parametrize("work", [{"steps": 2}, {"epochs": 2}])
def test_runs_on_a_table_are_shared_by_workers(work):
    own = {"data": "hospitals.csv", "label": "died", "by": "hospital"}
    runs = [Experiment.from_dict({"federation": own, "training": work, "run": {"seed": seed}}) for seed in range(2)]
    assert [len(batch) for batch in batches([Job(run) for run in runs], 2)] == [1, 1]


def test_scenes_spread_the_rows_of_a_table_without_sites(cofair):
    own = ["--data", "hospitals.csv", "--label", "died", "--leave-out", "id,hospital", "--scene", "uni"]
    code, out, err = cofair("compare", *own, *QUICK, "--methods", "fedavg", "--clients", "4", "--json")
    assert code == 0, err
    assert json.loads(out)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--data", "hospitals.csv"], "name the column to predict as its label, one of id, hospital, age, sex, died."),
        ([*OWN, "--label", "dead"], "hospitals.csv has no column 'dead': did you mean 'died'?"),
        ([*OWN, "--by", "hospitals"], "hospitals.csv has no column 'hospitals': did you mean 'hospital'?"),
        ([*OWN, "--clients", "3"], "federation.clients spreads data over clients, and each value of the column"),
        ([*OWN, "--leave-out", ""], "column 'id' has 200 different values, as identifiers"),
        ([*OWN, "--by", "died"], "column 'died' cannot both be predicted and say whose a row is."),
        ([*OWN, "--by", "age"], "column 'age' makes 200 clients of 200 rows"),
        ([*OWN, "--label", "age"], "The column 'age' has numbers, not classes"),
        (["--data", "hospitals.xlsx"], "A table of your own ends in .csv, .csv.gz, .tsv, .tsv.gz, .parquet."),
        (["--label", "died"], "federation.label is about a table, such as hospitals.csv"),
        (["--data", "clinics.csv", "--label", "died"], "Cannot read the table clinics.csv"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_one_sentence(cofair, words, said):
    code, _, err = cofair("compare", *words, *QUICK, "--methods", "fedavg")
    assert code == 2
    assert err.startswith("error: ")
    assert said in " ".join(err.split())
    assert "Traceback" not in err


def test_a_run_needs_an_experiment_or_data(cofair):
    code, _, err = cofair("run")
    assert (code, err) == (2, "error: Name an experiment, such as digits.toml, or data with --data.\n")


def test_a_sweep_says_what_reads_tables(cofair, tmp_path):
    (tmp_path / "grid.toml").write_text(
        '[federation]\ndata = "hospitals.csv"\nlabel = "died"\nby = "hospital"\n[grid]\nrun.seed = [0, 1]\n'
    )
    code, _, err = cofair("sweep", "grid.toml", "--out", "sweep")
    assert code == 2
    assert "not on hospitals.csv: use 'cofair compare'." in " ".join(err.split())
