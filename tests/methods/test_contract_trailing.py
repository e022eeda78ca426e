from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import nn

import cofair
from cofair.engine.phases import TRAIN
from cofair.errors import UsageError
from cofair.methods.contract import Contract
from tests.conftest import uploads_of

BROUGHT = [0.1, 0.2, 0.3, 0.6]


def rounds(server, method, count, absent=(), seed=0):
    """Run rounds with random updates, and return all states."""
    torch.manual_seed(seed)
    states = [method.start(server)]
    for t in range(1, count + 1):
        updates = 0.3 * torch.randn(server.clients, len(server.initial), dtype=torch.float64)
        uploads = uploads_of(updates.tolist(), [12] * server.clients, absent=list(absent))
        rewards = method.rewards(server, states[-1], t, TRAIN)
        states.append(method.learn(server, states[-1], rewards, uploads, t, TRAIN))
    return states


@pytest.mark.parametrize("kind", ["rows", "largest", "mixed"])
def test_a_model_holds_nothing_but_what_was_the_servers_when_it_was_sent(kind, make_server):
    """So what was never sent cannot be kept, and what is kept is what is calibrated."""
    server = make_server(BROUGHT)
    states = rounds(server, Contract(first=kind, guarded=kind, every=2), 12)
    for t, (before, after) in enumerate(pairwise(states), start=1):
        changed = after.models != before.models
        assert torch.equal(after.models[changed], after.parameters.expand_as(after.models)[changed])
        assert after.download.tolist() == (changed.double().mean(1)).tolist(), t
    assert any(0 < float(share) < 1 for state in states for share in state.download)


def test_nobody_holds_more_than_was_promised_except_where_a_promise_fell(make_server):
    server = make_server(BROUGHT)
    states = rounds(server, Contract(every=1), 15)
    for before, after in pairwise(states[1:]):  # the initial model is everybody's, and may be better than promised
        assert bool((after.validated <= torch.maximum(after.promised, before.validated) + 1e-9).all())
        scored = server.score(after.models).metric
        assert after.validated.tolist() == pytest.approx(scored.tolist())
    assert any(bool((s.validated > s.promised + 1e-9).any()) for s in states), "here A falls now and then"


def test_the_best_contributor_holds_the_whole_model_and_a_young_model_is_for_all(make_server):
    server = make_server([0.96, 0.97, 0.98, 0.99])  # nobody's model is that good here
    for state in rounds(server, Contract(), 4)[1:]:
        assert torch.equal(state.models, state.parameters.expand_as(state.models))
    server = make_server(BROUGHT)
    behind = 0
    for seed in range(6):
        for before, after in pairwise(rounds(server, Contract(every=1), 12, seed=seed)):
            assert torch.equal(after.models[3], after.parameters)
            if float(after.validated[3]) > max(float(after.promised[0]), float(before.validated[0])):
                behind += 1
                assert not torch.equal(after.models[0], after.parameters)
    assert behind


def test_nobody_is_promised_less_than_it_reaches_alone(make_server):
    method = Contract(kappa=3.0, margin=0.0)
    promised = method.mechanism.promised(make_server([0.3, 0.35, 0.4]), 0.5)
    assert promised.tolist() == pytest.approx([0.3, 0.35, 0.5])  # 0.5 − 3 · 0.1 and 0.5 − 3 · 0.05 are less


def test_models_are_updated_in_turns(make_server):
    server = make_server(BROUGHT)
    states = rounds(server, Contract(every=3), 9)
    for i in range(3):
        moved = [t for t in range(1, 10) if not torch.equal(states[t].models[i], states[t - 1].models[i])]
        young = [t for t in moved if torch.equal(states[t].models[i], states[t].parameters)]
        assert len({t % 3 for t in moved if t not in young}) <= 1
    assert len({t % 3 for t in range(1, 10)}) == 3


def test_an_update_weighs_by_contribution_and_by_how_far_behind_its_model_is(make_server):
    server = make_server([0.2, 0.4])

    def weighed(t, **terms):
        mechanism = Contract(**terms).mechanism
        state = replace(mechanism.start(server), validated=torch.tensor([0.3, 0.6]))
        return [None if own is None else own.tolist() for own in mechanism.weights(server, state, t)]

    assert weighed(2, power=1.0, freshness=(0.0, 2.0)) == [[0.5, 1], [pytest.approx(0.5 * 0.25), 1]]
    assert weighed(1, power=1.0, freshness=(0.0, 2.0)) == [[0.5, 1]]  # nothing was validated yet
    assert weighed(2, power=0.0, freshness=(0.0,)) == [None]
    assert weighed(2, power=0.0, freshness=(2.0, 2.0)) == [[pytest.approx(0.25), 1]]


