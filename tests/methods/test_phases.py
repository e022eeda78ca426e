"""A phase of one's own that stays with the clients is no upload: not attacked, not counted, missed by nobody."""

from dataclasses import dataclass, field

import pytest
import torch

from cofair.config.experiment import Experiment
from cofair.engine.phases import ALONE, PERSONALISE, TRAIN, Phase
from cofair.engine.protocol import ClientStates, Rewards
from cofair.engine.work import Work
from cofair.errors import UsageError
from cofair.methods.fedavg import FedAvg
from tests.conftest import small_federation, small_stack
from tests.driving import collected, prepare

BROUGHT = torch.tensor([0.2, 0.5, 0.7, 0.4])


@dataclass(frozen=True)
class Tuned(FedAvg):
    """FedAvg with a second training in every round, whose work does not name its phase."""

    second: Phase | None = None
    seen: list = field(default_factory=list)  # rewards and uploads of every training

    def phases(self, server, t):
        return (TRAIN,) if self.second is None else (TRAIN, self.second)

    def rewards(self, server, state, t, phase):
        return Rewards(state.parameters, server.work, keeps_memory=phase == TRAIN)

    def learn(self, server, state, rewards, uploads, t, phase):
        self.seen.append((rewards, uploads))
        return super().learn(server, state, rewards, uploads, t, phase) if phase == TRAIN else state


STAYS, UPLOADS = Phase("finetune", uploads=False), Phase("finetune")


def prepared(**tables):
    chosen = Experiment.from_dict({"training": {"rounds": 3, "steps": 2, "batch_size": 8}, **tables})
    return prepare(chosen, federation=small_federation(), model=small_stack(), contributions=BROUGHT)


def ran(second, **tables):
    """Run three rounds and return what the journal collected, and all trainings as the method saw them."""
    method = Tuned(second=second)
    return collected(prepared(**tables), method), method.seen


def test_everybody_takes_part_and_batches_are_the_phases_own():
    _, seen = ran(STAYS, participation={"dropout": 0.6})
    for (train, _), (tune, trained) in zip(seen[::2], seen[1::2], strict=True):
        assert (train.work.phase, tune.work.phase) == (TRAIN, STAYS)
        assert not bool(train.participants.all())
        assert tune.participants is None
        assert bool(trained.present.all())
    rewards, uploads = seen[1]
    other, _ = prepared().engine.train(rewards.during(TRAIN), ClientStates(), 1)
    assert not torch.equal(other.updates, uploads.updates)


def test_nothing_of_it_is_counted_as_taking_part():
    apart, whole, both = (ran(second, participation={"dropout": 0.6})[0] for second in (None, STAYS, UPLOADS))
    for one, other in zip(apart.rounds, whole.rounds, strict=True):
        assert one.took_part == other.took_part
        assert one.record.accuracies == other.record.accuracies
    assert [one.took_part for one in both.rounds] == [one.took_part for one in apart.rounds]  # the same clients twice


def test_nobody_fades_for_it():
    settings = {"participation": {"dropout": 0.6, "fade": 0.2}}
    without, stays, uploads = (ran(second, **settings)[0].states[-1].status for second in (None, STAYS, UPLOADS))
    assert torch.equal(without.away, stays.away)
    assert not torch.equal(without.away, uploads.away)


@pytest.mark.parametrize("attack", ["scale", "sign_flip", "nothing"])
def test_attackers_do_not_forge_it(attack):
    (_, stays), (_, uploads) = (ran(second, attack={"name": attack, "clients": [1]}) for second in (STAYS, UPLOADS))
    for (rewards, upload), forges in ((stays[1], False), (uploads[1], True)):
        honest = prepared().engine.train(rewards, ClientStates(), 1)[0].updates[1]
        idle = attack == "nothing"  # it never trains, not even for itself
        assert torch.equal(upload.updates[1], torch.zeros_like(honest) if idle else honest) != (forges and not idle)


def test_defences_leave_it_alone():
    kept, plain = (ran(second, defence={"threshold": 0.9, "patience": 0})[0].states[-1] for second in (STAYS, None))
    assert torch.equal(kept.status.reputation, plain.status.reputation)
    assert torch.equal(kept.status.members, plain.status.members)


def test_addresses_are_those_of_runs_before_phases_were_objects():
    assert [phase.address for phase in (TRAIN, PERSONALISE, ALONE, ALONE.again_in(50))] == [
        "train", "personalise", "alone", "alone 50",
    ]  # fmt: skip
    assert Phase("alone", stage=2).address == "alone stage 2"
    assert Phase("alone", repeated_in=50, stage=2).address == "alone 50 stage 2"
    assert (ALONE.asked_in(1), ALONE.again_in(50).asked_in(1), TRAIN.asked_in(7)) == (1, 50, 7)
    assert Phase("alone 50").asked_in(7) == 7  # nobody reads a name


def test_a_phase_that_is_a_text_is_refused():
    with pytest.raises(UsageError, match=r"A phase is a Phase, such as Phase\('finetune', uploads=False\)"):
        Work(phase="finetune")
    with pytest.raises(UsageError, match="A phase is a Phase"):
        Rewards(torch.zeros(1), Work()).during("finetune")
