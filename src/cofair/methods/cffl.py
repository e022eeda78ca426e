"""CFFL: Collaborative Fairness in Federated Learning (Lyu, Xu, Wang and Yu, 2020).

A client's reputation follows the validation accuracy of what it uploads, sharpened by a hyperbolic sine; whoever falls
far below the mean is removed from the set R of the reputable for good. The reward is a part of the aggregate, as large
as reputation and data size (or the number of classes) allow. The client adds it to the model that it trained and
takes its own upload, which is part of the aggregate, out again.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from cofair.contributions.cosine import normalised as unit_norm
from cofair.contributions.diversity import classes_held
from cofair.engine.phases import Phase
from cofair.engine.protocol import Delivered, Rewards, Uploads
from cofair.methods.families.sparse_aggregate import by_size, from_contributions
from cofair.methods.method import Method
from cofair.methods.registry import register
from cofair.methods.rules.reputation import counted, normalised, of_the_best, remaining
from cofair.methods.rules.sparsification import largest_entries
from cofair.methods.server import Server
from cofair.settings import setting


@dataclass(frozen=True)
class CFFLState:
    """The server's model (D,), own models (N, D), reputations, members of R, and the share last downloaded (N,)."""

    server: Tensor
    models: Tensor
    reputation: Tensor
    members: Tensor
    download: Tensor


