"""A federation of four clients on an in-process grid, as the tests here use it."""

import logging

import torch

from cofair.config.experiment import Experiment
from cofair.data.federation import Federation
from cofair.flower.client import client_app
from cofair.flower.federation_server import serve, with_deployment_defaults
from cofair.flower.flower_settings import Waiting
from cofair.flower.in_process import InProcessGrid
from cofair.models import build
from tests.driving import prepare, rounds, with_engine

CLASSES, SIZES = 3, (8, 30, 70, 20)
SOON = Waiting(clients=4, join_seconds=0.2, round_seconds=0.2, poll_seconds=0.01, tries=2, newcomer_seconds=0.2)


def shares(sizes=SIZES):
    random = torch.Generator().manual_seed(0)
    centres = torch.randn(CLASSES, 6, generator=random)

    def samples(n):
        y = torch.randint(0, CLASSES, (n,), generator=random)
        return centres[y] + 0.8 * torch.randn(n, 6, generator=random), y

    return [samples(n) for n in sizes], samples(60), samples(40)


def mlp():
    return build("mlp", (6,), CLASSES, hidden=(10, 6))


def experiment(name="fedrac", last=4, **tables):
    settings = {
        "training": {"rounds": last, "steps": 3, "batch_size": 8, "lr": 0.1},
        "contribution": {"epochs": 4},
        "run": {"precision": "float64", "engine": "vectorised", "evaluate_every": 1},
        "method": {"name": name},
    }
    for table, values in tables.items():
        settings[table] = settings.get(table, {}) | values
    return Experiment.from_dict(settings)


def grid_of(chosen, sizes=SIZES, model=mlp, node=None, **options):
    clients, _, _ = shares(sizes)
    app = client_app(chosen, model, lambda context: clients[context.node_config["partition-id"]], **options)
    return InProcessGrid.of(app, [{"partition-id": k, **(node or {})} for k in range(len(sizes))])


def served(chosen, grid, wait=SOON, model=mlp, **options):
    _, validation, test = shares()
    return serve(grid, chosen, model, test=test, validation=validation, wait=wait, **options)


def simulated(chosen, sizes=SIZES, model=mlp, present=None, given=None):
    """Run the vectorised engine; with `present(t, client)` some clients are absent in some rounds."""
    prepared = simulation(chosen, sizes, model, present, given)
    return [record for record, _ in rounds(prepared)], prepared


def simulation(chosen, sizes=SIZES, model=mlp, present=None, given=None):
    """Return the run that `simulated` runs."""
    chosen = with_deployment_defaults(chosen)
    clients, validation, test = shares(sizes)
    federation = Federation(clients, validation=validation, test=test, classes=CLASSES)
    prepared = prepare(chosen, federation=federation, model=model, contributions=given)
    return prepared if present is None else without(prepared, present)


def without(prepared, present):
    from dataclasses import replace

    engine = prepared.engine

    class Some:
        def train(self, rewards, states, t):
            there = torch.tensor([present(t, i) for i in range(len(SIZES))])
            there = there if rewards.participants is None else there & rewards.participants
            return engine.train(replace(rewards, participants=there), states, t)

    return with_engine(prepared, Some())


def node_of(grid, client):
    return grid.nodes[100 + client]


logging.getLogger("flwr").setLevel(logging.WARNING)
