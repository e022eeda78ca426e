"""What travels between the server and the clients in a round."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from torch import Tensor

from cofair.engine.phases import Phase
from cofair.engine.work import Work


@dataclass(frozen=True)
class Rewards:
    """What the server hands out: a starting model for each client and the work to do with it.

    `parameters` is (N, D), or (D,) when all start from one model. A client whose row of `neuron_masks` (N, K) is False
    somewhere has a submodel without those neurons. With `step_masks` (N, W, K) and `step_choices` (N,) client i draws,
    in every step, one of its first `step_choices[i]` masks and trains only that part (FjORD). `participants` (N,)
    leaves clients out of a round. `download` (N,) is the share of a whole model that travels to each client; it follows
    from the neuron masks unless a method says otherwise. Without `keeps_memory` the clients' optimisers forget this
    training.
    """

    parameters: Tensor
    work: Work
    neuron_masks: Tensor | None = None
    step_masks: Tensor | None = None
    step_choices: Tensor | None = None
    participants: Tensor | None = None
    download: Tensor | None = None
    keeps_memory: bool = True

    def during(self, phase: Phase) -> "Rewards":
        """Return these rewards as those of a phase, which their work may not name."""
        return self if self.work.phase == phase else replace(self, work=replace(self.work, phase=phase))


@dataclass(frozen=True)
class Uploads:
    """What came back: one update per client, and who answered (an absent client is normal)."""

    updates: Tensor  # (N, D), zero for absent clients
    present: Tensor  # (N,) bool
    sizes: Tensor  # (N,) number of samples each client trained on
    statistics: dict[str, Tensor] = field(default_factory=dict)  # what the work asked for, NaN for absent clients
    refused: Mapping[int, str] = field(default_factory=dict)  # whose upload no method can use, and why: absent here


@dataclass(frozen=True)
class ClientStates:
    """What lives on the clients' side between rounds, by name (N, ...): the memory of optimisers and of attackers."""

    optimiser: dict[str, Tensor] = field(default_factory=dict)
    attackers: dict[str, Tensor] = field(default_factory=dict)  # engines pass it on, and know nothing of it


@dataclass(frozen=True)
class Delivered:
    """The models that count as each client's reward now: (N, D), or (D,) with or without neuron masks.

    A method that promises accuracies says which (N,), and what it found on the validation set (N,).
    """

    parameters: Tensor
    neuron_masks: Tensor | None = None
    promised: Tensor | None = None
    validated: Tensor | None = None


def rows_of(parameters: Tensor, clients: Tensor | slice) -> Tensor:
    """Return the rows (n, D) of some clients, whether parameters are one row per client or shared."""
    if parameters.dim() == 1:
        count = clients.numel() if isinstance(clients, Tensor) else clients.stop - clients.start
        return parameters.expand(count, -1)
    return parameters[clients]


@dataclass(frozen=True)
class Training:
    """A local training that a run waits for: what is handed out, what the clients remember, the round."""

    rewards: Rewards
    clients: ClientStates
    t: int


Trained = tuple[Uploads, ClientStates]  # what came back, and what the clients remember now
