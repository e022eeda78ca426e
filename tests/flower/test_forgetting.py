"""What a participant remembers: its last reward and what it made of it, nothing that it was handed before."""

import logging
import os
import re
import sys

import pytest
import torch

from cofair import methods
from cofair.config.experiment import Experiment
from cofair.flower import messages, wire
from cofair.flower.asks import asked_by
from cofair.flower.local_training import Local
from cofair.methods.families.submodels import SubmodelMethod
from tests.flower.federations import CLASSES, experiment, grid_of, mlp, served, shares, simulated
from tests.flower.test_every_method import same

methods.load_installed()
A_ROUND = ("row", "update")


class Watched:
    """A participant's app, and what somebody who keeps every number that it was sent could compare its memory with."""

    def __init__(self, app, neurons, size):
        self.app, self.neurons = app, neurons
        self.latest = torch.full((size,), torch.nan, dtype=torch.float64)  # of each parameter, stitched over all rounds
        self.ever, self.forgotten = set(), 0

    def __call__(self, message, context):
        reply = self.app(message, context)
        if message.metadata.message_type == "train" and messages.config_of(reply)["status"] == "ok":
            self.check(message, context)
        return reply

    def check(self, message, context):
        sent = {name: messages.numbers(array) for name, array in message.content.array_records["arrays"].items()}
        scope = torch.ones(len(self.latest), dtype=torch.bool)
        if "neurons" in sent:
            scope = self.neurons.parameter_mask(wire.from_bits(sent["neurons"], self.neurons.count)[None])[0]
        self.latest = wire.unpack(sent, self.latest, scope)
        self.ever |= set(sent["values"].tolist())
        held = memory(context)
        assert {"row", "update"} <= held.keys()
        for name in A_ROUND:
            assert not bool(held[name][~scope].any()), name
        before = self.ever - set(self.latest[scope].tolist()) - {0.0}
        left = self.latest[~scope & ~self.latest.isnan()]
        self.forgotten += len(left)
        together = [*held.values(), held["row"] + held["update"]]
        assert not before & {number for array in together for number in array.flatten().tolist()}


def memory(context):
    """Return every array that a participant's context holds."""
    records = context.state.array_records.values()
    return {name: torch.tensor(messages.numbers(array)) for record in records for name, array in record.items()}


def neuron_map():
    clients, _, _ = shares()
    return Local.of(Experiment.from_dict({}), "0", clients[0], CLASSES, mlp).problem.neurons


def watched(chosen, **options):
    neurons, size = neuron_map(), sum(parameter.numel() for parameter in mlp().parameters())
    grid = grid_of(chosen, **options)
    for node in grid.nodes.values():
        node.app = Watched(node.app, neurons, size)
    return grid, [node.app for node in grid.nodes.values()]


@pytest.mark.parametrize("name", methods.names())
def test_a_participant_remembers_its_last_reward_and_nothing_else(name):
    chosen = experiment(name, last=6)
    grid, apps = watched(chosen, node={"allow": " ".join(asked_by(chosen))})
    same(served(chosen, grid), simulated(chosen)[0])
    assert name == "standalone" or all(app.ever for app in apps)
    submodels = isinstance(chosen.method, SubmodelMethod)
    assert any(app.forgotten for app in apps) == submodels


@pytest.mark.parametrize("optimiser", ["momentum", "adam", "adamw"])
def test_moments_reveal_no_parameter_either(optimiser):
    """Their updates reach beyond the submodel; what is remembered of them does not."""
    chosen = experiment("fedrac", last=6, training={"optimiser": optimiser, "lr": 0.01})
    grid, apps = watched(chosen)
    same(served(chosen, grid), simulated(chosen)[0])
    assert any(app.forgotten for app in apps)


def test_a_participant_writes_no_file_and_logs_no_number_of_a_model(log, writes):
    chosen = experiment("fedrac", last=4)
    grid = grid_of(chosen)
    for node in grid.nodes.values():
        node.app = writes.during(node.app)
    served(chosen, grid)
    assert writes.calls > 16
    assert writes.files == []
    assert any("asks for" in line for line in log.messages)
    assert not [line for line in log.messages if re.search(r"\d\.\d", line)]


class Writes:
    """The files that are opened for writing while an app answers; Python tells it of every file that is opened."""

    def __init__(self):
        self.files, self.calls, self._on = [], 0, False
        sys.addaudithook(self._opened)  # it stays for good, and listens only while an app answers

    def during(self, app):
        def watched(message, context):
            self._on, self.calls = True, self.calls + 1
            try:
                return app(message, context)
            finally:
                self._on = False

        return watched

    def _opened(self, event, given):
        if self._on and event == "open":
            path, _, flags = given
            compiled = "__pycache__" in str(path)  # of a module that is imported for the first time
            if flags & (os.O_WRONLY | os.O_RDWR) and not compiled:
                self.files.append(path)


@pytest.fixture
def writes():
    return Writes()


@pytest.fixture
def log(caplog):
    caplog.set_level(logging.DEBUG, logger="flwr.cofair")
    logging.getLogger("flwr").propagate = True
    return caplog


def test_a_file_that_is_written_would_be_seen(writes, tmp_path):
    writes.during(lambda message, _: (tmp_path / message).write_text("1.5"))("a", None)
    assert writes.files == [str(tmp_path / "a")] or writes.files == [tmp_path / "a"]
    (tmp_path / "b").write_text("2.5")
    assert len(writes.files) == 1