def test_the_weights_that_lead_to_the_best_model_are_taken(make_server):
    server = make_server([0.2, 0.4])
    random = torch.Generator().manual_seed(3)
    tried = torch.randn(32, len(server.initial), dtype=torch.float64, generator=random)
    scores = server.score(server.initial + tried).metric
    best, worst = tried[int(scores.argmax())], tried[int(scores.argmin())]
    wanted = {}
    for fresh, mean in ((best, worst), (worst, best)):  # the model of client 0 is far behind
        updates = torch.stack([2 * mean - fresh, fresh])
        uploads = uploads_of(updates.tolist(), [12, 12])
        reached = {}
        for powers in ((0.0,), (16.0,), (0.0, 16.0)):
            mechanism = Contract(power=0.0, freshness=powers).mechanism
            state = replace(mechanism.start(server), validated=torch.tensor([0.3, 0.6], dtype=torch.float64))
            moved, accuracy = mechanism.moved(server, state, uploads, 2)
            assert float(accuracy) == pytest.approx(float(server.score(moved.parameters[None]).metric[0]))
            reached[powers] = float(accuracy)
        assert reached[0.0, 16.0] == max(reached.values())
        wanted[fresh is best] = max((power for power in reached if len(power) == 1), key=reached.__getitem__)
    assert wanted == {True: (16.0,), False: (0.0,)}, "otherwise one power were enough here"


def test_the_step_that_leads_to_the_best_model_is_taken_and_of_equal_ones_that_with_the_least_loss(make_server):
    server = make_server([0.2, 0.4])
    mechanism = Contract(power=0.0, freshness=(0.0,), strides=(0.25, 1.0, 4.0)).mechanism
    state, taken = mechanism.start(server), set()
    for seed in range(12):
        torch.manual_seed(seed)
        mean = torch.randn(len(server.initial), dtype=torch.float64)
        tried = torch.stack([server.initial + stride * mean for stride in (0.25, 1.0, 4.0)])
        scores = server.score(tried)
        wanted = max(range(3), key=lambda i: (float(scores.metric[i]), -float(scores.loss[i])))
        moved, accuracy = mechanism.moved(server, state, uploads_of([mean.tolist()] * 2, [12, 12]), 1)
        assert moved.parameters.tolist() == pytest.approx(tried[wanted].tolist())
        assert float(accuracy) == float(scores.metric[wanted])
        taken.add(wanted)
    assert taken == {0, 1, 2}


def test_a_step_that_diverges_is_not_taken_though_it_were_as_accurate(make_server):
    server = make_server([0.2, 0.4])
    mechanism = Contract(power=0.0, freshness=(0.0,), strides=(1000.0, 0.25)).mechanism
    far = torch.zeros(len(server.initial), dtype=torch.float64)
    far[-1] = 1e306  # the last class's: all answers, a loss that is large, or no number
    moved, _ = mechanism.moved(server, mechanism.start(server), uploads_of([far.tolist()] * 2, [12, 12]), 1)
    assert bool(moved.parameters.isfinite().all())


@pytest.mark.parametrize("nothing", ["freshness", "strides"])
def test_nothing_to_try_is_a_sentence(make_server, nothing):
    with pytest.raises(UsageError, match=f"{nothing} is empty"):
        Contract(**{nothing: ()}).start(make_server([0.2, 0.4]))


def test_promises_are_made_of_the_best_model_so_far_and_do_not_fall(make_server):
    server = make_server(BROUGHT)
    method = Contract(strides=(3.0,))
    worse = 0
    for before, after in pairwise(rounds(server, method, 15)):
        now = float(server.score(after.parameters[None]).metric[0])
        assert float(after.reached) == max(float(before.reached), now)
        assert float(server.score(after.best[None]).metric[0]) == float(after.reached)
        assert bool((after.promised >= before.promised).all())
        worse += now < float(after.reached)
    assert worse, "the server's model gets worse here now and then"


