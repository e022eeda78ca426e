"""A phase of one's own that stays with the clients is no upload: not attacked, not counted, missed by nobody."""

from dataclasses import dataclass, replace

import pytest
import torch

from cofair.config.experiment import Experiment
from cofair.engine.phases import ALONE, PERSONALISE, TRAIN, Phase
from cofair.engine.protocol import ClientStates, Rewards
from cofair.engine.work import Work
from cofair.errors import UsageError
from cofair.methods.fedavg import FedAvg
from cofair.runs.loop import driven
from cofair.runs.setup import prepare
from tests.conftest import small_federation, small_stack

BROUGHT = torch.tensor([0.2, 0.5, 0.7, 0.4])


@dataclass(frozen=True)
class Tuned(FedAvg):
    """FedAvg with a second training in every round, whose work does not name its phase."""

    second: Phase | None = None

    def phases(self, server, t):
        return (TRAIN,) if self.second is None else (TRAIN, self.second)

    def rewards(self, server, state, t, phase):
        return Rewards(state.parameters, server.work, keeps_memory=phase == TRAIN)

    def learn(self, server, state, rewards, uploads, t, phase):
        return super().learn(server, state, rewards, uploads, t, phase) if phase == TRAIN else state


STAYS, UPLOADS = Phase("finetune", uploads=False), Phase("finetune")


def ready(experiment):
    return prepare(experiment, federation=small_federation(), model=small_stack(), contributions=BROUGHT)


def ran(second, **tables):
    """Run three rounds and return the tested rounds, where the run stood after each, and all trainings."""
    own = ready(Experiment.from_dict({"training": {"rounds": 3, "steps": 2, "batch_size": 8}, **tables}))
    seen, kept = [], []

    class Watched:
        def train(self, rewards, states, t):
            answer = own.engine.train(rewards, states, t)
            seen.append((rewards, answer[0]))
            return answer

    tested = list(driven(Tuned(second=second), replace(own, engine=Watched()), keep=kept.append))
    return tested, kept, seen


def test_everybody_takes_part_and_batches_are_the_phases_own():
    _, _, seen = ran(STAYS, participation={"dropout": 0.6})
    for (train, _), (tune, trained) in zip(seen[::2], seen[1::2], strict=True):
        assert (train.work.phase, tune.work.phase) == (TRAIN, STAYS)
        assert not bool(train.participants.all())
        assert tune.participants is None
        assert bool(trained.present.all())
    own, (rewards, uploads) = ready(Experiment()), seen[1]
    other, _ = own.engine.train(rewards.during(TRAIN), ClientStates(), 1)
    assert not torch.equal(other.updates, uploads.updates)


def test_nothing_of_it_is_counted_as_taking_part():
    apart, whole = (ran(second, participation={"dropout": 0.6})[0] for second in (None, STAYS))
    for one, other in zip(apart, whole, strict=True):
        assert one.tally.took_part(4) == other.tally.took_part(4)
        assert one.record.accuracies == other.record.accuracies
    assert [len(tested.tally.present) for tested in whole] == [1, 1, 1]
    assert [len(tested.tally.present) for tested in ran(UPLOADS)[0]] == [2, 2, 2]


def test_nobody_fades_for_it():
    settings = {"participation": {"dropout": 0.6, "fade": 0.2}}
    without, stays, uploads = (ran(second, **settings)[1][-1].standing for second in (None, STAYS, UPLOADS))
    assert torch.equal(without.away, stays.away)
    assert not torch.equal(without.away, uploads.away)


@pytest.mark.parametrize("attack", ["scale", "nan", "sign_flip", "nothing"])
def test_attackers_do_not_forge_it(attack):
    _, _, seen = ran(STAYS, attack={"name": attack, "clients": [1]})
    rewards, uploads = seen[1]
    honest, _ = ready(Experiment()).engine.train(rewards, ClientStates(), 1)
    idle = attack == "nothing"  # it never trains, also for itself
    assert torch.equal(uploads.updates[1], torch.zeros_like(honest.updates[1]) if idle else honest.updates[1])
    rewards, uploads = ran(UPLOADS, attack={"name": attack, "clients": [1]})[2][1]
    honest, _ = ready(Experiment()).engine.train(rewards, ClientStates(), 1)
    assert not torch.equal(uploads.updates[1], honest.updates[1])


def test_defences_leave_it_alone():
    _, kept, _ = ran(STAYS, defence={"threshold": 0.9, "patience": 0})
    _, plain, _ = ran(None, defence={"threshold": 0.9, "patience": 0})
    assert torch.equal(kept[-1].standing.reputation, plain[-1].standing.reputation)
    assert torch.equal(kept[-1].standing.members, plain[-1].standing.members)


def test_addresses_are_those_of_runs_before_phases_were_objects():
    assert [phase.address for phase in (TRAIN, PERSONALISE, ALONE, ALONE.again_in(50))] == [
        "train", "personalise", "alone", "alone 50",
    ]  # fmt: skip
    assert (ALONE.asked_in(1), ALONE.again_in(50).asked_in(1), TRAIN.asked_in(7)) == (1, 50, 7)
    assert Phase("alone 50").asked_in(7) == 7  # nobody reads a name


def test_a_phase_that_is_a_text_is_refused():
    with pytest.raises(UsageError, match=r"A phase is a Phase, such as Phase\('finetune', uploads=False\)"):
        Work(phase="finetune")
    with pytest.raises(UsageError, match="A phase is a Phase"):
        Rewards(torch.zeros(1), Work()).during("finetune")
