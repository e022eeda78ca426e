"""What clients make of models by training them on their own data: many lengths, two learning rates, the best of all."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from cofair.data.held_back import Divided
from cofair.engine import choose
from cofair.engine.phases import Phase
from cofair.engine.problem import Engine
from cofair.engine.protocol import ClientStates, Delivered, Rewards, rows_of
from cofair.engine.schedule import batches_per_epoch
from cofair.engine.work import Work
from cofair.runs.own_choice import Judge, Judged
from cofair.runs.setup import Setup

EPOCHS = (1, 3, 10, 30)  # after which clients look at what they tune
MOST_STEPS = 1000  # in whole epochs: a client with much data tunes for fewer of them, and for one at least
RATES = (1.0, 1 / 3)  # learning rates, as factors on the run's first


def tuned(
    setup: Setup, own: Divided, bases: Sequence[Delivered], judge: Judge, test: Judge
) -> tuple[Delivered, Tensor]:
    """Return the best that each client makes of some models on the data that it does not hold back.

    Besides, what the best of all that it made has on the test set (N,), which it cannot know.

    Whoever holds nothing back keeps the first of the models. One that is the same as an earlier is not trained again.
    """
    problem = replace(setup.problem, federation=own.federation)
    engine, work = choose.engine(setup.experiment.run.engine, problem), setup.experiment.training.work()
    own_rows = [_own_rows(setup, base, len(own.federation)) for base in bases]
    rows, masks = own_rows[0].parameters, _masks(setup, own_rows[0], bases)
    able = torch.tensor([len(places) > 0 for places in own.places], device=problem.device)
    best = most = Judged.worst(len(able), problem.device)
    before = list[Tensor]()
    for base in own_rows:
        base = replace(base, neuron_masks=_masks(setup, base, bases))
        new = torch.stack([able, *((base.parameters != earlier).any(1) for earlier in before)]).all(0)
        before.append(base.parameters)
        for rate in RATES if bool(new.any()) else ():
            for model in _lengthening(engine, base, replace(work, lr=rate * work.lr), own.federation.sizes, new):
                judged, tested = judge(model), test(model)
                most = tested.where(tested.beats(most) & new, most)
                better = judged.beats(best) & new
                best, rows = judged.where(better, best), torch.where(better[:, None], model.parameters, rows)
                if masks is not None and model.neuron_masks is not None:
                    masks = torch.where(better[:, None], model.neuron_masks, masks)
    return Delivered(rows, masks), most.metric


def _lengthening(engine: Engine, base: Delivered, work: Work, sizes: Tensor, who: Tensor) -> Iterator[Delivered]:
    """Train some clients' models (N,) on and on, and yield them after each number of epochs."""
    most = (MOST_STEPS // batches_per_epoch(sizes, work).clamp(min=1)).clamp(min=1)
    rows, states, done = base.parameters, ClientStates(), torch.zeros_like(most)
    for t, epochs in enumerate(EPOCHS, start=1):
        left = (most.clamp(max=epochs) - done) * who.cpu()
        done = done + left
        for length in sorted({int(count) for count in left} - {0}):
            task = replace(
                work, steps=None, epochs=length, decay=1.0, decay_every="round", phase=Phase("tune", uploads=False)
            )
            handed = Rewards(rows, task, base.neuron_masks, participants=(left == length).to(rows.device))
            uploads, states = engine.train(handed, states, t)
            rows = rows + uploads.updates
        if bool(left.any()):
            yield replace(base, parameters=rows)


def _own_rows(setup: Setup, models: Delivered, clients: int) -> Delivered:
    """Return models as one row for each client (N, D), zero where its submodel has nothing."""
    rows, neurons = rows_of(models.parameters, slice(0, clients)), setup.problem.neurons
    if models.neuron_masks is not None and neurons is not None:
        rows = rows * neurons.parameter_mask(models.neuron_masks)
    return replace(models, parameters=rows)


def _masks(setup: Setup, models: Delivered, others: Sequence[Delivered]) -> Tensor | None:
    """Return the neuron masks of models (N, K); where only others have any, all neurons."""
    neurons = setup.problem.neurons
    if models.neuron_masks is not None or neurons is None or all(one.neuron_masks is None for one in others):
        return models.neuron_masks
    return torch.ones(len(models.parameters), neurons.count, dtype=torch.bool, device=models.parameters.device)
