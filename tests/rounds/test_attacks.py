"""What attackers upload, by hand on a tiny problem, and in every engine alike."""

import pytest
import torch

from cofair.config.experiment import Experiment
from cofair.data.attackers import attackers, with_flipped_labels, with_identities
from cofair.engine.loop_engine import LoopEngine
from cofair.engine.phases import ALONE
from cofair.engine.protocol import ClientStates, Rewards
from cofair.engine.vectorised import VectorisedEngine
from cofair.engine.work import Work
from cofair.errors import UsageError
from cofair.rounds.attacks import Attack, AttackSettings
from tests.conftest import small_federation
from tests.driving import prepare

WORK = Work(steps=2, batch_size=8, lr=0.1)
UPLOADS = ("nothing", "noise", "echo", "follow", "sign_flip", "scale", "copy", "defect")


class AttackedEngine:
    def __init__(self, engine, attack):
        self.engine, self.attack = engine, attack

    def train(self, rewards, states, t):
        return self.attack.act(rewards, states, t, self.engine.train(rewards, states, t))


def trained(make_problem, name, engine=VectorisedEngine, rounds=2, masks=None, **settings):
    """Train `rounds` rounds from models that move; return uploads of each, and the honest ones."""
    problem = make_problem()
    attack = Attack(AttackSettings(name, **settings), problem, [1, 3])
    plain, attacked = engine(problem), AttackedEngine(engine(problem), attack)
    states, found = ClientStates(), []
    for t in range(1, rounds + 1):
        row = torch.linspace(0, t, problem.layout.size, dtype=torch.float64)
        rewards = Rewards(row, WORK, masks)
        uploads, states = attacked.train(rewards, states, t)
        found.append((uploads.updates, plain.train(rewards, ClientStates(), t)[0].updates, row))
    return found


def test_honest_clients_upload_what_they_would(make_problem):
    for name in UPLOADS:
        for forged, honest, _ in trained(make_problem, name):
            assert torch.equal(forged[[0, 2]], honest[[0, 2]])


def test_each_attack_forges_what_it_says(make_problem):
    (first, honest, _), (second, _, _) = trained(make_problem, "nothing")
    assert not first[[1, 3]].any()
    assert not second[[1, 3]].any()
    first, honest, _ = trained(make_problem, "sign_flip", strength=2.0)[0]
    assert torch.equal(first[1], -2 * honest[1])
    first, honest, _ = trained(make_problem, "scale")[0]
    assert torch.equal(first[3], 10 * honest[3])
    first, honest, _ = trained(make_problem, "copy")[0]
    assert torch.equal(first[1], honest[2])  # of the honest, client 2 has most data
    first, honest, _ = trained(make_problem, "noise")[0]
    assert float(first[1].norm()) == pytest.approx(float(honest[[0, 2]].norm(dim=1).quantile(0.5)))
    assert not torch.equal(first[1], first[3])
    (first, _, before), (second, _, after) = trained(make_problem, "echo")
    assert not first[1].any()
    assert torch.allclose(second[1], after - before)
    (first, honest, _), (second, _, _) = trained(make_problem, "follow")
    assert not first[1].any()
    assert torch.allclose(second[3], honest[[0, 2]].sum(0) / (honest[[0, 2]] != 0).sum(0).clamp(min=1))
    first, _, _ = trained(make_problem, "nan")[0]
    assert first[[1, 3]].isnan().all()


def test_a_defector_is_honest_before_its_round(make_problem):
    (first, honest, _), (second, _, _) = trained(make_problem, "defect", from_round=2)
    assert torch.equal(first, honest)
    assert not second[[1, 3]].any()


def test_engines_see_the_same_attack(make_problem):
    for name in UPLOADS:
        for one, other in zip(trained(make_problem, name), trained(make_problem, name, LoopEngine), strict=True):
            assert float((one[0] - other[0]).abs().max()) < 1e-9


def test_attackers_forge_only_what_they_hold(make_problem):
    problem = make_problem()
    masks = torch.ones(4, problem.neurons.count, dtype=torch.bool)
    masks[:, 2:5] = False
    outside = ~problem.neurons.parameter_mask(masks)[0].bool()
    for name in ("noise", "echo", "follow", "copy"):
        for forged, _, _ in trained(make_problem, name, masks=masks):
            assert not forged[1][outside].any()


@pytest.mark.parametrize("kind", [LoopEngine, VectorisedEngine])
@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
def test_what_attackers_remember_is_apart_from_optimisers_and_passed_on(make_problem, kind, optimiser):
    problem = make_problem()
    engine = AttackedEngine(kind(problem), Attack(AttackSettings("echo"), problem, [1]))
    rewards = Rewards(torch.zeros(problem.layout.size, dtype=torch.float64), Work(steps=1, optimiser=optimiser))
    _, states = engine.train(rewards, ClientStates(), 1)
    _, honest = kind(problem).train(rewards, ClientStates(), 1)
    assert states.optimiser.keys() == honest.optimiser.keys()
    assert set(states.attackers) == {"received"}
    _, passed_on = kind(problem).train(rewards, states, 2)
    assert passed_on.attackers is states.attackers


