"""What a client is asked to do with the model it received."""

from dataclasses import dataclass, replace
from typing import Literal

from cofair.engine import optimisers
from cofair.engine.phases import TRAIN, Phase
from cofair.errors import UsageError


@dataclass(frozen=True)
class Work:
    """Local training: how long, with which steps.

    Exactly one of `steps` and `epochs` is set. Steps are taken from freshly shuffled data that is shuffled
    again whenever it is used up. With `decay_every="epoch"` the learning rate falls after each local epoch
    and keeps falling over the rounds; with "round", once per round.
    """

    steps: int | None = 15
    epochs: int | None = None
    batch_size: int = 32
    lr: float = 0.03
    decay: float = 1.0
    decay_every: Literal["round", "epoch"] = "round"
    clip: float | None = None
    optimiser: str = "sgd"  # one of OPTIMISERS
    drop_last: bool = False
    phase: Phase = TRAIN
    epochs_a_round: int | None = None  # of the main training, by which the learning rate falls; its epochs if not set
    statistics: tuple[Literal["loss_before", "batch_losses_before"], ...] = ()  # asked of clients besides updates
    looks: int | None = None  # most batches of a client's data that statistics are taken of; all of them if not set

    def __post_init__(self) -> None:
        if not isinstance(self.phase, Phase):
            raise UsageError(f"A phase is a Phase, such as Phase('finetune', uploads=False), and not {self.phase!r}.")
        optimisers.find(self.optimiser)
        if (self.steps is None) == (self.epochs is None):
            raise UsageError("Local training needs either steps or epochs, not both and not neither.")
        if self.decay_every == "epoch" and self.epochs is None:
            raise UsageError("decay_every = 'epoch' needs local training counted in epochs.")
        if self.looks is not None and self.looks < 1:
            raise UsageError(f"Statistics need at least one batch, not {self.looks}.")
        if self.looks is not None and "loss_before" in self.statistics:
            raise UsageError("The loss before training is a mean over all of a client's samples: it needs looks unset.")

    @property
    def training(self) -> "Work":
        """This work, with nothing asked of clients besides their updates."""
        return replace(self, statistics=(), looks=None)

    def times(self, units: int, phase: Phase) -> "Work":
        """Return this work done `units` times over, as a phase of its own."""
        return replace(
            self,
            steps=None if self.steps is None else self.steps * units,
            epochs=None if self.epochs is None else self.epochs * units,
            phase=phase,
            epochs_a_round=self.epochs,
        )
