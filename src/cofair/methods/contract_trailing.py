"""Contract with trailing models: each client has a whole model of its own, which follows the server's at a distance.

What a client was never sent it cannot keep. A model that is a row of old and new entries, of which the client has seen
no newer ones, is all that it holds; its validation accuracy is what is calibrated. No neurons need to be known.
"""

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from cofair.engine.phases import Phase
from cofair.engine.protocol import Delivered, Rewards, Uploads
from cofair.methods.method import Method
from cofair.methods.rules.aggregation import mean_over_holders
from cofair.methods.rules.refreshing import STEP, Entries, First, Order, Rows, drawn_for, refreshed
from cofair.methods.server import Server
from cofair.models.blocks import Blocks
from cofair.scoring.mixtures import Mixtures
from cofair.scoring.scorer import Scorer

_GAINS_ON = 500  # validation samples, at most: it only has to be seen which way a client's training goes
_NEAR = 0.002  # below its promise a model is as good as promised
_TO_DELIVER = 6, 64.0  # candidates and steps: a reward is found more carefully than what is trained
_FOR_NEWCOMERS = 10, 2.0**20  # candidates, at least, and steps: they are owed in one round what others got in many

if TYPE_CHECKING:
    from cofair.methods.contract import Contract


@dataclass(frozen=True)
class Trailing:
    """The server's model (D,), the clients' (N, D), and of each client (N,) the accuracies promised and validated.

    `gain` (N,) is by how much a client's own training made its model better when its turn was last: what could be made
    of it. `much` (N, 2) is how much of the server's model fitted then, in rows and in entries. `download` (N,) is the
    share of a model that changed in each client's. `best` (D,) is the best that the server's model ever was, with an
    accuracy of `reached` (1,): what promises are made of, so that they do not fall when a round does harm.
    """

    parameters: Tensor
    best: Tensor
    reached: Tensor
    models: Tensor
    promised: Tensor
    validated: Tensor
    gain: Tensor
    much: Tensor
    download: Tensor


