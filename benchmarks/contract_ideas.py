"""What was tried to make contract better, one idea at a time, as a method that only this folder knows.

    cofair sweep benchmarks/contract_ideas.toml --load benchmarks/contract_ideas.py --out results/ideas

What pays on data, scenes and seeds that it was not chosen on belongs into the method itself, the rest stays here.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from cofair.engine.exchange import Rewards, Uploads
from cofair.methods.contract import Contract
from cofair.methods.method import Server
from cofair.methods.promises import Curve
from cofair.methods.registry import register
from cofair.methods.submodels import Submodels
from cofair.neurons.importance import by_removal, taylor
from cofair.settings import setting


@register
@dataclass(frozen=True)
class ContractIdeas(Contract):
    """Contract with one thing changed."""

    name: ClassVar[str] = "contract-ideas"

    weights: Literal["equal", "size", "contribution"] = setting(
        "equal", "what a holder's update weighs in the mean of a parameter"
    )
    power: float = setting(1.0, "to which power contributions are taken when holders weigh by them", minimum=0)
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
        if not self.opens:
            return curve

        def opening(contributions: Tensor, accuracy: float) -> Tensor:
            open_by: float = min(1.0, accuracy / float(contributions.max())) ** self.opens
            return accuracy - open_by * (accuracy - curve(contributions, accuracy))

        return opening

    def learn(
        self, server: Server, state: Submodels, rewards: Rewards, uploads: Uploads, t: int, phase: str
    ) -> Submodels:
        """Weigh updates before they are averaged."""
        if self.weights != "equal":
            # mean_over_holders divides by a number of holders: scale each update so that it comes to Σ w_i U_i / Σ w_i
            holders = (uploads.updates != 0).to(uploads.updates)
            given = server.sizes if self.weights == "size" else server.contributions**self.power
            weight = (given / given.sum()).to(uploads.updates)[:, None] * uploads.present[:, None]
            scale = holders.sum(0) / (holders * weight).sum(0).clamp(min=1e-12)
            uploads = replace(uploads, updates=uploads.updates * weight * scale)
        if self.damp:
            share = (uploads.updates != 0).to(uploads.updates).mean(0)
            uploads = replace(uploads, updates=uploads.updates * share**self.damp)
        return super().learn(server, state, rewards, uploads, t, phase)

    def order(self, server: Server, parameters: Tensor, frequency: Tensor, t: int) -> Tensor:
        """Order neurons that were trained about equally often in another way."""
        K = len(frequency)
        if self.ties == "number":
            ranked = torch.arange(K, device=frequency.device)
        elif self.ties == "random":
            ranked = torch.randperm(K, generator=server.random(t, "ties")).to(frequency.device)
        else:
            measure = taylor if self.ranked_by == "taylor" else by_removal
            importance = measure(server.validation.thinned(self.ranked_on), parameters)
            ranked = importance.argsort(stable=True, descending=self.ties == "important")
        trained = (frequency / (self.alike * server.clients)).floor() if self.alike else frequency
        return ranked[trained[ranked].argsort(stable=True)]
