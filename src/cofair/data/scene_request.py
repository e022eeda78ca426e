"""What is asked of a scene: for how many clients, and how many samples each."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cofair.data import scenes
from cofair.errors import UsageError

DEFAULT_SAMPLES = 2000  # mean samples per client in the published experiments
WHOLE_POOL = ("dir", "dir-class")  # scenes that use every sample, as published


@dataclass(frozen=True)
class SceneRequest:
    """A scene, its clients and its settings."""

    scene: str
    clients: int
    samples: int | None
    alpha: float
    noise: tuple[float, ...]

    def shares(
        self, data: str, labels: npt.NDArray[np.integer], pool: scenes.Indices, classes: int, rng: np.random.Generator
    ) -> list[scenes.Share]:
        """Spread a pool of samples over the clients; `data` is what errors call it, `labels` are those of the pool."""
        if len(pool) < self.clients:
            raise UsageError(f"{data!r} has {len(pool)} samples for clients, too few for {self.clients} clients.")
        samples = self.samples
        if samples is None and self.scene not in WHOLE_POOL:
            samples = min(DEFAULT_SAMPLES, len(pool) // self.clients)
        return scenes.split(self.scene, labels, pool, classes, self.clients, samples, rng, self.alpha, self.noise)
