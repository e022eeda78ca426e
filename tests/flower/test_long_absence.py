"""A client that is away for a hundred rounds and comes back: nothing breaks, and it is sent all of its reward."""

import dataclasses

import pytest
import torch

from cofair.flower import messages, wire
from cofair.flower.asks import asked_by
from cofair.flower.grid_engine import GridEngine
from tests.driving import collected
from tests.flower.federations import experiment, grid_of, mlp, node_of, served, simulation
from tests.flower.test_coming_and_going import while_round
from tests.flower.test_every_method import same
from tests.flower.test_forgetting import neuron_map

AWAY, LAST, WHO = range(3, 103), 106, 3
OWN_ROWS = ("cgsv", "iafl", "cffl", "fedave", "rffl")
SUBMODELS = ("fedsac", "fedrac", "contract", "heterofl", "fjord", "fedrolex")


def chosen_of(name):
    return experiment(name, last=LAST, training={"steps": 1}, run={"evaluate_every": 26})


def answers_of(grid, client):
    """Return the trainings that a client was asked for and answered, by round, each with its answer, but for alone."""
    pairs = zip(grid.seen[::2], grid.seen[1::2], strict=True)
    mine = [(message, reply) for message, reply in pairs if message.metadata.dst_node_id == 100 + client]
    asked = [(messages.config_of(message), message, reply) for message, reply in mine]
    return {config["round"]: (m, r) for config, m, r in asked if "memory" in config and config["memory"] != "none"}


@pytest.mark.parametrize("name", [*OWN_ROWS, *SUBMODELS])
def test_who_returns_after_a_hundred_rounds_is_sent_its_reward_and_goes_on(name, monkeypatch):
    chosen = chosen_of(name)
    grid = grid_of(chosen, node={"allow": " ".join(asked_by(chosen))})
    grid.watch = True
    held = []  # what the server knows that its clients hold, after every training
    ask = GridEngine.ask

    def asking(engine, *given, **options):
        uploads = ask(engine, *given, **options)
        held.append(dict(engine._held))
        return uploads

    monkeypatch.setattr(GridEngine, "ask", asking)

    def leave(t, _):
        node_of(grid, WHO).online = t not in AWAY[:-1]

    while_round(grid, 0, leave)  # client 0 is asked first: the other leaves while its first round away goes on
    result = served(chosen, grid)
    simulated = collected(simulation(chosen, present=lambda t, i: i != WHO or t not in AWAY))
    same(result, [tested.record for tested in simulated.rounds])
    kept = [(state.method, state.status, state.clients) for state in simulated.states]
    assert {numbers_in(state) for state in kept[2:]} == {numbers_in(kept[1])}

    answers = answers_of(grid, WHO)
    assert [t for t in answers if t >= AWAY[0]] == list(range(AWAY[-1] + 1, LAST + 1))
    message, reply = answers[AWAY[-1] + 1]
    sent = {key: messages.numbers(array) for key, array in message.content.array_records["arrays"].items()}
    D, neurons = sum(parameter.numel() for parameter in mlp().parameters()), neuron_map()
    reward = torch.ones(D, dtype=torch.bool)
    if "neurons" in sent:
        reward = neurons.parameter_mask(wire.from_bits(sent["neurons"], neurons.count)[None])[0]
    assert messages.config_of(message)["base"] == ""  # a message was lost on it: the server relies on nothing
    assert len(sent["values"]) == int(reward.sum())
    assert messages.config_of(reply)["status"] == "ok"

    assert {len(now) for now in held} == {4, 3}
    assert {tensor.shape for now in held for one in now.values() for tensor in (one.row, one.trained)} == {(D,)}


def numbers_in(value):
    """Return how many numbers the state of a run holds: the server must not remember more with every round."""
    if isinstance(value, torch.Tensor):
        return value.numel()
    if dataclasses.is_dataclass(value):
        return sum(numbers_in(getattr(value, field.name)) for field in dataclasses.fields(value))
    if isinstance(value, dict):
        return sum(numbers_in(part) for part in value.values())
    return sum(numbers_in(part) for part in value) if isinstance(value, list | tuple) else 1
