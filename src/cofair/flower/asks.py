"""What an experiment asks of a participant besides its update: known before joining, and refusable.

The list is found by watching the method at work on a toy federation, so that it also holds for users' own methods.
Anything not on it can never be sent: a client refuses what its own settings do not allow.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from cofair.config.experiment import Experiment, TrainingSettings
from cofair.data.federation import Federation
from cofair.engine.problem import Engine
from cofair.engine.protocol import ClientStates, Rewards, Uploads
from cofair.errors import UsageError
from cofair.flower.ask_texts import ASK_TEXTS
from cofair.models import build
from cofair.runs.run import drive, prepare
from cofair.runs.setup import Parts

ROUNDS_WATCHED = 3


@dataclass
class _WatchingEngine:
    """An engine that notes which statistics it is asked for."""

    engine: Engine
    seen: set[str]

    def train(self, rewards: Rewards, states: ClientStates, t: int) -> tuple[Uploads, ClientStates]:
        self.seen |= set(rewards.work.statistics)
        return self.engine.train(rewards, states, t)


def asked_by(experiment: Experiment) -> tuple[str, ...]:
    """Return what an experiment asks of every participant besides its update, by the names of `ASK_TEXTS`."""
    if experiment.contribution.measure == "divergence":
        raise UsageError(
            "contribution.measure = 'divergence' reads the clients' samples, which never leave them: choose another "
            "measure."
        )
    toy = Experiment(
        training=TrainingSettings(rounds=ROUNDS_WATCHED, steps=1, batch_size=4), method=experiment.method
    ).with_run(device="cpu")
    model = build("mlp", (4,), 2, hidden=(4, 4))
    run = prepare(toy, Parts(_federation(), model, contributions=_BROUGHT))
    seen = {"size"}
    counts = run.server.class_counts

    def noted() -> Tensor:
        seen.add("class_counts")
        return counts()

    run.server.class_counts = noted
    run.setup = replace(run.setup, engine=_WatchingEngine(run.setup.engine, seen))
    drive(run)
    if experiment.contribution.measure in ("diversity", "entropy"):
        seen.add("class_counts")
    return tuple(name for name in ASK_TEXTS if name in seen)


_BROUGHT = torch.tensor([0.5, 0.6, 0.9], dtype=torch.float64)


def _federation() -> Federation:
    random = torch.Generator().manual_seed(0)

    def samples(n: int) -> tuple[Tensor, Tensor]:
        y = torch.arange(n) % 2
        return torch.randn(n, 4, generator=random) + y[:, None], y

    return Federation([samples(6), samples(8), samples(10)], validation=samples(12), test=samples(12), classes=2)