def test_training_alone_is_attacked_from_the_first_round_on_only(make_problem):
    problem = make_problem()
    row = torch.zeros(problem.layout.size, dtype=torch.float64)
    for start, phase, silent in [
        (1, ALONE, True),
        (5, ALONE, False),
        (5, ALONE.again_in(5), True),
        (5, ALONE.again_in(4), False),
    ]:
        attack = Attack(AttackSettings("nothing", from_round=start), problem, [1])
        work = Work(steps=None, epochs=1, phase=phase)
        uploads, _ = AttackedEngine(VectorisedEngine(problem), attack).train(Rewards(row, work), ClientStates(), 1)
        assert bool(uploads.updates[1].any()) != silent


def test_who_resends_is_honest_until_it_is_measured_again(make_problem):
    problem = make_problem()
    engine = AttackedEngine(VectorisedEngine(problem), Attack(AttackSettings("resend"), problem, [1]))
    honest = VectorisedEngine(problem)
    handed, initial = torch.full((problem.layout.size,), 0.25, dtype=torch.float64), torch.zeros(problem.layout.size)
    initial = initial.double()
    alone = Rewards(initial, Work(steps=None, epochs=1, phase=ALONE))
    for rewards in (alone, Rewards(handed, Work(steps=2))):
        uploads, states = engine.train(rewards, ClientStates(), 1)
        assert torch.equal(uploads.updates, honest.train(rewards, ClientStates(), 1)[0].updates)
    again = Rewards(initial, Work(steps=None, epochs=1, phase=ALONE.again_in(2)))
    uploads, _ = engine.train(again, states, 1)
    assert torch.equal(uploads.updates[1], handed)
    assert not torch.equal(uploads.updates[0], handed)


def test_flipped_labels_are_all_wrong_and_others_stay():
    federation = small_federation()
    changed = with_flipped_labels(federation, [1], 1.0, 0)
    assert torch.equal(changed.client(1).y, (federation.client(1).y + 1) % 3)
    assert torch.equal(changed.client(0).y, federation.client(0).y)
    half = with_flipped_labels(federation, [1], 0.5, 0)
    assert int((half.client(1).y != federation.client(1).y).sum()) == 20


def test_a_sybil_shares_its_data_over_its_identities():
    federation = small_federation()
    changed, who = with_identities(federation, [1], 3, 0)
    assert changed.names == ("0", "1.1", "1.2", "1.3", "2", "3")
    assert who == (1, 2, 3)
    assert changed.sizes.tolist() == [7, 14, 13, 13, 19, 33]
    parts = torch.cat([changed.client(i).x for i in who])
    assert torch.equal(parts.sort(0).values, federation.client(1).x.sort(0).values)
    assert torch.equal(changed.client(5).y, federation.client(3).y)


def test_attackers_are_drawn_by_name():
    names = [f"client {i}" for i in range(10)]
    drawn = attackers(3, names, 0)
    assert {names[::-1][i] for i in attackers(3, names[::-1], 0)} == {names[i] for i in drawn}
    assert attackers([4, 1], names, 0) == (1, 4)
    with pytest.raises(UsageError, match="client 10"):
        attackers([10], names, 0)
    with pytest.raises(UsageError, match="11 attackers"):
        attackers(11, names, 0)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"name": "defect"}, "from_round above 1"),
        ({"name": "sybil", "from_round": 3}, "from_round must be 1"),
        ({"name": "sybil", "strength": 1.5}, "whole number"),
        ({"name": "label_flip", "strength": 2.0}, "at most 1"),
        ({"name": "noisy"}, "did you mean 'noise'"),
    ],
)
def test_settings_that_make_no_sense_are_told(table, words):
    with pytest.raises(UsageError, match=words):
        Experiment.from_dict({"attack": table})


def test_contributions_are_measured_under_attack(make_problem):
    federation = small_federation()
    settings = {"run": {"precision": "float64"}, "contribution": {"epochs": 3}}
    module = make_problem().layout.prototype
    honest = prepare(Experiment.from_dict(settings), federation=federation, model=module)
    for name in ("nothing", "nan"):
        attack = {"attack": {"name": name, "clients": [1]}}
        found = prepare(
            Experiment.from_dict(settings | attack), federation=federation, model=module
        ).server.contributions
        assert found[[0, 2, 3]].tolist() == honest.server.contributions[[0, 2, 3]].tolist()
        initial = float(honest.setup.tester.score(honest.server.initial).metric)
        assert float(found[1]) == (min(found[[0, 2, 3]].min(), initial) if name == "nan" else initial)
