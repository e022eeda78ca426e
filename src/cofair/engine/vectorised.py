"""All clients as one batch: rows of a stack, no Python loop over clients, data resident on the device."""

from collections.abc import Iterator
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor
from torch.func import grad, vmap

from cofair.engine.batches import Step, longest_first, schedule
from cofair.engine.exchange import ClientStates, Rewards, Uploads, rows_of
from cofair.engine.forward import Forward
from cofair.engine.linear_stack import LinearStack
from cofair.engine.optimisers import Adam, Named, Sgd, adam_memory, per_client
from cofair.engine.problem import Problem, first_line
from cofair.engine.statistics import LOOK, empty_losses, from_batch_losses
from cofair.engine.work import Work
from cofair.errors import CofairError, RunError

_ALIKE = 0.1  # relative difference of two ways to compute a gradient, at most: in TF32 maxima and signs may change
_NEGLIGIBLE = 0.01  # the same, in parts of the whole gradient: of a parameter whose gradient is but rounding
Drawn = tuple[Tensor, Tensor]  # masks (n, W, K) and how many of them each client draws from (n,)


class VectorisedEngine:
    """Trains all clients together: a hand-written backward for linear stacks, torch.func for the rest."""

    def __init__(self, problem: Problem) -> None:
        """Prepare to train the clients of a problem."""
        self.problem = problem
        self.stack = LinearStack.of(problem.layout, problem.neurons)
        self.forward = Forward(problem.layout, problem.neurons)
        self._fast: bool | None = None  # not known yet

    @torch.no_grad()
    def train(self, rewards: Rewards, states: ClientStates, t: int) -> tuple[Uploads, ClientStates]:
        """Train every participant that has data; the others' updates are zero and they count as absent."""
        federation, layout, work = self.problem.federation, self.problem.layout, rewards.work
        self.problem.check_masks(rewards)
        present = federation.present(rewards.participants)
        busy = present.cpu().nonzero().flatten()
        order = busy[longest_first(federation.sizes[busy], work)]
        rows = layout.new_rows(len(order), self.problem.device)
        if not len(order):
            nothing = from_batch_losses(work.statistics, self._look(rewards, busy, t), federation.sizes)
            return Uploads(rows.new_zeros(len(federation), layout.size), present, federation.sizes, nothing), states
        there = order.to(self.problem.device)
        start = rows_of(rewards.parameters, there)
        masks = None if rewards.neuron_masks is None else rewards.neuron_masks[there]
        rows.copy_(start)
        steps = schedule(self.problem.table.select(order), work, t, layout.dtype)
        drawn: Drawn | None = None
        if rewards.step_masks is not None and rewards.step_choices is not None:
            drawn = rewards.step_masks[there], rewards.step_choices[there]
        statistics: Named = {}
        try:
            if work.statistics:
                statistics = from_batch_losses(work.statistics, self._look(rewards, busy, t), federation.sizes)
            if self.stack is not None and work.optimiser == "sgd":
                self._train_stack(rows, masks, steps, work, drawn)
            else:
                with self.problem.own_randomness(t, work.phase):
                    states = self._train_any(rows, masks, steps, work, states, order, drawn)
        except torch.OutOfMemoryError:
            raise
        except CofairError:
            raise
        except Exception as error:  # a user's module or loss may raise anything
            raise RunError(f"Training failed in round {t}: {first_line(error)}") from error
        rows.sub_(start)
        return Uploads(self._in_place_order(rows, order), present, federation.sizes, statistics), states

    def _look(self, rewards: Rewards, busy: Tensor, t: int) -> Tensor:
        """Return the mean loss of each batch of the clients' data (N, S), before training."""
        federation, layout = self.problem.federation, self.problem.layout
        losses = empty_losses(federation.sizes, layout.dtype, self.problem.device)
        order = busy[longest_first(federation.sizes[busy], LOOK)]
        there = order.to(self.problem.device)
        rows = rows_of(rewards.parameters, there)
        neuron_masks = None if rewards.neuron_masks is None else rewards.neuron_masks[there]
        if self.stack is not None:
            unit_masks = self.stack.unit_masks(neuron_masks)
        else:
            if neuron_masks is not None and self.problem.neurons is not None:
                rows = rows * self.problem.neurons.parameter_mask(neuron_masks)
            named, extras = layout.views(rows), self.forward.mask_extras(neuron_masks)
            evaluate = vmap(self.forward.evaluate, randomness="different")
        for step in schedule(self.problem.table.select(order), LOOK, t, layout.dtype):
            n = step.active
            x, y = self.problem.table.samples(step.positions)
            if self.stack is not None:
                masks = [None if mask is None else mask[:n] for mask in unit_masks]
                outputs = self.stack.activations(rows[:n], x.flatten(2), masks)[-1]
            else:
                own = {name: value[:n] for name, value in named.items()}
                outputs = evaluate(own, {name: value[:n] for name, value in extras.items()}, x)
            each = self.problem.loss(outputs.flatten(0, 1), y.flatten(0, 1)).view(step.weights.shape)
            losses[there[:n], step.number] = (each * step.weights).sum(1)
        return losses

    def _in_place_order(self, rows: Tensor, order: Tensor) -> Tensor:
        """Return the rows where their clients stand, zeros for who was absent."""
        N = len(self.problem.federation)
        if len(order) == N and torch.equal(order, torch.arange(N)):
            return rows
        updates = self.problem.layout.new_rows(N, rows.device).zero_()
        updates[order.to(rows.device)] = rows
        return updates

    def _train_stack(
        self, rows: Tensor, neuron_masks: Tensor | None, steps: Iterator[Step], work: Work, drawn: Drawn | None
    ) -> None:
        assert self.stack is not None
        masks = self.stack.unit_masks(neuron_masks)
        for step in steps:
            n = step.active
            x, y = self.problem.table.samples(step.positions)
            if drawn is not None:
                masks = self.stack.unit_masks(step.drawn(*drawn))
            self.stack.step(
                rows[:n], x, y, step.weights, [None if mask is None else mask[:n] for mask in masks],
                step.lr, work.clip, self.problem.loss,
            )  # fmt: skip

    def _train_any(
        self, rows: Tensor, neuron_masks: Tensor | None, steps: Iterator[Step], work: Work,
        states: ClientStates, order: Tensor, drawn: Drawn | None,
    ) -> ClientStates:  # fmt: skip
        masks, extras = self._masks(neuron_masks)
        optimiser: Sgd | Adam = Sgd()
        if work.optimiser == "adam":
            like = rows[:1].expand(len(self.problem.federation), -1)
            optimiser = Adam(adam_memory(states, like), order.to(rows.device), self.problem.layout)
        views = self.problem.layout.views(rows)
        for step in steps:
            n = step.active
            if drawn is not None:
                masks, extras = self._masks(step.drawn(*drawn))
            parameters = {name: value[:n] for name, value in views.items()}
            kept = parameters
            if masks is not None:
                kept = {name: value * masks[name][:n] for name, value in parameters.items()}
            extra = {name: value[:n] for name, value in extras.items()}
            extra |= self.forward.dropout_extras(step.keys())
            x, y = self.problem.table.samples(step.positions)
            gradients = self._gradients(kept, extra, x, y, step.weights)
            if masks is not None:
                gradients = {name: value * masks[name][:n] for name, value in gradients.items()}
            if work.clip is not None:
                gradients = _clipped(gradients, work.clip)
            optimiser.step(parameters, gradients, step.lr)
        return optimiser.states() if isinstance(optimiser, Adam) else states

    def _masks(self, neuron_masks: Tensor | None) -> tuple[Named | None, Named]:
        """Return what neuron masks multiply: parameters (none without masks), and extras beside them."""
        if neuron_masks is None or self.problem.neurons is None:
            return None, {}
        keep = self.problem.layout.views(self.problem.neurons.parameter_mask(neuron_masks))
        return keep, self.forward.mask_extras(neuron_masks)

    @cached_property
    def _fast_forward(self) -> Forward:
        return Forward(self.problem.layout, self.problem.neurons, stacked=True)

    def _gradients(self, *given: Any) -> Named:
        """Return each client's gradient of its objective, the fast way where that is known to be right."""
        if self._fast is None and len(given[-1]) > 1:
            self._fast = self._is_fast_right(*given)
        return self._fast_gradients(*given) if self._fast else self._safe_gradients(*given)

    def _safe_gradients(self, *given: Any) -> Named:
        found: Named = vmap(grad(partial(self._objective, self.forward)), randomness="different")(*given)
        return found

    def _fast_gradients(self, parameters: Named, *given: Any) -> Named:
        """Go back over the stack itself, in far fewer steps: the sum's gradient is each client's own."""
        leaves = {name: value.detach().requires_grad_() for name, value in parameters.items()}
        with torch.enable_grad():
            objectives = vmap(partial(self._objective, self._fast_forward), randomness="different")(leaves, *given)
            found = torch.autograd.grad(
                objectives.sum(), list(leaves.values()), allow_unused=True, materialize_grads=True
            )
        return dict(zip(leaves, found, strict=True))

    def _is_fast_right(self, *given: Any) -> bool:
        """Try both ways on a step of several clients.

        A module may have hooks that look at gradients, which would then be those of all clients, or need its
        convolutions' outputs to lie in memory as usual.
        """
        devices = [self.problem.device] if self.problem.device.type == "cuda" else []
        try:
            with torch.random.fork_rng(devices):
                fast = self._fast_gradients(*given)
        except torch.OutOfMemoryError:
            raise
        except Exception:  # a user's module may raise anything; what is wrong with it the safe way will say
            return False
        with torch.random.fork_rng(devices):
            safe = self._safe_gradients(*given)
        lengths = {name: _length(own) for name, own in safe.items()}
        whole = torch.stack([length.square() for length in lengths.values()]).sum(0).sqrt()
        return all(
            bool((_length(fast[name] - own) <= _ALIKE * lengths[name] + _NEGLIGIBLE * whole).all())
            for name, own in safe.items()
        )

    def _objective(
        self, forward: Forward, parameters: Named, extras: Named, x: Tensor, y: Tensor, weights: Tensor
    ) -> Tensor:
        return (self.problem.loss(forward(parameters, extras, x), y) * weights).sum()


def _length(stacked: Tensor) -> Tensor:
    return stacked.flatten(1).square().sum(1).sqrt()


def _clipped(gradients: Named, clip: float) -> Named:
    squares = torch.stack([value.flatten(1).square().sum(1) for value in gradients.values()])
    scale = (clip / (squares.sum(0).sqrt() + 1e-6)).clamp(max=1.0)
    return {name: value * per_client(scale, value) for name, value in gradients.items()}
