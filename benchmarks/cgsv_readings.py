"""Another reading of CGSV's tables: clients are tested after they have trained their rewards once more, each by itself.

    cofair sweep benchmarks/cgsv_readings.toml --load benchmarks/cgsv_readings.py --out results/readings --device cuda

The paper's text and code test the rewards as they are handed out; this is what its numbers would be otherwise.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from cofair.engine.phases import PERSONALISE, TRAIN, Phase
from cofair.engine.protocol import Delivered, Rewards, Uploads
from cofair.methods.cgsv import CGSV
from cofair.methods.families.sparse_aggregate import OwnModels
from cofair.methods.registry import register
from cofair.methods.server import Server


@dataclass(frozen=True)
class Trained(OwnModels):
    """The same, and what everybody made of its own model when it was last tested (N, D)."""

    trained: Tensor


@register
@dataclass(frozen=True)
class TrainedCGSV(CGSV):
    """CGSV, tested after one more local training."""

    name: ClassVar[str] = "cgsv-trained"

    def phases(self, server: Server, t: int) -> tuple[Phase, ...]:
        """Train once more where rewards are tested."""
        return (TRAIN, PERSONALISE) if server.evaluates(t) else (TRAIN,)

    def start(self, server: Server) -> OwnModels:
        """Everybody starts from the initial model."""
        own = super().start(server)
        return Trained(own.models, own.reputation, own.download, own.models)

    def rewards(self, server: Server, state: OwnModels, t: int, phase: Phase) -> Rewards:
        """Everybody goes on from its own model, or looks where that would lead."""
        if phase == TRAIN:
            return super().rewards(server, state, t, phase)
        nothing = torch.zeros_like(state.download)
        return Rewards(state.models, server.work.times(1, phase), download=nothing, keeps_memory=False)

    def learn(
        self, server: Server, state: OwnModels, rewards: Rewards, uploads: Uploads, t: int, phase: Phase
    ) -> OwnModels:
        """Judge and reward, or keep what everybody made of its model."""
        if phase == TRAIN:
            return super().learn(server, state, rewards, uploads, t, phase)
        assert isinstance(state, Trained)
        return replace(state, trained=state.models + uploads.updates)

    def delivered(self, server: Server, state: OwnModels) -> Delivered:
        """Deliver the models trained once more."""
        assert isinstance(state, Trained)
        return Delivered(state.trained)
