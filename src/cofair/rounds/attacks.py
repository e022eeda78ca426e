"""Clients that cheat, in simulation: after a training, attackers change what they upload.

An attacker forges its update in every training whose result is an upload, the one that measures contributions included.
It can forge only parameters that it holds, and sends nothing where it does not take part. What it remembers between
rounds is part of the clients' memory, so that a run can be resumed. docs/reliability.md says what each attack does.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from cofair import randomness
from cofair.engine.problem import Problem
from cofair.engine.protocol import ClientStates, Rewards, Trained, Uploads
from cofair.errors import UsageError
from cofair.settings import setting

IDLE = ("nothing", "noise", "echo", "follow", "copy", "defect")  # attackers that never train
ON_DATA = ("label_flip", "sybil")
STRENGTH = {"scale": 10.0, "sybil": 3.0}  # where it is not 1
_RECEIVED, _DIRECTION = "received", "direction"  # what attackers remember


@dataclass(frozen=True)
class AttackSettings:
    """Which clients cheat, and how."""

    name: Literal[
        "none", "nothing", "noise", "echo", "follow", "label_flip", "sign_flip", "scale", "sybil", "copy", "nan",
        "defect", "resend",
    ] = setting("none", "what the attackers do: docs/reliability.md says what each is")  # fmt: skip
    clients: int | tuple[int, ...] = setting(1, "how many attackers, drawn at random, or a list of which", minimum=0)
    strength: float | None = setting(
        None, "factor on what is forged, share of labels flipped, identities of a Sybil; none: 1, scale 10, sybil 3",
        above=0,
    )  # fmt: skip
    from_round: int = setting(1, "first round of the attack; 1: it begins when contributions are measured", minimum=1)

    @property
    def on(self) -> bool:
        """Say whether anybody attacks."""
        return self.name != "none"

    @property
    def force(self) -> float:
        """Return the strength, or the attack's own where none is given."""
        return STRENGTH.get(self.name, 1.0) if self.strength is None else self.strength

    def check(self) -> None:
        """Refuse settings that contradict each other."""
        if self.name in ON_DATA and self.from_round > 1:
            raise UsageError(f"attack.name = '{self.name}' changes the data at the start: attack.from_round must be 1.")
        if self.name == "defect" and self.from_round == 1:
            raise UsageError("attack.name = 'defect' begins after a good start: set attack.from_round above 1.")
        if self.name == "sybil" and (self.force < 2 or self.force != round(self.force)):
            raise UsageError("attack.strength must be a whole number of at least 2 identities for 'sybil'.")
        if self.name == "label_flip" and self.force > 1:
            raise UsageError("attack.strength must be a share of the labels, at most 1, for 'label_flip'.")


class Attack:
    """What the attackers of a federation do to their uploads."""

    def __init__(self, settings: AttackSettings, problem: Problem, attackers: Sequence[int]) -> None:
        """Take the settings and the places of the attackers."""
        self.settings, self.problem, self.attackers = settings, problem, tuple(attackers)
        self._who = torch.zeros(len(problem.federation), dtype=torch.bool, device=problem.device)
        self._who[list(attackers)] = True

    def act(self, rewards: Rewards, states: ClientStates, t: int, answer: Trained) -> Trained:
        """Return what an engine gave for these rewards, as changed by the attackers."""
        uploads, after = answer
        honest = uploads
        if rewards.work.phase.asked_in(t) >= self.settings.from_round:
            forging = self._who & uploads.present
            if rewards.work.phase.uploads:
                forged = self._held(rewards, self._forged(rewards, states, uploads, t))
            else:
                forged = torch.zeros_like(uploads.updates) if self.settings.name in IDLE else uploads.updates
            uploads = replace(uploads, updates=torch.where(forging[:, None], forged, uploads.updates))
        return uploads, replace(after, attackers=self._remembered(rewards, states, honest))

    def _forged(self, rewards: Rewards, states: ClientStates, uploads: Uploads, t: int) -> Tensor:
        """Return what attackers upload (N, D); rows of the others are not read."""
        name, force, updates = self.settings.name, self.settings.force, uploads.updates
        alone, known = rewards.work.phase.alone, states.attackers
        if name == "noise":
            return self._noise(rewards, uploads, t)
        if name == "resend":
            return (known[_RECEIVED] - _received(rewards, updates)).nan_to_num(0) if alone and known else updates
        if name == "echo" and _RECEIVED in known and not alone:
            return force * (_received(rewards, updates) - known[_RECEIVED]).nan_to_num(0)
        if name == "follow" and _DIRECTION in known and not alone:
            return force * known[_DIRECTION]
        if name == "copy":
            others = uploads.present & ~self._who
            sizes = torch.where(others, uploads.sizes.to(others.device), -1)
            richest = [i for i in range(len(sizes)) if sizes[i] == sizes.max()]
            victim = min(richest, key=lambda i: self.problem.federation.names[i])
            return force * updates[victim].expand_as(updates) * bool(others.any())
        if name == "sign_flip":
            return -force * updates
        if name == "scale":
            return force * updates
        if name == "nan":
            return torch.full_like(updates, torch.nan)
        return updates if name in ON_DATA else torch.zeros_like(updates)

    def _noise(self, rewards: Rewards, uploads: Uploads, t: int) -> Tensor:
        """Return Gaussian noise as long as the median of the honest updates, times the strength."""
        others = uploads.present & ~self._who
        norms = torch.linalg.vector_norm(uploads.updates[others], dim=1)
        length = float(norms.quantile(0.5)) if len(norms) else 1.0
        noise = torch.zeros_like(uploads.updates)
        for i in self.attackers:
            name = self.problem.federation.names[i]
            random = randomness.generator(self.problem.seed, "attack", name, t, rewards.work.phase.address)
            noise[i] = torch.randn(noise.shape[1], generator=random, dtype=torch.float64).to(noise)
        noise = self._held(rewards, noise)
        lengths: Tensor = torch.linalg.vector_norm(noise, dim=1, keepdim=True)
        return noise * (self.settings.force * length / lengths.clamp(min=1e-30))

    def _held(self, rewards: Rewards, rows: Tensor) -> Tensor:
        """Return rows without the parameters that their clients do not hold: submodels travel without them."""
        if rewards.neuron_masks is None or self.problem.neurons is None:
            return rows
        return rows.masked_fill(~self.problem.neurons.parameter_mask(rewards.neuron_masks).bool(), 0)

    def _remembered(self, rewards: Rewards, states: ClientStates, uploads: Uploads) -> dict[str, Tensor]:
        """Return what attackers remember: the latest value of each parameter that they got, or the last mean update."""
        kept = dict(states.attackers)
        if not rewards.work.phase.uploads:
            return kept
        if self.settings.name in ("echo", "resend"):
            now = _received(rewards, uploads.updates)
            if rewards.neuron_masks is not None and self.problem.neurons is not None:
                now = now.masked_fill(~self.problem.neurons.parameter_mask(rewards.neuron_masks).bool(), torch.nan)
            before = kept.get(_RECEIVED, torch.full_like(now, torch.nan))
            kept[_RECEIVED] = torch.where(uploads.present[:, None] & ~now.isnan(), now, before)
        others = uploads.present & ~self._who & torch.isfinite(uploads.updates).all(1)
        if self.settings.name == "follow" and bool(others.any()):
            some = uploads.updates[others]
            mean = some.sum(0) / (some != 0).sum(0).clamp(min=1)
            kept[_DIRECTION] = mean.repeat(len(self._who), 1)
        return kept


def _received(rewards: Rewards, like: Tensor) -> Tensor:
    return rewards.parameters.expand_as(like)
