"""Training alone in stages: by hand on models that a test scripts, and on digits what pays and what does not."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import cofair
from cofair.config.experiment import Experiment
from cofair.data.federation import Federation
from cofair.engine.phases import ALONE
from cofair.engine.protocol import ClientStates, Rewards, Uploads
from cofair.errors import RunError
from cofair.runs.setup import Parts, set_up
from cofair.runs.training_alone import driven, training_alone
from tests.conftest import small_federation, small_stack
from tests.driving import prepare


def one_number(validated=True, **contribution):
    """Two clients of a model of one number w, which says class 0 for x below w; in truth it is 0 for x up to 4."""

    class Slope(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.zeros(1, dtype=torch.float64))

        def forward(self, x):
            return torch.cat([self.w - x, torch.zeros_like(x)], 1)

    x = torch.arange(1.0, 11.0, dtype=torch.float64)[:, None]
    y = (x[:, 0] > 4).long()
    samples = [(x[3:5], y[3:5]), (x[3:5], y[3:5])]
    federation = Federation(samples, validation=(x, y) if validated else None, test=(x[3:5], y[3:5]), classes=2)
    experiment = Experiment.from_dict({"run": {"precision": "float64"}, "contribution": contribution})
    return set_up(experiment, Parts(federation, Slope()))


class Scripted:
    """Trains nobody: client i has the w that a script says after each stage; None: no answer."""

    def __init__(self, *scripts):
        self.scripts, self.asked, self.works = scripts, [], []

    def __call__(self, training):
        wanted = training.rewards.participants
        there = [True, True] if wanted is None else wanted.tolist()
        self.asked.append(there)
        self.works.append(training.rewards.work)
        stage = training.rewards.work.phase.stage
        now = training.rewards.parameters.expand(2, 1)
        after = [script[stage] if there[i] else None for i, script in enumerate(self.scripts)]
        present = torch.tensor([w is not None for w in after])
        rows = torch.tensor([[float(now[i]) if w is None else w] for i, w in enumerate(after)], dtype=torch.float64)
        return Uploads(rows - now, present, torch.tensor([2, 2])), ClientStates()


def test_the_best_model_counts_and_of_equals_the_later_one():
    # of x = 1 … 10 the model has 9 right at w = 5.5, all at 4.5 and 4.6, and 6 at 8.5
    train = Scripted([5.5, 4.5, 4.6, 8.5, 8.5, 8.5], [8.5, 8.5, 8.5, 8.5, 8.5, 8.5])
    setup = one_number(steps=60, stage=10, patience=2)
    alone = driven(training_alone(setup), train)
    assert alone.models.flatten().tolist() == [4.6, 8.5]
    assert alone.answered.tolist() == [True, True]
    # patience: two stages without a better one, equal ones among them
    assert train.asked == [[True, True], [True, True], [True, True], [True, False]]


def test_all_take_the_same_number_of_steps_at_most():
    train = Scripted([8.5, 7.5, 6.5], [8.5, 7.5, 6.5])
    driven(training_alone(one_number(steps=25, stage=10, patience=5)), train)
    assert [work.steps for work in train.works] == [10, 10, 5]
    assert {work.epochs for work in train.works} == {None}
    assert [work.phase.address for work in train.works] == ["alone", "alone stage 1", "alone stage 2"]


def test_a_client_that_stops_answering_keeps_its_best_model():
    train = Scripted([5.5, None], [None])
    alone = driven(training_alone(one_number(steps=60, stage=10, patience=5)), train)
    assert alone.models.flatten().tolist() == [5.5, 0.0]
    assert alone.answered.tolist() == [True, False]
    assert len(train.asked) == 2


def test_a_client_that_diverges_late_counts_as_diverged():
    train = Scripted([4.5, float("nan")], [8.5, 8.5, 8.5, 8.5])
    alone = driven(training_alone(one_number(steps=60, stage=10, patience=2)), train)
    assert alone.diverged.tolist() == [True, False]
    assert alone.models.flatten().tolist() == [0.0, 8.5]
    assert train.asked[2] == [False, True]


def test_without_a_validation_set_it_is_thirty_epochs_and_a_note_says_so():
    setup = one_number(validated=False)
    train = Scripted([4.5], [8.5])
    driven(training_alone(setup), train)
    assert [(work.epochs, work.steps) for work in train.works] == [(30, None)]
    own = small_federation()
    shares = [(own.client(i).x, own.client(i).y) for i in range(2)]
    federation = Federation(shares, test=(own.test.x, own.test.y))
    result = cofair.run(small_stack(), federation, "fedavg", rounds=1)
    assert "measured after 30 epochs alone" in result.facts["notes"][0]
    assert "notes" not in cofair.run(small_stack(), federation, "fedavg", rounds=1, contribution={"epochs": 2}).facts
    assert "notes" not in cofair.run(small_stack(), federation, "fedavg", rounds=1, contributions=[0.1, 0.2]).facts


def test_fixed_epochs_give_one_training_and_its_numbers():
    experiment = Experiment.from_dict({"run": {"precision": "float64"}, "contribution": {"epochs": 3}})
    run = prepare(experiment, federation=small_federation(), model=small_stack())
    work = replace(experiment.training.work(), steps=None, epochs=3)
    uploads, _ = run.engine.train(Rewards(run.setup.initial, replace(work, phase=ALONE)), ClientStates(), 1)
    assert torch.equal(run.brought.alone, run.setup.initial + uploads.updates)
    assert torch.equal(run.brought.contributions, run.setup.tester.score(run.brought.alone).metric.double())


def test_engines_agree_stage_by_stage():
    found = []
    for engine in ("loop", "vectorised"):
        tables = {
            "run": {"precision": "float64", "engine": engine}, "training": {"lr": 0.1, "batch_size": 8},
            "contribution": {"steps": 40, "stage": 5, "patience": 2},
        }  # fmt: skip
        run = prepare(Experiment.from_dict(tables), federation=small_federation(), model=small_stack())
        found.append(run.brought.alone)
    assert torch.allclose(*found, atol=1e-12, rtol=0)


def test_who_diverges_alone_in_stages_ends_the_run():
    tables = {"run": {"precision": "float64"}, "training": {"lr": 1e30}}
    with pytest.raises(RunError, match="diverged when it trained alone"):
        prepare(Experiment.from_dict(tables), federation=small_federation(), model=small_stack())


def brought(seed, copies=1, **contribution):
    """What four clients of digits, scene pow, bring where they hold every sample several times."""
    tables = {"federation": {"clients": 4, "samples": 80}, "run": {"seed": seed}, "contribution": contribution}
    experiment = Experiment.from_dict(tables)
    setup = set_up(experiment)
    own = setup.problem.federation
    parts = []
    for i in range(len(own)):
        samples = own.client(i)
        parts.append((samples.x.repeat(copies, 1, 1, 1), samples.y.repeat(copies)))
    again = Federation(
        parts, validation=(own.validation.x, own.validation.y), test=(own.test.x, own.test.y), names=own.names,
        classes=own.classes,
    )  # fmt: skip
    return prepare(experiment, federation=again, model=setup.problem.layout.prototype).brought.contributions


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_ten_copies_of_every_sample_bring_less_than_a_point(seed):
    plain, copied = brought(seed), brought(seed, copies=10)
    assert float((copied - plain).abs().mean()) < 0.01


def test_more_steps_bring_nothing():
    assert float((brought(0, steps=6000) - brought(0)).abs().max()) < 0.01