@register
@dataclass(frozen=True)
class CFFL(Method[CFFLState]):
    """Reward by validation accuracy and size.

    An absent client keeps its reputation, is not removed, and receives its reward. A removed client continues alone.
    Accuracies of zero all over give equal reputations, and a threshold that would remove all clients removes none.
    """

    name: ClassVar[str] = "cffl"
    paper: ClassVar[str] = "Lyu et al., 2020"
    needs_validation: ClassVar[bool] = True

    version: Literal["fedave", "original"] = setting(
        "fedave", "as FedAVE's authors run it (no history, no removals), or as the original code"
    )
    share: Literal["size", "classes", "contributions"] = setting(
        "size", "what limits rewards besides reputation: n_i / max n, classes_i / classes, or c_i / max c"
    )
    alpha: float = setting(5.0, "α in sinh(α r): how sharply reputations differ", above=0, maximum=300)
    sparsify: Literal["layer", "all"] = setting(
        "layer", "rewards are part of each parameter tensor, or of all together"
    )
    gamma: float = setting(0.5, "Γ: every update is scaled to this norm (fedave)", above=0)
    clip: float = setting(0.01, "entries of updates are cut to ± this (original)", above=0)
    theta: float = setting(1.0, "θ: share of its largest entries that a client uploads (original)", above=0, maximum=1)
    history: float = setting(0.8, "how much of the old reputation stays (original)", minimum=0, maximum=1)
    growing: bool = setting(False, "α grows to 2α over the rounds: α (1 + t/T) (original, MNIST)")
    threshold: float = setting(1 / 3, "less than this times the mean in R removes a client (original)", minimum=0)
    aggregate: Literal["sum", "mean"] = setting("sum", "updates are added up, or weighted by samples (original)")
    entries: Literal["largest", "random"] = setting("largest", "which entries rewards are made of (original: both)")
    reputation_from: Literal["uploads", "contributions"] = setting(
        "uploads", "judge by the uploads (the paper), or by the true contributions (as FedSAC and FedRAC compare)"
    )

    def start(self, server: Server) -> CFFLState:
        """Everybody starts from the initial model, with no reputation, in R."""
        models = server.initial.repeat(server.clients, 1)
        nothing = torch.zeros(server.clients, dtype=torch.float64, device=models.device)
        return CFFLState(server.initial, models, nothing, torch.ones_like(nothing, dtype=torch.bool), nothing)

    def rewards(self, server: Server, state: CFFLState, t: int, phase: Phase) -> Rewards:
        """Each client continues from its own model; what travelled is the last part of the aggregate."""
        return Rewards(state.models, server.work, download=state.download)

    def learn(
        self, server: Server, state: CFFLState, rewards: Rewards, uploads: Uploads, t: int, phase: Phase
    ) -> CFFLState:
        """Judge the uploads, join those of R, and give each member its part of what the others made."""
        trained = state.models + uploads.updates
        updates = self.uploaded(server, uploads.updates)
        reputation, members = self.judge(server, state, uploads, trained, updates, t)
        share, size = self.shares(server), by_size(uploads).double()
        if self.version == "fedave":
            kept = state.models + updates  # Γ stands for the length of local training here, too
            weights, own = share if self.share == "classes" else size, of_the_best(server.sizes.double())
        else:
            kept = trained
            own = weights = torch.ones_like(size) if self.aggregate == "sum" else size
        aggregate = (weights * members).to(updates) @ updates  # absent clients have updates of zeros
        quota = of_the_best(reputation) * share  # r_i / max r · n_i / max n
        if self.version == "original" and self.sparsify == "layer":
            quota = reputation  # the original's layer-wise mode
        reward = self.parts(server, aggregate, quota * members, t)
        gained = reward - (own * members).to(updates)[:, None] * updates
        download = (reward != 0).sum(1).to(state.download) / reward.shape[1]
        return CFFLState(state.server + aggregate, kept + gained, reputation, members, download)

    def uploaded(self, server: Server, updates: Tensor) -> Tensor:
        """Return what clients upload of their updates (N, D): scaled, or cut and thinned out."""
        if self.version == "fedave":
            return unit_norm(updates, self.gamma)
        updates = updates.clamp(-self.clip, self.clip)
        if self.theta == 1:
            return updates
        theta = torch.tensor([self.theta], dtype=torch.float64, device=updates.device)
        each = self.sparsify == "layer"
        return torch.cat([largest_entries(update, theta, server.layout, per_tensor=each) for update in updates])

    def judge(
        self, server: Server, state: CFFLState, uploads: Uploads, trained: Tensor, updates: Tensor, t: int
    ) -> tuple[Tensor, Tensor]:
        """Return the reputations (N,) and who remains in R (N,)."""
        if self.reputation_from == "contributions":
            reputation = from_contributions(server, state.reputation)
        else:
            reputation = self.earned(server, state, uploads, trained, updates, t)
        if self.version == "fedave":
            return reputation, state.members
        reputation = normalised(reputation, state.members)
        members = remaining(reputation, state.members, uploads.present, self.threshold)  # r_i ≥ 1 / (3 |R|)
        return normalised(reputation, members), members

    def earned(
        self, server: Server, state: CFFLState, uploads: Uploads, trained: Tensor, updates: Tensor, t: int
    ) -> Tensor:
        """Return the reputations (N,) that validation accuracies v_i earn."""
        judged = state.members & uploads.present
        whole = self.version == "fedave" or self.theta == 1
        accuracy = server.score(trained if whole else state.server + updates).metric.double()
        fresh = normalised(accuracy, judged)  # v_i / Σ_R v
        if self.version == "fedave":
            return torch.where(judged, 0.5 * (torch.sinh(self.alpha * fresh) + fresh), state.reputation)
        mixed = self.history * state.reputation + (1 - self.history) * fresh
        alpha = self.alpha * (1 + t / server.rounds if self.growing else 1)
        return torch.sinh(alpha * torch.where(judged, mixed, state.reputation))

    def shares(self, server: Server) -> Tensor:
        """Return what limits each client's reward besides its reputation (N,)."""
        if self.share == "classes":
            return classes_held(server.class_counts()).to(server.sizes.device)
        return of_the_best(server.sizes.double() if self.share == "size" else server.contributions)

    def parts(self, server: Server, aggregate: Tensor, quota: Tensor, t: int) -> Tensor:
        """Return each client's entries of the aggregate (N, D): the largest, or the first of one random order."""
        if self.entries == "largest":
            return largest_entries(aggregate, quota, server.layout, per_tensor=self.sparsify == "layer")
        D = len(aggregate)
        place = torch.randperm(D, generator=server.random(t, "entries")).to(aggregate.device)
        return aggregate * (place < counted(quota, D, up=False)[:, None])

    def delivered(self, server: Server, state: CFFLState) -> Delivered:
        """Deliver each client's own model."""
        return Delivered(state.models)

    def reputation(self, state: CFFLState) -> Tensor:
        """Return the reputations."""
        return state.reputation

    def faded(self, state: CFFLState, factor: Tensor) -> CFFLState:
        """Return the state with faded reputations."""
        return replace(state, reputation=state.reputation * factor.to(state.reputation))
