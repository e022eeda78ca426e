"""The local trainings that a round is made of."""

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Phase:
    """One local training of a round.

    A phase that does not upload stays with the clients: all of them do it, also those that do not take part in
    the round, and its result is no upload: it is not attacked, not defended against and not counted.
    """

    name: str
    uploads: bool = True
    alone: bool = False  # clients train by themselves: their optimisers start without memory and keep none
    repeated_in: int | None = None  # the round before which clients train alone again
    stage: int = 0  # of training alone: a later one continues from the client's own model of the one before

    @property
    def address(self) -> str:
        """Return what the randomness of this phase is addressed by."""
        again = "" if self.repeated_in is None else f" {self.repeated_in}"
        return f"{self.name}{again} stage {self.stage}" if self.stage else f"{self.name}{again}"

    def again_in(self, t: int | None) -> "Phase":
        """Return this phase repeated before round t, with batches of its own; None: for the first time."""
        return replace(self, repeated_in=t)

    def asked_in(self, t: int) -> int:
        """Return the round in which it is asked for; training alone is always that of round 1, whenever repeated."""
        return t if self.repeated_in is None else self.repeated_in


TRAIN = Phase("train")
PERSONALISE = Phase("personalise", uploads=False)
ALONE = Phase("alone", alone=True)
