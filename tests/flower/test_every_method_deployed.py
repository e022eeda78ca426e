"""Every method gives the same through the vectorised engine and through real processes: one SuperLink, many runs."""

import time
from dataclasses import replace

import pytest

from cofair import methods
from cofair.flower.deploy.app import demonstration, write_app
from cofair.flower.deploy.demo import read_back, wait, write_data
from cofair.flower.deploy.local_federation import LocalFederation
from cofair.runs.single import run_experiment
from tests.flower.deployed import needs_nginx

pytestmark = [pytest.mark.long, needs_nginx]
methods.load_installed()
AT_ONCE, SECONDS = 5, 1800  # while one run waits for Flower's polls, another trains


def test_every_method_gives_the_numbers_of_the_vectorised_engine(tmp_path):
    differences = {}
    apps = {name: tmp_path / f"app-{name}" for name in methods.names()}
    for name, app in apps.items():
        write_app(app, experiment(name))
    with LocalFederation(tmp_path, experiment("fedavg"), ["0", "1"]) as federation:
        federation.start_superlink()
        write_data(federation, experiment("fedavg"))
        for name in "01":
            federation.admit(name)
            federation.agree(name, apps.values())
            federation.start_node(name)
        for first in range(0, len(methods.names()), AT_ONCE):
            runs = {name: begun(federation, name, apps[name]) for name in methods.names()[first : first + AT_ONCE]}
            until = time.monotonic() + SECONDS
            for name, run in runs.items():
                wait(federation, run, tmp_path / name, until, lambda text: None)
                simulated = run_experiment(experiment(name).with_run(engine="vectorised"))
                differences[name] = read_back(tmp_path / name, simulated, 0).difference
                print(f"{name}: {differences[name]:g}", flush=True)
    assert {name: value for name, value in differences.items() if value > 1e-9} == {}


def begun(federation, name, app):
    settings = {"clients": 2, "data": "server.npz", "out": str(federation.folder / name), "poll_seconds": 3.0}
    federation.write_server_settings(name, **settings)
    return federation.run(app, name)


def experiment(name):
    # float64, so that only a difference in what is computed shows, and not one in the order of sums; contributions that
    # need no training save one process in four, and the demonstration compares the others
    chosen = demonstration(2, 2, name, 0).with_run(precision="float64")
    return replace(chosen, contribution=replace(chosen.contribution, measure="size", on="test"))