@dataclass(frozen=True)
class TrailingModels(Method[Trailing]):
    """Models that are as accurate as a contract promises, and stay so for a client that keeps all it was handed."""

    name: ClassVar[str] = "contract"
    paper: ClassVar[str] = "our own"

    contract: "Contract" = field(kw_only=True)
    step: float = STEP  # of the search for how much fits

    def start(self, server: Server) -> Trailing:
        """Hand out the initial model, which everybody knows."""
        nothing = torch.zeros_like(server.contributions)
        models = server.initial.repeat(server.clients, 1)
        validated = self._scorer(server).score(server.initial[None]).metric.to(nothing).expand_as(nothing)
        begin = server.initial, server.initial, validated[:1].clone()
        return Trailing(*begin, models, nothing, validated, nothing, _begin(nothing), nothing)

    def rewards(self, server: Server, state: Trailing, t: int, phase: Phase) -> Rewards:
        """Hand out each client's own model; only what changed in it travels."""
        return Rewards(state.models, server.work, download=state.download)

    def learn(
        self, server: Server, state: Trailing, rewards: Rewards, uploads: Uploads, t: int, phase: Phase
    ) -> Trailing:
        """Move the server's model by the updates, then let the clients' follow."""
        if not bool(uploads.present.any()):
            return replace(state, download=torch.zeros_like(state.download))
        asked = rewards.participants if rewards.participants is not None else torch.ones_like(uploads.present)
        silent = asked & ~uploads.present & (server.sizes > 0).to(asked.device)
        turn = ((server.places() + t) % self.contract.every == 0).to(silent.device)
        moved, accuracy = self.moved(server, state, uploads, t)
        return self.follow(server, moved, accuracy, t, uploads.updates, turn & ~silent, silent)

    def moved(self, server: Server, state: Trailing, uploads: Uploads, t: int) -> tuple[Trailing, Tensor]:
        """Return the state with the server's model moved by the clients' updates, and that model's accuracy.

        How much less those weigh that come from models far behind, and how far to go, is tried out: the best model is
        taken.
        """
        means = torch.stack([
            mean_over_holders(uploads, None, "mask", server.aggregation, weights)
            for weights in self.weights(server, state, t)
        ])  # fmt: skip
        strides = means.new_tensor(list(dict.fromkeys(self.contract.strides)))
        tried = (strides[:, None, None] * torch.eye(len(means)).to(means)).flatten(0, 1)
        scores = self._scorer(server).coalitions(state.parameters, means, tried)
        accuracies = scores.metric.to(state.promised)
        sound = scores.loss.isfinite()  # a long step may diverge
        most = accuracies.masked_fill(~sound, -torch.inf).max()
        best = int(scores.loss.masked_fill(~sound | (accuracies < most), torch.inf).argmin())  # few samples: many ties
        parameters, accuracy = state.parameters + tried[best] @ means, accuracies[best]
        better = accuracy >= state.reached
        return replace(
            state, parameters=parameters, best=torch.where(better, parameters, state.best),
            reached=torch.where(better, accuracy, state.reached),
        ), accuracy  # fmt: skip

    def weights(self, server: Server, state: Trailing, t: int) -> list[Tensor | None]:
        """Return what updates may weigh (N,): by contribution, and less the further behind a client's model is."""
        weights = self.contract.weights(server)
        powers = tuple(dict.fromkeys(self.contract.freshness))
        weighs = server.aggregation is None or server.aggregation.name == "mean"
        if t == 1 or powers == (0,) or not weighs:
            return [weights]
        most = state.validated.max()
        near = (state.validated / most.clamp(min=torch.finfo(most.dtype).tiny)).clamp(0, 1)
        return [near**power if weights is None else near**power * weights for power in powers]

    def follow(
        self, server: Server, state: Trailing, accuracy: Tensor, t: int, updates: Tensor, due: Tensor, silent: Tensor
    ) -> Trailing:
        """Bring the models of clients whose turn it is (N,) closer to the server's, which has an accuracy.

        While the whole model is no better than a client's promise, all of it is for that client. Who was asked for an
        update and is silent (N,) gets nothing.
        """
        whole = state.parameters
        promised = self.promised(server, float(state.reached))
        young = (promised >= accuracy) & ~silent
        turns = (due & ~young).nonzero().flatten()
        gains = self.gains(server, state, updates, turns)
        gain = state.gain.index_copy(0, turns, gains)
        found = replace(state, promised=promised, gain=gain)
        for kind, who in self.kinds(gain, turns).items():
            found = self.closer(server, found, t, kind, who)
        models = torch.where(young[:, None], whole, found.models)
        return replace(
            found, models=models,
            validated=torch.where(young, accuracy, found.validated),
            much=torch.where(young[:, None], _begin(promised), found.much),
            download=(models != state.models).sum(1).to(promised) / len(whole),
        )  # fmt: skip

    def kinds(self, gain: Tensor, turns: Tensor) -> dict[First, Tensor]:
        """Return which clients in turn (n,) are brought closer by what: those that would repair their models apart."""
        terms = self.contract
        if terms.guarded == terms.first:
            return {terms.first: turns}
        repairs = gain[turns] > terms.tolerance  # by their own training
        return {terms.first: turns[~repairs], terms.guarded: turns[repairs]}

    def closer(self, server: Server, state: Trailing, t: int, kind: First, who: Tensor) -> Trailing:
        """Return the state with models of some clients (n,) as close to the server's as their promises allow."""
        own, place = state.models[who], _place(kind)
        order = self.order(server, t, kind, state.parameters, own, who)
        known = state.promised[who], state.validated[who], state.much[who, place]
        found = refreshed(order, *known, self.contract.looks, self.step)
        much = state.much.clone()
        much[who, place] = found.much
        return replace(
            state, models=state.models.index_copy(0, who, found.models),
            validated=state.validated.index_copy(0, who, found.accuracies), much=much,
        )  # fmt: skip

    def order(self, server: Server, t: int, kind: First, whole: Tensor, own: Tensor, who: Tensor) -> Order:
        """Return the candidates for some clients (n,), between models of their own (n, D) and a whole one (D,)."""
        random = [server.random(t, server.names[i]) for i in who.tolist()]
        if kind == "rows":
            blocks = Blocks.rows(server.layout)
            mixtures = Mixtures(self._scorer(server), whole, own, blocks)
            return Rows(mixtures, drawn_for(random, blocks.count, own), blocks.sums((whole - own).abs()))
        drawn = drawn_for(random, len(whole), own) if kind == "mixed" else None
        return Entries(self._scorer(server), whole, own, drawn)

    def gains(self, server: Server, state: Trailing, updates: Tensor, turns: Tensor) -> Tensor:
        """Return by how much the own training of clients in turn makes their models better (n,): a running mean."""
        known = state.gain[turns]
        if not len(turns):
            return known
        own, trained = state.models[turns], updates[turns]
        scores = server.validation.thinned(_GAINS_ON).score(torch.cat([own, own + trained])).metric.to(known)
        before, after = scores.chunk(2)
        gains = torch.where(known == 0, after - before, (known + after - before) / 2)
        return torch.where(trained.any(1), gains, known)

    def promised(self, server: Server, accuracy: float) -> Tensor:
        """Return what is promised (N,): nobody less than it reaches alone, as far as the whole model is that good.

        A curve of the organiser's own is taken at its word.
        """
        owed = self.contract.owed(server)(server.contributions, accuracy)
        if server.brings_accuracies and self.contract.own_curve is None:
            owed = torch.maximum(owed, server.contributions.clamp(max=accuracy))
        return owed

    def delivered(self, server: Server, state: Trailing) -> Delivered:
        """Deliver each client's model, brought as close to its promise as the best of the server's models allows."""
        whole = state.promised >= state.reached
        models = torch.where(whole[:, None], state.best, state.models)
        validated = torch.where(whole, state.reached, state.validated)
        looks, step = _TO_DELIVER
        below = (~whole & (state.validated < state.promised - _NEAR)).nonzero().flatten()
        for kind, who in self.kinds(state.gain, below).items():
            order = self.order(server, 0, kind, state.best, state.models[who], who)
            known = state.promised[who], state.validated[who], state.much[who, _place(kind)]
            found = refreshed(order, *known, looks, step, best=True)
            models[who], validated[who] = found.models, found.accuracies
        return Delivered(models, None, state.promised, validated)

    def welcome(self, server: Server, state: Trailing, t: int) -> Trailing:
        """Give newcomers, who come last, what they have earned."""
        larger = super().welcome(server, state, t)
        new = torch.arange(server.clients, device=larger.models.device) >= len(state.models)
        looks, step = _FOR_NEWCOMERS
        thorough = replace(self, contract=replace(self.contract, looks=max(looks, self.contract.looks)), step=step)
        accuracy = self._scorer(server).score(larger.parameters[None]).metric[0].to(larger.promised)
        after = thorough.follow(server, larger, accuracy, t, torch.zeros_like(larger.models), new, ~new)
        return replace(after, download=larger.download + after.download)

    def _scorer(self, server: Server) -> Scorer:
        return server.validation.thinned(self.contract.samples)


def _place(kind: First) -> int:
    """Return where it is remembered how much of a kind fitted."""
    return 0 if kind == "rows" else 1


def _begin(like: Tensor) -> Tensor:
    """Return how much is looked at first (N, 2), in rows and in entries."""
    return like.new_tensor([Rows.begin, Entries.begin]).expand(len(like), 2)
