"""Scenes: how the training data is spread over the clients.

Every scene is a pure function of the labels, an explicit numpy generator and its settings. Scenes work with
positions in the pool (the samples that clients may have); `split` turns positions into raw indices in one
place, because a scene that forgets to do so decouples samples from labels and hands out validation data.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cofair.errors import UsageError, nearest

Indices = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

POWER = 1.65911332899  # exponent of the power law of client sizes in CGSV's code, kept by its successors
NOISE = (0.2, 0.4, 0.6)  # CGSV: corrupted shares of the labels of agents 1 to 3
LEAST = 10  # dir-class: samples every client must have before a spread is accepted
_ATTEMPTS = 10_000  # dir-class: spreads tried before the request is called impossible


@dataclass(frozen=True, eq=False)
class Share:
    """What one client gets: raw indices of its samples, and their labels as the client sees them."""

    indices: Indices
    labels: Indices

    def __len__(self) -> int:
        return len(self.indices)


@dataclass(frozen=True)
class Spread:
    """What a scene works with: the pool's labels and the settings of the federation."""

    labels: Indices
    classes: int
    clients: int
    samples: int | None
    alpha: float
    noise: tuple[float, ...]

    @property
    def mean(self) -> int:
        """Return the mean number of samples per client: the one asked for, or all that the pool gives."""
        return len(self.labels) // self.clients if self.samples is None else self.samples


@dataclass(frozen=True)
class Scene:
    """A named way to spread data; `spread` returns each client's positions in the pool."""

    name: str
    summary: str
    spread: Callable[[Spread, np.random.Generator], list[Indices]]
    noisy: bool = False


def hold_out(n: int, fraction: float, rng: np.random.Generator) -> tuple[Indices, Indices]:
    """Return the indices of the server's random fraction of n samples, and the rest, both ascending."""
    if not 0 <= fraction < 1:
        raise UsageError(f"The held-out fraction is {fraction}: it must be at least 0 and below 1.")
    order = rng.permutation(n).astype(np.int64)
    count = int(fraction * n + 1e-9)  # 0.29 * 100 is a hair below 29
    return np.sort(order[:count]), np.sort(order[count:])


def split(
    scene: str,
    labels: npt.NDArray[np.integer],
    pool: npt.NDArray[np.integer],
    classes: int,
    clients: int,
    samples: int | None,
    rng: np.random.Generator,
    alpha: float = 1.0,
    noise: Sequence[float] = NOISE,
) -> list[Share]:
    """Spread the pool over clients; `labels[j]` is the label of the sample with raw index `pool[j]`.

    `samples` is the mean number per client; None spreads the whole pool, as the papers do for `dir`.
    """
    if scene not in SCENES:
        raise UsageError(f"Unknown scene {scene!r}: {nearest(scene, SCENES)}")
    raw: Indices = np.asarray(pool, dtype=np.int64)
    request = Spread(np.asarray(labels, dtype=np.int64), classes, clients, samples, alpha, tuple(noise))
    _check(SCENES[scene], request, raw)
    shares = SCENES[scene].spread(request, rng)
    for i, positions in enumerate(shares):
        if not len(positions):
            raise UsageError(
                f"Scene {scene!r} leaves client {i} without a sample ({len(raw)} samples for {clients} "
                "clients): take fewer clients or more samples."
            )
    seen = [request.labels[positions] for positions in shares]
    if SCENES[scene].noisy:
        for i, fraction in enumerate(request.noise):
            seen[i] = corrupt(seen[i], fraction, classes, rng)
    return [Share(raw[positions], own) for positions, own in zip(shares, seen, strict=True)]


def power_law_sizes(clients: int, samples: int) -> list[int]:
    """Return the sizes of scene `pow` before the last client is cut by what rounding the others up has taken."""
    # the quantile function of scipy's powerlaw(a) is q^(1/a); importing scipy.stats for it would take a second
    weights = np.linspace(0.01 ** (1 / POWER), 0.99 ** (1 / POWER), clients)
    return [int(size) for size in np.ceil(weights / weights.sum() * samples * clients)]


