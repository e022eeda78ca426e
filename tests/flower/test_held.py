"""What clients hold in a deployment: the same is kept as in simulation, and nothing of their data is used."""

import logging
from dataclasses import replace

import pytest

from cofair.flower.federation_server import serve
from tests.flower.federations import SOON, experiment, grid_of, mlp, served, shares, simulated
from tests.flower.test_coming_and_going import arriving

HELD = {"held": True}


@pytest.mark.parametrize("name", ["fedrac", "fedavg", "iafl", "fedrolex"])
def test_what_is_kept_is_what_is_kept_in_simulation(name):
    chosen = experiment(name, run=HELD)
    record = served(chosen, grid_of(chosen)).history[-1]
    there = simulated(chosen)[0][-1]
    assert list(record.held_parts) == ["delivered", "kept", "averaged", "ahead", "most"]
    for part in ("delivered", "kept", "averaged", "ahead"):
        accuracies = record.held_parts[part]
        assert accuracies == pytest.approx(there.held_parts[part])


def test_the_servers_validation_set_chooses_and_without_one_all_that_is_kept_counts():
    chosen = experiment("fedrac", run=HELD)
    result = served(chosen, grid_of(chosen))
    assert set(result.held.chosen) <= {"delivered", "kept", "averaged", "ahead"}
    _, _, test = shares()
    average = experiment("fedavg", run=HELD)
    without = serve(grid_of(average), average, mlp, test=test, wait=SOON)
    assert without.held.chosen == ("kept",) * 4
    assert without.held.accuracies.tolist() == without.held.parts["kept"].tolist()


@pytest.mark.parametrize("name", ["fedrac", "fedavg"])
def test_a_newcomer_keeps_what_came_since(name):
    logging.getLogger("flwr").propagate = True
    chosen = experiment(name, last=5, run=HELD)
    result = served(chosen, arriving(chosen, 3, before=3), replace(SOON, clients=3))
    assert len(result.held.accuracies) == 4
    late = simulated(experiment(name, last=5, run=HELD, participation={"join": [1, 1, 1, 3]}))[0][-1]
    assert result.held.parts["kept"] == pytest.approx(late.held_parts["kept"])
