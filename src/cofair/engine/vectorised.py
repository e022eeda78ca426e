"""All clients as one batch: rows of a stack, no Python loop over clients, data resident on the device."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor
from torch.func import vmap

from cofair.engine.activation_memory import activation_bytes
from cofair.engine.forward import Forward
from cofair.engine.gradients import Gradients, lengths
from cofair.engine.graphs import StepGraphs
from cofair.engine.linear_stack import LinearStack
from cofair.engine.optimisers import OPTIMISERS, Named, StackedSteps
from cofair.engine.problem import Problem, first_line
from cofair.engine.protocol import ClientStates, Rewards, Uploads, rows_of
from cofair.engine.schedule import Step, longest_first, schedule
from cofair.engine.statistics import LOOK, empty_losses, from_batch_losses, look
from cofair.engine.work import Work
from cofair.errors import CofairError, RunError

_LOOKED_AT = 4096  # samples at once, where nothing is trained: a step for each batch of 64 takes longer
_LOOKED_BYTES = 2**30  # of layers' outputs at once on a GPU, which waits between small steps
_EXTRA = "extra "  # before the names of what a module is given besides its parameters
Drawn = tuple[Tensor, Tensor]  # masks (n, W, K) and how many of them each client draws from (n,)


class VectorisedEngine:
    """Trains all clients together: a hand-written backward for linear stacks, torch.func for the rest."""

    def __init__(self, problem: Problem) -> None:
        """Prepare to train the clients of a problem."""
        self.problem = problem
        self.stack = LinearStack.of(problem.layout, problem.neurons)
        self.forward = Forward(problem.layout, problem.neurons)
        self.gradients = Gradients(problem, self.forward)
        self.graphs = StepGraphs(problem)

    @torch.no_grad()
    def train(self, rewards: Rewards, states: ClientStates, t: int) -> tuple[Uploads, ClientStates]:
        """Train every participant that has data; the others' updates are zero and they count as absent."""
        federation, layout, work = self.problem.federation, self.problem.layout, rewards.work
        self.problem.check_masks(rewards)
        present = federation.present(rewards.participants)
        busy = present.cpu().nonzero().flatten()
        order = busy[longest_first(federation.sizes[busy], work)]
        statistics = self.statistics(rewards, t)
        if not len(order):
            no_updates = layout.new_rows(len(federation), self.problem.device).zero_()
            return Uploads(no_updates, present, federation.sizes, statistics), states
        there = order.to(self.problem.device)
        start = rows_of(rewards.parameters, there).to(layout.dtype)
        self.graphs.begin()
        masks = None if rewards.neuron_masks is None else rewards.neuron_masks[there]
        rows = self.graphs.hold("rows", start)
        steps = schedule(self.problem.table.select(order), work, t, layout.dtype)
        drawn: Drawn | None = None
        if rewards.step_masks is not None and rewards.step_choices is not None:
            drawn = rewards.step_masks[there], rewards.step_choices[there]
        with _explaining_failures(t):
            if self.stack is not None and OPTIMISERS[work.optimiser].is_stack_step:
                self._train_stack(rows, masks, steps, work, drawn)
            else:
                with self.problem.own_randomness(t, work.phase.address):
                    states = self._train_any(rows, masks, steps, work, states, order, drawn)
        updates = torch.sub(rows, start, out=layout.new_rows(len(rows), rows.device) if self.graphs.usable else rows)
        return Uploads(self._in_place_order(updates, order), present, federation.sizes, statistics), states

    @torch.no_grad()
    def statistics(self, rewards: Rewards, t: int) -> Named:
        """Return what the work asks of clients besides their updates, all of it before they train."""
        if not rewards.work.statistics:
            return {}
        federation = self.problem.federation
        busy = federation.present(rewards.participants).cpu().nonzero().flatten()
        losses = empty_losses(federation.sizes, rewards.work.looks, self.problem.layout.dtype, self.problem.device)
        if len(busy):
            with _explaining_failures(t):
                self._look(rewards, busy, t, losses)
        return from_batch_losses(rewards.work.statistics, losses, federation.sizes)

    @cached_property
    def _looked_at(self) -> int:
        """How many samples are looked at together."""
        if self.problem.device.type == "cpu":
            return _LOOKED_AT
        each, _ = activation_bytes(self.problem.layout.prototype, self.problem.federation.test.x[:1])
        return max(_LOOKED_AT, _LOOKED_BYTES // each)

    def _look(self, rewards: Rewards, busy: Tensor, t: int, losses: Tensor) -> None:
        """Write the mean loss of each batch of the clients' data into losses (N, S)."""
        federation, layout = self.problem.federation, self.problem.layout
        order = busy[longest_first(federation.sizes[busy], LOOK)]
        there = order.to(self.problem.device)
        rows = rows_of(rewards.parameters, there)
        neuron_masks = None if rewards.neuron_masks is None else rewards.neuron_masks[there]
        if self.stack is not None:
            if rows.is_cuda:  # tensor cores take rows that are aligned
                rows = layout.new_rows(len(rows), rows.device).copy_(rows)
            unit_masks = self.stack.unit_masks(neuron_masks)
        else:
            if neuron_masks is not None and self.problem.neurons is not None:
                rows = rows * self.problem.neurons.parameter_mask(neuron_masks)
            named, extras = layout.views(rows), self.forward.mask_extras(neuron_masks)
            evaluate = vmap(self.forward.evaluate, randomness="different")
        batches = look(self.problem.table.select(order), rewards.work.looks, t, layout.dtype)
        for steps in _joined(batches, self._looked_at):
            n, first = steps[0].active, steps[0].number
            x, y = self.problem.table.samples(torch.cat([step.positions for step in steps], 1))
            if self.stack is not None:
                masks = [None if mask is None else mask[:n] for mask in unit_masks]
                outputs = self.stack.activations(rows[:n], x.flatten(2), masks)[-1]
            else:
                own = {name: value[:n] for name, value in named.items()}
                outputs = evaluate(own, {name: value[:n] for name, value in extras.items()}, x)
            weights = torch.stack([step.weights for step in steps], 1)
            each = self.problem.loss(outputs.flatten(0, 1), y.flatten(0, 1)).view(weights.shape)
            losses[there[:n], first : first + len(steps)] = (each * weights).sum(2)

    def _in_place_order(self, rows: Tensor, order: Tensor) -> Tensor:
        """Return the rows where their clients stand, zeros for absent clients."""
        N = len(self.problem.federation)
        if len(order) == N and torch.equal(order, torch.arange(N)):
            return rows
        updates = self.problem.layout.new_rows(N, rows.device).zero_()
        updates[order.to(rows.device)] = rows
        return updates

    def _train_stack(
        self, rows: Tensor, neuron_masks: Tensor | None, steps: Iterator[Step], work: Work, drawn: Drawn | None
    ) -> None:
        stack = self.stack
        assert stack is not None
        masks = stack.unit_masks(neuron_masks)

        def take(given: Named) -> None:
            x, y = self.problem.table.samples(given["positions"])
            own = [given.get(f"mask {i}") for i in range(len(masks))]
            stack.step(rows[: len(x)], x, y, given["weights"], own, given["lr"], work.clip, self.problem.loss)

        for step in steps:
            if drawn is not None:
                masks = stack.unit_masks(step.drawn(*drawn))
            given = {f"mask {i}": mask[: step.active] for i, mask in enumerate(masks) if mask is not None}
            self.graphs.take(("stack", work.clip), take, given | _inputs(step))

    def _train_any(
        self, rows: Tensor, neuron_masks: Tensor | None, steps: Iterator[Step], work: Work,
        states: ClientStates, order: Tensor, drawn: Drawn | None,
    ) -> ClientStates:  # fmt: skip
        layout = self.problem.layout
        views = layout.views(rows)
        masks, extras = self._masks(neuron_masks)
        optimiser = StackedSteps(
            OPTIMISERS[work.optimiser], states.optimiser, order.to(rows.device), len(self.problem.federation), layout,
            rows, self.graphs.hold,
        )  # fmt: skip

        def take(given: Named) -> None:
            x, y = self.problem.table.samples(given["positions"])
            n = len(x)
            own = {name: value[:n] for name, value in views.items()}
            extra = {name.removeprefix(_EXTRA): value for name, value in given.items() if name.startswith(_EXTRA)}
            kept = {name: value * masks[name][:n] if name in masks else value for name, value in own.items()}
            gradients = self.gradients(kept, extra, x, y, given["weights"])
            held = {name: mask[:n] for name, mask in masks.items()}
            gradients |= {name: gradients[name] * mask for name, mask in held.items()}
            optimiser.step(own, gradients, given["lr"], _clipping(gradients, work.clip), held)

        for step in steps:
            if drawn is not None:
                masks, extras = self._masks(step.drawn(*drawn))
            extra = {name: value[: step.active] for name, value in extras.items()}
            if self.forward.drops_out:
                extra |= self.forward.dropout_extras(step.keys())
            given = {f"{_EXTRA}{name}": value for name, value in extra.items()}
            self.graphs.take((work.optimiser, work.clip, *masks), take, given | _inputs(step))
        return replace(states, optimiser=optimiser.remembered())

    def _masks(self, neuron_masks: Tensor | None) -> tuple[Named, Named]:
        """Return by name what neuron masks multiply: parameters, and extras besides them."""
        if neuron_masks is None or self.problem.neurons is None:
            return {}, {}
        masks = self.problem.neurons.parameter_masks(neuron_masks)
        held = {name: self.graphs.hold(f"mask {name}", mask) for name, mask in masks.items()}
        return held, self.forward.mask_extras(neuron_masks)


def _joined(steps: Iterator[Step], most: int) -> Iterator[list[Step]]:
    """Join steps of the same clients that follow each other, while they have at most `most` samples together."""
    found: list[Step] = []
    for step in steps:
        fits = found and found[0].active == step.active and (len(found) + 1) * step.positions.numel() <= most
        if found and not fits:
            yield found
            found = []
        found.append(step)
    if found:
        yield found


@contextmanager
def _explaining_failures(t: int) -> Iterator[None]:
    """Raise whatever a user's module or loss raises as one sentence."""
    try:
        yield
    except (torch.OutOfMemoryError, CofairError):
        raise
    except Exception as error:
        raise RunError(f"Training failed in round {t}: {first_line(error)}") from error


def _clipping(gradients: Named, clip: float | None) -> Tensor | None:
    """Return what to scale each client's gradient by (n,), if by anything."""
    if clip is None:
        return None
    squares = torch.stack([lengths(gradient) for gradient in gradients.values()]).square().sum(0)
    return clip / (squares.sqrt() + 1e-6).clamp(min=clip)


def _inputs(step: Step) -> Named:
    """Return what every step is given."""
    lr = step.lr if isinstance(step.lr, Tensor) else torch.full_like(step.weights[:, 0], step.lr)
    return {"positions": step.positions, "weights": step.weights, "lr": lr}