def corrupt(labels: Indices, fraction: float, classes: int, rng: np.random.Generator) -> Indices:
    """Return the labels with a random fraction of them replaced, uniformly by one of the other classes."""
    wrong = rng.permutation(len(labels))[: round(fraction * len(labels))]
    corrupted = labels.copy()
    corrupted[wrong] = (labels[wrong] + rng.integers(1, classes, len(wrong))) % classes
    return corrupted


def _check(scene: Scene, request: Spread, pool: Indices) -> None:
    labels, classes, clients, samples = request.labels, request.classes, request.clients, request.samples
    if labels.ndim != 1 or labels.shape != pool.shape:
        raise UsageError(
            f"There are labels of shape {labels.shape} for a pool of shape {pool.shape}: pass the labels of "
            "the pool's samples, in the pool's order."
        )
    if clients < 1:
        raise UsageError(f"A federation of {clients} clients was asked for: it needs at least 1.")
    if samples is not None and samples < 1:
        raise UsageError(f"{samples} samples per client were asked for: it takes at least 1.")
    if not 0 < request.alpha < np.inf:
        raise UsageError(f"alpha is {request.alpha}: the concentration of a Dirichlet scene must be above 0.")
    if len(labels) and not (labels.min() >= 0 and labels.max() < classes):
        raise UsageError(
            f"Labels run from {labels.min()} to {labels.max()}: with {classes} classes they must lie in "
            f"0 to {classes - 1}."
        )
    if scene.noisy:
        _check_noise(request)
    if samples is not None and scene.name != "cla" and samples * clients > len(pool):
        raise UsageError(
            f"Scene {scene.name!r} with {clients} clients of {samples} samples needs {samples * clients} "
            f"samples, but the pool has {len(pool)}: ask for at most {len(pool) // clients} per client."
        )


def _check_noise(request: Spread) -> None:
    if not all(0 <= fraction <= 1 for fraction in request.noise):
        raise UsageError(f"The noise fractions are {request.noise}: each must lie between 0 and 1.")
    if len(request.noise) > request.clients:
        raise UsageError(
            f"There are {len(request.noise)} noise fractions for {request.clients} clients: give at most one "
            "per client."
        )
    if request.classes < 2:
        raise UsageError("Scene 'noisy' needs at least 2 classes, so that a label can be wrong.")


def _uni(request: Spread, rng: np.random.Generator) -> list[Indices]:
    order = rng.permutation(len(request.labels))
    return np.split(order[: request.mean * request.clients], request.clients)


def _pow(request: Spread, rng: np.random.Generator) -> list[Indices]:
    order = rng.permutation(len(request.labels))[: request.mean * request.clients]
    ends = np.cumsum(power_law_sizes(request.clients, request.mean))
    return np.split(order, ends[:-1])  # rounding up overshoots: the last client takes what is left


