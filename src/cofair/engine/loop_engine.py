"""The plain engine: one client after another, as anyone would write it. It is the oracle for the others."""

from dataclasses import replace

import torch
from torch import Tensor, nn

from cofair.engine.forward import Forward
from cofair.engine.optimisers import OPTIMISERS, STEPS, Named, Optimiser
from cofair.engine.problem import Problem, first_line
from cofair.engine.protocol import ClientStates, Rewards, Uploads, rows_of
from cofair.engine.schedule import schedule
from cofair.engine.statistics import empty_losses, from_batch_losses, look
from cofair.errors import CofairError, RunError
from cofair.models.parameters import Layout


class LoopEngine:
    """Trains clients one by one with autograd and torch.optim."""

    def __init__(self, problem: Problem) -> None:
        """Prepare to train the clients of a problem."""
        self.problem = problem
        self.forward = Forward(problem.layout, problem.neurons)

    def train(self, rewards: Rewards, states: ClientStates, t: int) -> tuple[Uploads, ClientStates]:
        """Train every participant that has data; the others' updates are zero and they count as absent."""
        federation = self.problem.federation
        self.problem.check_masks(rewards)
        present = federation.present(rewards.participants)
        updates = torch.zeros(
            len(federation),
            self.problem.layout.size,
            dtype=self.problem.layout.dtype,
            device=self.problem.device,
        )
        remembered = OPTIMISERS[rewards.work.optimiser].memory(states.optimiser, updates)
        memory = {name: value.clone() for name, value in remembered.items()}
        losses = empty_losses(federation.sizes, rewards.work.looks, updates.dtype, updates.device)
        for i in present.nonzero().flatten().tolist():
            try:
                if rewards.work.statistics:
                    self._look(i, rewards, losses[i], t)
                with self.problem.own_randomness(t, rewards.work.phase.address, federation.names[i]):
                    updates[i] = self._train_client(i, rewards, memory, t)
            except CofairError:
                raise
            except Exception as error:  # a user's module or loss may raise anything
                raise RunError(
                    f"Training failed in round {t} at client {federation.names[i]!r}: {first_line(error)}"
                ) from error
        statistics = from_batch_losses(rewards.work.statistics, losses, federation.sizes)
        after = replace(states, optimiser={**states.optimiser, **memory})
        return Uploads(updates, present, federation.sizes, statistics), after

    @torch.no_grad()
    def _look(self, i: int, rewards: Rewards, losses: Tensor, t: int) -> None:
        """Write the mean loss of each batch of the client's data, before training."""
        only = torch.tensor([i])
        table = self.problem.table.select(only)
        masks, extras = self._masks(None if rewards.neuron_masks is None else rewards.neuron_masks[i])
        named = self.problem.layout.views(rows_of(rewards.parameters, only)[0])
        kept = {name: value * masks[name] if masks else value for name, value in named.items()}
        for step in look(table, rewards.work.looks, t, losses.dtype):
            x, y = table.samples(step.positions[0][step.weights[0] > 0])
            losses[step.number] = self.problem.loss(self.forward.evaluate(kept, extras, x), y).mean()

    def _masks(self, neuron_mask: Tensor | None) -> tuple[Named, Named]:
        """Return what a neuron mask (K,) multiplies: parameters, and extras besides them."""
        if neuron_mask is None or self.problem.neurons is None:
            return {}, {}
        masks = self.problem.layout.views(self.problem.neurons.parameter_mask(neuron_mask[None])[0])
        return masks, {name: value[0] for name, value in self.forward.mask_extras(neuron_mask[None]).items()}

    def _train_client(self, i: int, rewards: Rewards, memory: Named, t: int) -> Tensor:
        layout, work, optimiser = self.problem.layout, rewards.work, OPTIMISERS[rewards.work.optimiser]
        only = torch.tensor([i])
        table = self.problem.table.select(only)
        start = rows_of(rewards.parameters, only)[0].clone()
        masks, extras = self._masks(None if rewards.neuron_masks is None else rewards.neuron_masks[i])
        parameters = {name: nn.Parameter(value.clone()) for name, value in layout.views(start).items()}
        reference = optimiser.reference(parameters.values(), work.lr)
        _recall(reference, optimiser, parameters, {name: value[i] for name, value in memory.items()}, layout)
        for step in schedule(table, work, t, layout.dtype):
            batch = step.positions[0][step.weights[0] > 0]
            x, y = table.samples(batch)
            if rewards.step_masks is not None and rewards.step_choices is not None:
                drawn = step.drawn(rewards.step_masks[i : i + 1], rewards.step_choices[i : i + 1])
                masks, extras = self._masks(drawn[0])
            dropout = self.forward.dropout_extras(step.keys()[0])
            kept = {name: value * masks[name] if masks else value for name, value in parameters.items()}
            loss = self.problem.loss(self.forward(kept, {**extras, **dropout}, x), y).mean()
            reference.zero_grad()
            torch.autograd.backward(loss)
            if work.clip is not None:
                nn.utils.clip_grad_norm_(list(parameters.values()), work.clip)
            _step(reference, optimiser, parameters, masks, float(step.lr))
        _remember(reference, optimiser, parameters, memory, i, layout)
        return layout.flatten(parameters) - start


def _step(
    reference: torch.optim.Optimizer, optimiser: Optimiser, parameters: dict[str, nn.Parameter], masks: Named, lr: float
) -> None:
    """Take a step; what the client does not hold cannot decay, so that an optimiser which decays sees zeros there."""
    hidden = masks if optimiser.weight_decay else {}
    left_out = {name: parameters[name].detach().masked_fill(mask, 0) for name, mask in hidden.items()}
    for group in reference.param_groups:
        group["lr"] = lr
    with torch.no_grad():
        for name, value in left_out.items():
            parameters[name].sub_(value)
        reference.step()
        for name, value in left_out.items():
            parameters[name].add_(value)


def _recall(
    reference: torch.optim.Optimizer, optimiser: Optimiser, parameters: dict[str, nn.Parameter], memory: Named,
    layout: Layout,
) -> None:  # fmt: skip
    """Give torch's optimiser what it remembered of one client."""
    views = {torch_name: layout.views(memory[name]) for name, torch_name in optimiser.moments.items()}
    for name, parameter in parameters.items():
        reference.state[parameter] = {torch_name: view[name].clone() for torch_name, view in views.items()}
        if optimiser.counts_steps:
            reference.state[parameter]["step"] = memory[STEPS].to("cpu", torch.float32)


def _remember(
    reference: torch.optim.Optimizer, optimiser: Optimiser, parameters: dict[str, nn.Parameter], memory: Named, i: int,
    layout: Layout,
) -> None:  # fmt: skip
    """Write what torch's optimiser remembers of client i."""
    states = {name: reference.state[parameter] for name, parameter in parameters.items()}
    for own, torch_name in optimiser.moments.items():
        memory[own][i] = layout.flatten({name: state[torch_name] for name, state in states.items()})
    if optimiser.counts_steps:
        memory[STEPS][i] = int(next(iter(states.values()))["step"])
