"""The plain engine: one client after another, as anyone would write it. It is the oracle for the others."""

from dataclasses import replace

import torch
from torch import Tensor, nn

from cofair.engine.forward import Forward
from cofair.engine.optimisers import adam_memory
from cofair.engine.problem import Problem, first_line
from cofair.engine.protocol import ClientStates, Rewards, Uploads, rows_of
from cofair.engine.schedule import schedule
from cofair.engine.statistics import empty_losses, from_batch_losses, look
from cofair.engine.work import Work
from cofair.errors import CofairError, RunError


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
        memory = _memory(states, rewards.work, updates)
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
        return Uploads(updates, present, federation.sizes, statistics), replace(states, optimiser=memory)

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

    def _masks(self, neuron_mask: Tensor | None) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return what a neuron mask (K,) multiplies: parameters, and extras beside them."""
        if neuron_mask is None or self.problem.neurons is None:
            return {}, {}
        masks = self.problem.layout.views(self.problem.neurons.parameter_mask(neuron_mask[None])[0])
        return masks, {name: value[0] for name, value in self.forward.mask_extras(neuron_mask[None]).items()}

    def _train_client(self, i: int, rewards: Rewards, memory: dict[str, Tensor], t: int) -> Tensor:
        layout, work = self.problem.layout, rewards.work
        only = torch.tensor([i])
        table = self.problem.table.select(only)
        start = rows_of(rewards.parameters, only)[0].clone()
        masks, extras = self._masks(None if rewards.neuron_masks is None else rewards.neuron_masks[i])
        parameters = {name: nn.Parameter(value.clone()) for name, value in layout.views(start).items()}
        optimiser = _optimiser(parameters, work, {name: value[i] for name, value in memory.items()}, self.problem)
        for step in schedule(table, work, t, layout.dtype):
            batch = step.positions[0][step.weights[0] > 0]
            x, y = table.samples(batch)
            if rewards.step_masks is not None and rewards.step_choices is not None:
                drawn = step.drawn(rewards.step_masks[i : i + 1], rewards.step_choices[i : i + 1])
                masks, extras = self._masks(drawn[0])
            dropout = self.forward.dropout_extras(step.keys()[0])
            kept = {name: value * masks[name] if masks else value for name, value in parameters.items()}
            loss = self.problem.loss(self.forward(kept, {**extras, **dropout}, x), y).mean()
            for group in optimiser.param_groups:
                group["lr"] = float(step.lr)
            optimiser.zero_grad()
            torch.autograd.backward(loss)
            if work.clip is not None:
                nn.utils.clip_grad_norm_(list(parameters.values()), work.clip)
            optimiser.step()
        if work.optimiser == "adam":
            _remember(optimiser, parameters, memory, i, self.problem)
        return layout.flatten(parameters) - start


def _optimiser(
    parameters: dict[str, nn.Parameter], work: Work, memory: dict[str, Tensor], problem: Problem
) -> torch.optim.Optimizer:
    if work.optimiser == "sgd":
        return torch.optim.SGD(parameters.values(), lr=work.lr)
    adam = torch.optim.Adam(parameters.values(), lr=work.lr)
    first, second = problem.layout.views(memory["first"]), problem.layout.views(memory["second"])
    for name, parameter in parameters.items():
        adam.state[parameter] = {
            "step": memory["steps"].to("cpu", torch.float32),
            "exp_avg": first[name].clone(),
            "exp_avg_sq": second[name].clone(),
        }
    return adam


def _memory(states: ClientStates, work: Work, like: Tensor) -> dict[str, Tensor]:
    """Return the clients' optimiser memory, made anew where there is none yet."""
    if work.optimiser == "sgd":
        return {name: value.clone() for name, value in states.optimiser.items()}
    return {name: value.clone() for name, value in adam_memory(states, like).items()}


def _remember(
    adam: torch.optim.Optimizer, parameters: dict[str, nn.Parameter], memory: dict[str, Tensor], i: int,
    problem: Problem,
) -> None:  # fmt: skip
    states = {name: adam.state[parameter] for name, parameter in parameters.items()}
    memory["first"][i] = problem.layout.flatten({name: state["exp_avg"] for name, state in states.items()})
    memory["second"][i] = problem.layout.flatten({name: state["exp_avg_sq"] for name, state in states.items()})
    memory["steps"][i] = int(next(iter(states.values()))["step"])
