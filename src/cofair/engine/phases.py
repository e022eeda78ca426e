"""The local trainings that a round is made of."""

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Phase:
    """One local training of a round.

    A phase that does not upload stays with the clients: all of them do it, whoever takes part in the round, and what
    comes of it is no upload, for attackers, defences and whatever is counted.
    """

    name: str
    uploads: bool = True
    alone: bool = False  # clients train by themselves: their optimisers start without memory and keep none
    repeated_in: int | None = None  # the round before which clients train alone again

    @property
    def address(self) -> str:
        """Return what the randomness of this phase is addressed by."""
        return self.name if self.repeated_in is None else f"{self.name} {self.repeated_in}"

    def again_in(self, t: int) -> "Phase":
        """Return this phase repeated before round t, with batches of its own."""
        return replace(self, repeated_in=t)

    def asked_in(self, t: int) -> int:
        """Return the round in which it is asked for; training alone is always that of round 1, whenever repeated."""
        return t if self.repeated_in is None else self.repeated_in


TRAIN = Phase("train")
PERSONALISE = Phase("personalise", uploads=False)
ALONE = Phase("alone", alone=True)
