"""What messages add to a round: 10 clients of the MLP on an in-process grid, against their trainings called directly.

    python -m benchmarks.flower

Both train the same clients one by one with the same engine; the difference is everything that a federation adds on
both sides: what each client holds, packing, checking, counting, and what clients remember. The server's part is what is
left without the time inside the clients.
"""

import statistics
import time

import torch
from flwr.app import Context, Message

from cofair.config.experiment import Experiment
from cofair.engine.phases import TRAIN
from cofair.engine.protocol import ClientStates, Rewards
from cofair.flower.client import Participant
from cofair.flower.flower_settings import Waiting
from cofair.flower.grid_engine import GridEngine
from cofair.flower.in_process import InProcessGrid
from cofair.flower.local_training import Local
from cofair.flower.remote_federation import Member, RemoteFederation
from cofair.flower.traffic import Traffic
from cofair.runs.run import prepare
from cofair.runs.setup import Parts, set_up

CLIENTS = 10


def main() -> None:
    for name in ("fedavg", "cgsv", "fedrac"):
        experiment = Experiment.from_dict({"method": {"name": name}, "run": {"device": "cpu"}})
        brought = torch.linspace(0.3, 0.9, CLIENTS, dtype=torch.float64)
        ready = prepare(experiment, Parts(contributions=brought))
        federation, method = ready.problem.federation, experiment.method
        app = _Timed(Participant(experiment))
        grid = InProcessGrid.of(app, [{"partition-id": k} for k in range(CLIENTS)])
        members = [
            Member(f"node {100 + k}", client, int(size))
            for k, (client, size) in enumerate(zip(federation.names, federation.sizes, strict=True))
        ]
        remote = RemoteFederation(members, federation.test, federation.validation, federation.classes)
        there = set_up(experiment, Parts(remote, ready.problem.layout.prototype))
        engine = GridEngine(there.problem, grid, [member.identity for member in members], Waiting(), Traffic())
        own = [
            Local.of(experiment, client, (federation.client(k).x, federation.client(k).y), federation.classes, None)
            for k, client in enumerate(federation.names)
        ]
        state = method.start(ready.server)
        given = [method.rewards(ready.server, state, 1, TRAIN)]
        for t in range(1, 12):  # rewards of a real run, so that what is sent is what would be sent
            uploads, _ = ready.engine.train(given[-1], ClientStates(), t)
            state = method.learn(ready.server, state, given[-1], uploads, t, TRAIN)
            given.append(method.rewards(ready.server, state, t + 1, TRAIN))
        times: dict[str, list[float]] = {"messages": [], "direct": [], "server": []}
        for number in range(41):
            t = number % len(given)
            app.seconds, began = 0.0, time.process_time()
            engine.train(given[t], ClientStates(), t + 1)
            between = time.process_time()
            for k, local in enumerate(own):
                local.train(_one(given[t], k), ClientStates(), t + 1)
            times["direct"].append(time.process_time() - between)
            times["messages"].append(between - began)
            times["server"].append(between - began - app.seconds)
        middle = {key: 1000 * statistics.median(values) for key, values in times.items()}
        print(
            f"{name:8} {CLIENTS} clients, {there.problem.layout.size} parameters: messages add "
            f"{middle['messages'] - middle['direct']:.1f} ms a round to {middle['direct']:.1f} ms of training, "
            f"{middle['server']:.1f} ms of them at the server (CPU time, median of 41 rounds, alternating)"
        )


class _Timed:
    """An app that counts the time spent in it."""

    def __init__(self, participant: Participant) -> None:
        self.participant, self.seconds = participant, 0.0

    def __call__(self, message: Message, context: Context) -> Message:
        began = time.process_time()
        try:
            return self.participant.train(message, context)
        finally:
            self.seconds += time.process_time() - began


def _one(rewards: Rewards, k: int) -> Rewards:
    row = rewards.parameters if rewards.parameters.dim() == 1 else rewards.parameters[k]
    masks = None if rewards.neuron_masks is None else rewards.neuron_masks[k : k + 1]
    return Rewards(row[None], rewards.work, masks)


if __name__ == "__main__":
    main()
