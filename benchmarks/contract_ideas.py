"""What was tried to make contract's submodels better, one idea at a time, as a method that only this folder knows.

    cofair sweep benchmarks/contract_ideas.toml --load benchmarks/contract_ideas.py --out results/ideas

What pays on data, scenes and seeds that it was not chosen on belongs into the method itself, the rest stays here.
"""

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from cofair.engine.phases import Phase
from cofair.engine.protocol import Rewards, Uploads
from cofair.methods.contract import Contract
from cofair.methods.contract_submodels import PromisedSubmodels, RollingSubmodels
from cofair.methods.method import Method
from cofair.methods.registry import register
from cofair.methods.rules.promises import Curve
from cofair.methods.server import Server
from cofair.scoring.importance import by_removal, taylor
from cofair.settings import setting


@register
@dataclass(frozen=True)
class ContractIdeas(Contract):
    """Contract with submodels and one thing changed."""

    name: ClassVar[str] = "contract-ideas"

    hands: Literal["trailing", "submodels"] = setting("submodels", "what clients are handed")
    by_size: bool = setting(False, "updates weigh by numbers of samples instead of contributions")
    damp: float = setting(
        0.0, "d: a parameter with n of N holders moves by (n / N)^d of their mean", minimum=0, maximum=1
    )
    opens: float = setting(0.0, "κ · min(1, A / c_max)^opens: the curve opens as the whole model grows", minimum=0)
    ties: Literal["unimportant", "important", "random", "number"] = setting(
        "unimportant", "which of the neurons that were trained about equally often come first"
    )
    ranked_by: Literal["taylor", "removal"] = setting("taylor", "how importance is measured")
    ranked_on: int = setting(1_000_000, "on how many validation samples, at most", minimum=1)

    def promise(self) -> Curve:
        """Return the reward curve, flatter while the whole model is worse than the best client alone."""
        curve = super().promise()

        def opened(contributions: Tensor, accuracy: float) -> Tensor:
            open_by: float = min(1.0, accuracy / float(contributions.max())) ** self.opens
            return accuracy - open_by * (accuracy - curve(contributions, accuracy))

        return opened if self.opens else curve

    def weights(self, server: Server) -> Tensor | None:
        """Return what updates weigh in a mean (N,)."""
        return server.sizes.to(server.contributions) if self.by_size else super().weights(server)

    @cached_property
    def mechanism(self) -> Method[Any]:
        """Return what decides on each client's submodel."""
        return SubmodelIdeas(count=self.count, contract=self, ideas=self)


@dataclass(frozen=True)
class SubmodelIdeas(RollingSubmodels):
    """Contract's submodels with one thing changed."""

    ideas: ContractIdeas = field(kw_only=True)

    def learn(
        self, server: Server, state: PromisedSubmodels, rewards: Rewards, uploads: Uploads, t: int, phase: Phase
    ) -> PromisedSubmodels:
        """Damp the updates of parameters that few hold."""
        if self.ideas.damp:
            share = (uploads.updates != 0).to(uploads.updates).mean(0)
            uploads = replace(uploads, updates=uploads.updates * share**self.ideas.damp)
        return super().learn(server, state, rewards, uploads, t, phase)

    def order(self, server: Server, parameters: Tensor, frequency: Tensor, t: int) -> Tensor:
        """Order neurons that were trained about equally often in another way."""
        K = len(frequency)
        if self.ideas.ties == "number":
            ranked = torch.arange(K, device=frequency.device)
        elif self.ideas.ties == "random":
            ranked = torch.randperm(K, generator=server.random(t, "ties")).to(frequency.device)
        else:
            measure = taylor if self.ideas.ranked_by == "taylor" else by_removal
            importance = measure(server.validation.thinned(self.ideas.ranked_on), parameters)
            ranked = importance.argsort(stable=True, descending=self.ideas.ties == "important")
        trained = (frequency / (self.contract.alike * server.clients)).floor() if self.contract.alike else frequency
        return ranked[trained[ranked].argsort(stable=True)]
