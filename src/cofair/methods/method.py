"""What every method is: settings, a typed state, and a few pure functions over them."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, Generic, TypeVar

import torch
from torch import Tensor

from cofair import randomness
from cofair.engine.phases import TRAIN, Phase
from cofair.engine.problem import Problem
from cofair.engine.protocol import Delivered, Rewards, Uploads
from cofair.engine.work import Work
from cofair.errors import RunError, UsageError
from cofair.methods.rules.aggregation import Rule
from cofair.methods.rules.growth import grown
from cofair.scoring.scorer import Scorer, Scores

State = TypeVar("State")


class Server:
    """What the server of a run knows and can do. A method sees the world only through it."""

    def __init__(
        self, problem: Problem, initial: Tensor, work: Work, rounds: int, evaluates: Callable[[int], bool],
        train_alone: Callable[[], Uploads], *, rule: Rule | None = None, forgives: bool = False,
        metric: str = "accuracy", brings_accuracies: bool = True,
    ) -> None:  # fmt: skip
        """Set up the server of a run.

        `evaluates(t)` tells whether the rewards of round t are tested, `train_alone()` gives what
        clients upload that trained by themselves. `rule` is how methods that average join updates. A server that
        `forgives` takes who diverged alone for one who brings least, instead of ending the run. `metric` names what
        models are judged by; `brings_accuracies` tells whether contributions are values of it.
        """
        self.initial = initial
        self.work = work
        self.rounds = rounds
        self.layout = problem.layout
        self.neurons = problem.neurons
        self.sizes = problem.federation.sizes.to(problem.device)
        self.classes = problem.federation.classes
        self.names = problem.federation.names
        self.class_counts = problem.federation.class_counts  # how many samples of each class each client has (N, C)
        self.seed = problem.seed
        self.metric = metric
        self.brings_accuracies = brings_accuracies
        self.tested_on = len(problem.federation.test)  # samples that test rewards; a method never sees them
        self.contributions: Tensor = torch.zeros(0)
        self.evaluates = evaluates
        self.rule = rule
        self.forgives = forgives
        self.unmeasured: Tensor | None = None  # whose model trained alone could not be used (N,)
        self._train_alone = train_alone
        self._alone: Tensor | None = None
        validation = problem.federation.validation
        self._scorer = None if validation is None else Scorer(problem, validation)

    @property
    def clients(self) -> int:
        """Return N."""
        return len(self.sizes)

    @property
    def validation(self) -> Scorer:
        """Return the scorer of candidate models on the server's validation set."""
        if self._scorer is None:
            raise UsageError("This needs a validation set at the server, and the federation has none.")
        return self._scorer

    @property
    def has_validation(self) -> bool:
        """Tell whether the server has a validation set."""
        return self._scorer is not None

    def score(
        self, parameters: Tensor, neuron_masks: Tensor | None = None, *, per_sample: bool = False,
        among: Tensor | None = None,
    ) -> Scores:  # fmt: skip
        """Score candidates on the validation set: rows (C, D), or one base (D,) under neuron masks (C, K).

        `among` names the places of the samples that count, in order; without it all of them do.
        """
        scorer = self.validation if among is None else self.validation.on(among)
        return scorer.score(parameters, neuron_masks, per_sample=per_sample)

    def alone(self) -> Tensor:
        """Return the models (N, D) that clients train by themselves; trained once, on first demand."""
        if self._alone is None:
            self.take_alone(self._train_alone())
        assert self._alone is not None
        return self._alone

    def take_alone(self, uploads: Uploads) -> None:
        """Take what clients upload that trained by themselves; runs in lockstep train all of them together."""
        models = uploads.updates + self.initial
        self.unmeasured = ~torch.isfinite(models).all(1)
        diverged = self.unmeasured.nonzero().flatten().tolist()
        if diverged and self.forgives:
            models = torch.where(self.unmeasured[:, None], self.initial, models)
        elif diverged:
            raise RunError(
                f"Client {self.names[diverged[0]]!r} diverged when it trained alone, so what it brings "
                "cannot be measured: lower training.lr or set training.clip."
            )
        self._alone = models

    def told(self, contributions: Tensor) -> "Server":
        """Return this server with other contributions; everything else is shared."""
        if contributions is self.contributions:
            return self
        other = copy.copy(self)
        other.contributions = contributions
        return other

    def random(self, t: int, purpose: str) -> torch.Generator:
        """Return the server's randomness for a purpose in round t."""
        return randomness.generator(self.seed, "server", t, purpose)

    def places(self) -> Tensor:
        """Return each client's place (N,) in the order of names, numbers by size: the same however clients stand.

        What is drawn or decided for a place and not for a row moves with the client when clients are permuted.
        """
        order = sorted(range(self.clients), key=lambda i: (len(self.names[i]), self.names[i]))
        return torch.tensor(order).argsort()


class Method(ABC, Generic[State]):
    """A reward mechanism. Its subclasses are frozen dataclasses whose fields are the method's settings."""

    name: ClassVar[str]
    paper: ClassVar[str]
    needs_validation: ClassVar[bool] = False
    without_validation: ClassVar[str] = ""  # how it would work without, if it would: a sentence for who has none
    averages: ClassVar[bool] = False  # it joins updates by the server's rule: mean, median or trimmed mean

    def validates(self) -> bool:
        """Tell whether the method, with its settings, needs a validation set at the server."""
        return self.needs_validation

    def notes(self, server: Server) -> list[str]:
        """Say what is to be known before the first round, in sentences; most methods have nothing to say."""
        return []

    def unwritten(self, contributions: Tensor | None = None) -> dict[str, list[float]]:
        """Return what was given in Python and no file can say, by name.

        Where contributions are known, with numbers by which it is known again when a run goes on.
        """
        return {}

    def rounds(self, server: Server) -> int:
        """Return how many rounds the method runs."""
        return server.rounds

    def phases(self, server: Server, t: int) -> tuple[Phase, ...]:
        """Return the local trainings of round t, in order; most methods have one."""
        return (TRAIN,)

    @abstractmethod
    def start(self, server: Server) -> State:
        """Return the state before the first round."""

    @abstractmethod
    def rewards(self, server: Server, state: State, t: int, phase: Phase) -> Rewards:
        """Return what each client receives now; a pure read of the state."""

    @abstractmethod
    def learn(self, server: Server, state: State, rewards: Rewards, uploads: Uploads, t: int, phase: Phase) -> State:
        """Return the state after the uploads of this phase."""

    @abstractmethod
    def delivered(self, server: Server, state: State) -> Delivered:
        """Return the models that count as each client's reward now."""

    def reputation(self, state: State) -> Tensor | None:
        """Return what the server currently believes of each client (N,), if the method keeps that."""
        return None

    def welcome(self, server: Server, state: State, t: int) -> State:
        """Return the state with room for clients that join before round t; the server knows them already.

        They begin as everybody began. A method whose beginners hold more than a newcomer has earned says otherwise.
        """
        return grown(state, self.start(server))

    def faded(self, state: State, factor: Tensor) -> State:
        """Return the state with each client's reputation times a factor (N,), where that is not a contribution's."""
        return state
