"""What a run counts between two tests: downloads, who held which neuron, whose uploads counted or were refused."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from cofair.engine.protocol import Rewards, Uploads
from cofair.methods.server import Server

ALLOCATION_GROUPS = 512  # a history names at most so many neurons, or groups of neighbours
_TOGETHER = 8  # trainings whose submodels are counted at once, at most: their masks are held till then
Refusal = tuple[int, int, str]  # round, client, why


@dataclass(frozen=True)
class Handed:
    """Submodels that went out for one training: which neurons (N, K), and to whom (N,), None being everybody.

    They count as downloads unless the method says itself what share of a model was downloaded.
    """

    masks: Tensor
    participants: Tensor | None
    counts_as_download: bool

    def receivers(self) -> Tensor:
        """Return who got one (N,), where the masks are."""
        if self.participants is None:
            return torch.ones(len(self.masks), dtype=torch.bool, device=self.masks.device)
        return self.participants.to(self.masks.device)


@dataclass(frozen=True)
class Tally:
    """What a run counts: downloads from its start on, everything else since the last test.

    Submodels wait in `handed` until several trainings' can be counted together: each is a few dozen small kernels.
    """

    downloaded: Tensor  # (N,) whole models, without those in `handed`
    held: tuple[Tensor, ...] = ()  # which share of the clients held each neuron, a row a training (R, K)
    handed: tuple[Handed, ...] = ()
    present: tuple[tuple[int, Tensor], ...] = ()  # one a training: its round, and whose upload counted (N,)
    refused: tuple[Refusal, ...] = ()

    @classmethod
    def empty(cls, server: Server) -> "Tally":
        """Return the counts before the first round."""
        return cls(torch.zeros(server.clients, dtype=torch.float64, device=server.initial.device))

    def after(self, server: Server, rewards: Rewards, uploads: Uploads, t: int) -> "Tally":
        """Return the counts after one more training."""
        masks = rewards.neuron_masks
        counts_later = masks is not None and server.neurons is not None and rewards.download is None
        handed = self.handed if masks is None else (*self.handed, Handed(masks, rewards.participants, counts_later))
        counts = replace(
            self,
            downloaded=self.downloaded if counts_later else self.downloaded + _download(server, rewards),
            handed=handed,
            present=(*self.present, (t, uploads.present)) if rewards.work.phase.uploads else self.present,
        ).refusing(uploads.refused, t)
        return counts.counted(server) if len(handed) == _TOGETHER else counts

    def refusing(self, refused: Mapping[int, str], t: int) -> "Tally":
        """Return the counts after models of some clients were refused, by client, and why."""
        return replace(self, refused=(*self.refused, *((t, client, why) for client, why in sorted(refused.items()))))

    def counted(self, server: Server) -> "Tally":
        """Return the counts with no submodels waiting."""
        if not self.handed:
            return self
        masks = torch.stack([own.masks.bool() for own in self.handed])  # (R, N, K)
        to = torch.stack([own.receivers() for own in self.handed])  # (R, N)
        number = to.sum(1, keepdim=True).clamp(min=1)
        share = (masks & to[..., None]).sum(1) / number
        downloaded = self.downloaded
        if server.neurons is not None and any(own.counts_as_download for own in self.handed):
            kept = server.neurons.kept_count(masks.flatten(0, 1)).view(to.shape).double() / server.layout.size
            counts = torch.tensor([[own.counts_as_download] for own in self.handed], device=to.device)
            downloaded = downloaded + (kept * (to & counts)).sum(0).to(downloaded.device)
        return replace(self, downloaded=downloaded, held=(*self.held, share), handed=())

    def with_newcomers(self, clients: int) -> "Tally":
        """Return the counts with zeros for newcomers."""
        new = clients - len(self.downloaded)
        present = tuple((t, _longer(was, new)) for t, was in self.present)
        handed = tuple(
            replace(own, masks=_longer(own.masks, new), participants=_longer(own.receivers(), new))
            for own in self.handed
        )
        return replace(self, downloaded=_longer(self.downloaded, new), handed=handed, present=present)

    def tested(self) -> "Tally":
        """Return the counts after a test, for which everything was counted."""
        assert not self.handed
        return Tally(self.downloaded)

    def took_part(self, clients: int) -> list[int]:
        """Return in how many rounds since the last test each client's upload counted."""
        rounds: dict[int, Tensor] = {}
        for t, present in self.present:
            rounds[t] = rounds[t] | present if t in rounds else present
        return torch.stack(list(rounds.values())).sum(0).tolist() if rounds else [0] * clients

    def reasons(self, names: Sequence[str]) -> dict[str, str] | None:
        """Return why uploads were refused since the last test, the last reason of each client; None where none was."""
        return {names[client]: why for _, client, why in self.refused} or None

    def allocation(self) -> list[float] | None:
        """Return the mean of trainings' shares of holders, in groups of neighbours where there are many neurons."""
        if not self.held:
            return None
        mean = torch.cat(self.held).mean(0).double().cpu().numpy()
        starts = range(0, len(mean), math.ceil(len(mean) / ALLOCATION_GROUPS))
        counts = np.diff([*starts, len(mean)])
        groups: list[float] = (np.add.reduceat(mean, starts) / counts).round(4).tolist()
        return groups


def _download(server: Server, rewards: Rewards) -> Tensor:
    """Return the share of a whole model that travels to each client (N,), but for submodels; on the model's device."""
    device = server.initial.device
    if rewards.download is not None:
        return rewards.download.to(device, torch.float64)
    share = torch.ones(server.clients, dtype=torch.float64, device=device)
    return share if rewards.participants is None else share * rewards.participants.to(device)


def _longer(values: Tensor, new: int) -> Tensor:
    """Return values, one a client (N, ...), with zeros for so many newcomers."""
    return torch.cat([values, values.new_zeros(new, *values.shape[1:])])