def test_what_is_delivered_is_as_good_as_promised_or_as_near_as_it_gets(make_server):
    server = make_server(BROUGHT)
    method, nearer = Contract(), 0
    for seed in range(4):
        for state in rounds(server, method, 10, seed=seed)[1:]:
            delivered = method.delivered(server, state)
            assert delivered.validated.tolist() == pytest.approx(server.score(delivered.parameters).metric.tolist())
            assert torch.equal(delivered.parameters[3], state.best)
            most = torch.maximum(state.promised, state.validated)
            assert bool((delivered.validated <= most + 1e-9).all())
            assert bool((delivered.validated >= state.validated - 1e-9).all())
            entries = (delivered.parameters == state.models) | (delivered.parameters == state.best)
            assert bool(entries.all()), "of its own model and of the best one"
            nearer += int((delivered.validated[:3] > state.validated[:3]).sum())
    assert nearer


def test_clients_whose_own_training_repairs_their_models_are_guarded(make_server):
    mechanism = Contract(tolerance=-0.04).mechanism
    gain = torch.tensor([-0.5, 0.0, 0.1, -0.03])
    kinds = mechanism.kinds(gain, torch.tensor([0, 2, 3]))
    assert {kind: who.tolist() for kind, who in kinds.items()} == {"rows": [0], "mixed": [2, 3]}
    alike = Contract(first="mixed").mechanism.kinds(gain, torch.tensor([0, 2]))
    assert {kind: who.tolist() for kind, who in alike.items()} == {"mixed": [0, 2]}


def test_a_client_that_returns_is_handed_its_own_model(make_server):
    server = make_server(BROUGHT)
    states = rounds(server, Contract(), 100, absent=[0])
    last = states[-1]
    initial = float(server.score(server.initial[None]).metric[0])
    assert float(last.validated[0]) <= max(initial, *(float(s.promised[0]) for s in states)) + 1e-9
    assert Contract().rewards(server, last, 101, TRAIN).parameters.shape == last.models.shape


def test_a_newcomer_gets_what_it_has_earned_and_not_everything(make_server):
    few, more = make_server([0.2, 0.6]), make_server([0.2, 0.6, 0.1])
    method = Contract(every=1)
    initial = float(more.score(more.initial[None]).metric[0])
    better = 0
    for seed in range(8):  # models that are random may be worse than the initial one, which is everybody's
        states = rounds(few, method, 10, seed=seed)
        larger = method.welcome(more, states[-1], 11)
        assert larger.models.shape[0] == 3
        assert torch.equal(larger.models[:2], states[-1].models)
        most = max(float(larger.promised[2]), initial) + 1e-9
        assert float(larger.validated[2]) <= most
        if float(more.score(larger.parameters[None]).metric[0]) > most:
            better += 1
            assert not torch.equal(larger.models[2], larger.parameters)
            assert float(larger.download[2]) < 1
    assert better


class Residual(nn.Module):
    """Pre-norm and recurrent: nothing in it is a neuron that could be left out."""

    def __init__(self):
        super().__init__()
        self.norm, self.inner = nn.LayerNorm(8), nn.LSTM(8, 8, batch_first=True)
        self.out = nn.Linear(8, 10)

    def forward(self, x):
        rows = x.flatten(1).view(len(x), 8, 8)
        return self.out((rows + self.inner(self.norm(rows))[0])[:, -1])


def test_any_module_will_do():
    torch.manual_seed(0)
    federation = cofair.federate("digits", "pow", clients=4, samples=200)
    result = cofair.run(
        Residual(), federation, "contract", rounds=6, steps=2, contributions=[0.1, 0.3, 0.5, 0.9],
        execution={"engine": "loop"},
    )  # fmt: skip
    assert len(result.rewards) == 4
    assert result.history[-1].promised is not None


def test_a_validation_set_of_ten_samples_gives_rewards_and_says_how_good_they_can_be():
    federation = cofair.federate("digits", "pow", clients=4, samples=300)
    validation = federation.validation
    small = cofair.Federation(
        [(federation.client(i).x, federation.client(i).y) for i in range(4)],
        validation=(validation.x[:10], validation.y[:10]), test=(federation.test.x, federation.test.y),
    )  # fmt: skip
    result = cofair.run(
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10)), small, "contract",
        rounds=30, lr=0.1, seed=0,
    )  # fmt: skip
    last = result.history[-1]
    assert all(round(10 * value, 6) == round(10 * value) for value in last.validated)
    assert result.facts["notes"][0].startswith("A model chosen on 10 samples keeps its promise on new data to ± 27.8")


def test_what_travels_is_what_changed():
    federation = cofair.federate("digits", "pow", clients=4, samples=300)
    result = cofair.run(
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10)), federation, "contract",
        rounds=40, lr=0.1, seed=0, contributions=[0.3, 0.5, 0.7, 0.8],
    )  # fmt: skip
    download = result.history[-1].download
    assert download[3] > 0.9
    assert max(download[:2]) < 0.5
