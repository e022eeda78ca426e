"""Every method gives the same through the vectorised engine and through real processes: one SuperLink, many runs."""

import time
from dataclasses import replace

import pytest

from cofair import methods
from cofair.flower.deploy.app import write_app
from cofair.flower.deploy.demo import experiment as demonstration
from cofair.flower.deploy.demo import node_config, read_back, run_config, wait, write_data
from cofair.flower.deploy.local import LocalFederation
from cofair.flower.explained import EXPLAINED
from cofair.runs.run import run_experiment

pytestmark = pytest.mark.long
methods.load_installed()
AT_ONCE, SECONDS = 5, 1800  # while one run waits for Flower's polls, another trains


def test_every_method_gives_the_numbers_of_the_vectorised_engine(tmp_path):
    differences = {}
    with LocalFederation(tmp_path) as federation:
        federation.start_superlink()
        write_data(tmp_path, experiment("fedavg"))
        for name in "01":
            federation.register(name)
            federation.start_node(name, node_config(tmp_path, name, " ".join(EXPLAINED)))
        for first in range(0, len(methods.names()), AT_ONCE):
            runs = {name: begun(federation, name) for name in methods.names()[first : first + AT_ONCE]}
            until = time.monotonic() + SECONDS
            for name, run in runs.items():
                wait(federation, run, tmp_path / name, until, lambda text: None)
                simulated = run_experiment(experiment(name).with_run(engine="vectorised"))
                differences[name] = read_back(tmp_path / name, simulated, 0).difference
                print(f"{name}: {differences[name]:g}", flush=True)
    assert {name: value for name, value in differences.items() if value > 1e-9} == {}


def begun(federation, name):
    app = federation.folder / f"app-{name}"
    write_app(app, experiment(name), 2)
    return federation.run(app, [*run_config(federation.folder, federation.folder / name), "poll-seconds=3.0"])


def experiment(name):
    # float64, so that only a difference in what is computed shows, and not one in the order of sums; contributions that
    # need no training save one process in four, and the demonstration compares the others
    chosen = demonstration(2, 2, name, 0).with_run(precision="float64")
    return replace(chosen, contribution=replace(chosen.contribution, measure="size", on="test"))