def _cla(request: Spread, rng: np.random.Generator) -> list[Indices]:
    members = [np.flatnonzero(request.labels == label) for label in range(request.classes)]
    empty = [label for label, own in enumerate(members) if not len(own)]
    if empty:
        raise UsageError(f"Scene 'cla' needs samples of every class, but the pool has none of class {empty[0]}.")
    if request.mean < request.classes:
        raise UsageError(
            f"Scene 'cla' with {request.classes} classes needs at least as many samples per client, not {request.mean}."
        )
    owned = np.floor(np.linspace(1, request.classes, request.clients) + 1e-9).astype(int)
    shares = []
    for count in owned:
        draws = np.full(count, request.mean // count)
        draws[-1] += request.mean % count
        shares.append(np.concatenate([rng.choice(members[k], n) for k, n in enumerate(draws)]))
    return shares


def _subset(request: Spread, rng: np.random.Generator) -> tuple[Indices, Indices]:
    """Return positions in random order, as many as were asked for, and their labels."""
    order = rng.permutation(len(request.labels))
    if request.samples is not None:
        order = order[: request.samples * request.clients]
    return order, request.labels[order]


def _deal(order: Indices, labels: Indices, weights: Floats) -> list[Indices]:
    """Split each class over the clients in proportion to its column of the weights (clients, classes)."""
    shares: list[list[Indices]] = [[] for _ in weights]
    for label in range(weights.shape[1]):
        own = order[labels == label]
        for share, part in zip(shares, np.split(own, _cuts(weights[:, label], len(own))), strict=True):
            share.append(part)
    return [np.concatenate(share) for share in shares]


def _cuts(weights: Floats, count: int) -> Indices:
    """Return where to cut `count` samples so that the pieces have the given weights (equal if all are 0)."""
    if not weights.sum() > 0:
        weights = np.ones_like(weights)
    # the last weights may be 0: dividing by the sum itself makes their ends exactly 1
    ends = np.cumsum(weights)
    cuts: Indices = (ends[:-1] / ends[-1] * count).astype(np.int64)
    return cuts


def _dir(request: Spread, rng: np.random.Generator) -> list[Indices]:
    order, labels = _subset(request, rng)
    counts = np.bincount(labels, minlength=request.classes)
    weights = np.zeros((request.clients, request.classes))
    if len(labels):
        present = counts > 0
        weights[:, present] = _client_mixtures(counts[present] / len(labels), request, rng)
    return _deal(order, labels, weights)


def _client_mixtures(p: Floats, request: Spread, rng: np.random.Generator) -> Floats:
    """Draw each client's label proportions from Dir(alpha p), redrawing until their mean is p.

    As in FLGo: clients take turns, each takes the best of as many new draws as there are clients if that
    brings the mean nearer; the squared error may be 1e-6, ten times more after every 500 tries.
    """
    N = request.clients
    mixtures = rng.dirichlet(request.alpha * p, N)
    tolerance, tries = 1e-6, 0
    while True:
        total = mixtures.sum(0)
        error = ((total / N - p) ** 2).sum()
        if error <= tolerance:
            return mixtures
        client = tries % N
        fresh = rng.dirichlet(request.alpha * p, N)
        errors = (((total - mixtures[client] + fresh) / N - p) ** 2).sum(1)
        if errors.min() < error:
            mixtures[client] = fresh[errors.argmin()]
        tries += 1
        if tries % 500 == 0:
            tolerance *= 10


def _dir_class(request: Spread, rng: np.random.Generator) -> list[Indices]:
    order, labels = _subset(request, rng)
    n, N = len(order), request.clients
    counts = np.bincount(labels, minlength=request.classes)
    for _ in range(_ATTEMPTS if n >= LEAST * N else 0):
        weights = rng.dirichlet(np.full(N, request.alpha), request.classes).T
        sizes = np.zeros(N, dtype=np.int64)
        for label in range(request.classes):
            below = sizes < n / N  # a client that has its even share already gets no more (NIID-bench)
            share = weights[:, label] * below
            weights[:, label] = share if share.any() else below
            sizes += np.diff(_cuts(weights[:, label], counts[label]), prepend=0, append=counts[label])
        if sizes.min() >= LEAST:
            return _deal(order, labels, weights)
    raise UsageError(
        f"Scene 'dir-class' with alpha = {request.alpha:g} cannot give each of {N} clients {LEAST} of {n} "
        "samples: raise alpha, or take fewer clients or more samples."
    )


SCENES = {
    scene.name: scene
    for scene in (
        Scene("uni", "equal sizes, same mixture of classes", _uni),
        Scene("pow", "sizes follow a power law, same mixture of classes", _pow),
        Scene("cla", "equal sizes, from one class for the first client to all classes for the last", _cla),
        Scene("dir", "nearly equal sizes, each client draws its mixture of classes from Dir(alpha p)", _dir),
        Scene("dir-class", "each class is spread over the clients by Dir(alpha)", _dir_class),
        Scene("noisy", "as uni, but the first clients have a share of wrong labels", _uni, noisy=True),
    )
}
