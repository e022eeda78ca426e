import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from cofair.engine.phases import TRAIN
from cofair.methods.cffl import CFFL
from cofair.scoring.scorer import Scores
from tests.conftest import uploads_of

UPDATES = [[3.0, 4.0] + [0.0] * 16, [1.0] + [0.0] * 17]


def begun(make_server, method, accuracies=(0.2, 0.6), sizes=(9, 3), contributions=(0.2, 0.4), **tables):
    """Return a server whose validation set gives the accuracies wanted, the models it was asked for, and a state."""
    server = make_server(contributions, sizes, nn.Linear(6, 3, bias=False), **tables)
    asked = []

    def score(parameters):
        asked.append(parameters)
        return Scores(torch.zeros(len(accuracies)), torch.tensor(accuracies))

    server.score = score
    return server, method.start(server), asked


def learned(server, method, state, updates=UPDATES, t=1, absent=()):
    uploads = uploads_of(updates, server.sizes.tolist(), absent)
    return method.learn(server, state, method.rewards(server, state, t, TRAIN), uploads, t, TRAIN)


def original(**settings):
    return CFFL(version="original", clip=0.5, **settings)


def random_updates():
    return torch.randn(2, 18, generator=torch.Generator().manual_seed(0), dtype=torch.float64).tolist()


def test_a_round_as_fedaves_authors_run_it(make_server):
    """Scaled updates (0.6, 0.8) and (1, 0) make (0.7, 0.6); accuracies 0.2 and 0.6 are parts 1/4 and 3/4."""
    method = CFFL(gamma=1.0)
    server, state, asked = begun(make_server, method)
    new = learned(server, method, state)
    assert torch.equal(asked[0] - state.models, torch.tensor(UPDATES, dtype=torch.float64))  # the models as trained
    r = [0.5 * (math.sinh(1.25) + 0.25), 0.5 * (math.sinh(3.75) + 0.75)]
    assert new.reputation.tolist() == pytest.approx(r, rel=1e-6)
    change = new.models - state.models
    # all entries beyond the first two are zeros, so even a small quota holds what there is:
    # own update + aggregate − own update · n_i / max n
    assert change[0, :2].tolist() == pytest.approx([0.7, 0.6], abs=1e-6)
    assert change[1, :2].tolist() == pytest.approx([1 + 0.7 - 1 / 3, 0.6], abs=1e-6)
    assert torch.allclose(new.server - state.server, (0.75 * torch.tensor([0.6, 0.8] + [0.0] * 16)
                          + 0.25 * torch.tensor([1.0] + [0.0] * 17)).double(), atol=1e-6)  # fmt: skip


def test_its_rewards_are_limited_by_reputation_and_by_size(make_server):
    server, state, _ = begun(make_server, CFFL())
    new = learned(server, CFFL(), state, random_updates())
    r = [0.5 * (math.sinh(1.25) + 0.25), 0.5 * (math.sinh(3.75) + 0.75)]
    assert new.download.tolist() == [math.ceil(18 * r[0] / r[1]) / 18, 6 / 18]


def test_it_forgets(make_server):
    server, state, _ = begun(make_server, CFFL())
    fresh = learned(server, CFFL(), state).reputation
    old = replace(state, reputation=torch.tensor([7.0, 7.0], dtype=torch.float64))
    assert torch.equal(learned(server, CFFL(), old, t=2).reputation, fresh)


def test_a_round_of_the_original(make_server):
    """Cut to ±0.5 the uploads are (0.5, 0.5) and (0.5, 0), in sum (1, 0.5); reputations 0.2 · (1/4, 3/4), then sinh."""
    method = original(sparsify="all")
    server, state, asked = begun(make_server, method)
    new = learned(server, method, state)
    assert torch.equal(asked[0] - state.models, torch.tensor(UPDATES, dtype=torch.float64))
    r = [math.sinh(5 * 0.05), math.sinh(5 * 0.15)]
    assert new.reputation.tolist() == pytest.approx([r[0] / sum(r), r[1] / sum(r)], rel=1e-6)
    change = new.models - state.models
    # the model as trained + aggregate − own upload
    assert change[0, :2].tolist() == pytest.approx([3 + 1 - 0.5, 4 + 0.5 - 0.5], abs=1e-9)
    assert change[1, :2].tolist() == pytest.approx([1 + 1 - 0.5, 0 + 0.5 - 0], abs=1e-9)
    assert (new.server - state.server)[:2].tolist() == pytest.approx([1, 0.5])


def test_the_originals_quota_is_relative_or_in_layers_the_reputation_itself(make_server):
    r = [math.sinh(0.25), math.sinh(0.75)]
    whole, layers = (CFFL(version="original", clip=10.0, sparsify=which) for which in ("all", "layer"))
    server, state, _ = begun(make_server, whole)
    whole = learned(server, whole, state, random_updates())
    assert whole.download.tolist() == [math.floor(18 * r[0] / r[1]) / 18, 6 / 18]
    layers = learned(server, layers, state, random_updates())
    assert layers.download.tolist() == [math.ceil(18 * part / sum(r)) / 18 for part in r]


def test_the_original_remembers_and_alpha_may_grow(make_server):
    server, state, _ = begun(make_server, original(), training={"rounds": 40})
    old = replace(state, reputation=torch.tensor([0.7, 0.3], dtype=torch.float64))
    for method, alpha in ((original(), 5.0), (original(growing=True), 5 * (1 + 10 / 40))):
        r = [math.sinh(alpha * (0.8 * 0.7 + 0.2 * 0.25)), math.sinh(alpha * (0.8 * 0.3 + 0.2 * 0.75))]
        found = learned(server, method, old, t=10).reputation
        assert found.tolist() == pytest.approx([r[0] / sum(r), r[1] / sum(r)], rel=1e-6)


def test_the_original_removes_who_falls_below_a_third_of_the_mean(make_server):
    method = original(sparsify="all", share="contributions")
    server, state, _ = begun(make_server, method, accuracies=(0.05, 0.95), contributions=(0.3, 0.3))
    new = learned(server, method, state, random_updates())  # sinh(0.05) of sinh(0.05) + sinh(0.95) is 0.04 < 1/6
    assert new.members.tolist() == [False, True]
    assert new.reputation.tolist() == [0, 1]
    updates = torch.tensor(random_updates(), dtype=torch.float64)
    assert torch.equal(new.models[0], state.models[0] + updates[0])  # it goes on alone
    assert torch.allclose(new.models[1], state.models[1] + updates[1])  # of the aggregate only its own is left
    assert torch.equal(new.server, state.server + updates[1].clamp(-0.5, 0.5))
    later = learned(server, method, new, random_updates(), t=2)
    assert later.members.tolist() == [False, True]
    assert later.download[0] == 0
    # with half the threshold it stays; as FedAVE's authors run it nobody is ever removed
    assert learned(server, original(threshold=0.05), state, random_updates()).members.all()
    assert learned(server, CFFL(), state, random_updates()).members.all()


def test_a_threshold_that_would_remove_everybody_removes_nobody(make_server):
    server, state, _ = begun(make_server, original(threshold=9.0), accuracies=(0.0, 0.0))
    new = learned(server, original(threshold=9.0), state)
    assert new.members.all()
    assert new.reputation.tolist() == [0.5, 0.5]  # accuracies of zero tell nobody apart


def test_the_original_may_upload_a_part_which_is_judged_on_the_servers_model(make_server):
    method = original(theta=0.5, sparsify="all")
    server, state, asked = begun(make_server, method)
    state = replace(state, server=state.server + 1)
    rows = torch.tensor(random_updates(), dtype=torch.float64) / 10  # nothing is cut
    learned(server, method, state, rows.tolist())
    uploaded = asked[0] - state.server
    assert [(row.abs() > 1e-12).sum() for row in uploaded] == [9, 9]
    for row, update in zip(uploaded, rows, strict=True):
        kept = row.abs() > 1e-12
        assert torch.allclose(row[kept], update[kept])
        assert update[kept].abs().min() >= update[~kept].abs().max()


@pytest.mark.parametrize(("sparsify", "theta", "entries"), [("layer", 0.1, 3), ("all", 0.7, 21)])
def test_a_tenth_of_thirty_entries_is_uploaded_as_three(make_server, sparsify, theta, entries):
    method = original(theta=theta, sparsify=sparsify)
    server = make_server([0.2, 0.4], module=nn.Linear(6, 5, bias=False))
    updates = torch.arange(1.0, 61.0).reshape(2, 30) / 200
    for dtype in (torch.float32, torch.float64):
        assert (method.uploaded(server, updates.to(dtype)) != 0).sum(1).tolist() == [entries, entries]


def test_the_original_can_weigh_by_samples(make_server):
    method = original(aggregate="mean", sparsify="all", share="contributions")
    server, state, _ = begun(make_server, method)
    new = learned(server, method, state)
    # 3/4 · (0.5, 0.5) + 1/4 · (0.5, 0) = (0.5, 0.375); the own upload is taken out with the same weight
    assert (new.server - state.server)[:2].tolist() == pytest.approx([0.5, 0.375])
    change = new.models - state.models
    assert change[0, :2].tolist() == pytest.approx([3 + 0.5 - 0.375, 4 + 0.375 - 0.375])
    assert change[1, :2].tolist() == pytest.approx([1 + 0.5 - 0.125, 0.375])


def test_entries_can_be_drawn_at_random_from_one_order_for_all(make_server):
    method = original(entries="random", sparsify="all")
    server, _, _ = begun(make_server, method, contributions=(0.3, 0.3))
    quota = torch.tensor([0.31, 0.75], dtype=torch.float64)
    aggregate = torch.arange(1, 19, dtype=torch.float64)
    few, many = method.parts(server, aggregate, quota, 1)
    assert (few != 0).sum() == 5
    assert (many != 0).sum() == 13
    assert bool((many[few != 0] != 0).all())
    assert set(few.tolist()) - {0.0} != {14.0, 15.0, 16.0, 17.0, 18.0}
    assert not torch.equal(few, method.parts(server, aggregate, quota, 2)[0])


def test_classes_can_take_the_place_of_samples(make_server):
    method = CFFL(gamma=1.0, share="classes")
    server, state, _ = begun(make_server, method, accuracies=(0.5, 0.5))
    server.class_counts = lambda: torch.tensor([[9, 0, 0], [1, 1, 1]])
    assert method.shares(server).tolist() == pytest.approx([1 / 3, 1])
    new = learned(server, method, state)
    # weights 1/3 and 1, which are not divided by their sum: (0.2 + 1, 0.8 / 3)
    assert (new.server - state.server)[:2].tolist() == pytest.approx([1.2, 0.8 / 3], abs=1e-6)


def test_contributions_can_take_the_place_of_samples_and_of_reputation(make_server):
    server, state, asked = begun(make_server, CFFL())
    assert CFFL(share="contributions").shares(server).tolist() == [0.5, 1]
    for version in ("fedave", "original"):
        new = learned(server, CFFL(version=version, reputation_from="contributions"), state)
        assert new.reputation.tolist() == pytest.approx([1 / 3, 2 / 3])
    assert not asked  # nothing is scored then


@pytest.mark.parametrize("method", [CFFL(), original(), original(sparsify="all")])
def test_an_absent_client_is_not_judged_and_receives_its_reward(make_server, method):
    server, state, _ = begun(make_server, method, accuracies=(0.01, 0.6))
    state = replace(state, reputation=torch.tensor([0.3, 0.7], dtype=torch.float64))
    rows = random_updates()
    rows[0] = [0.0] * 18
    new = learned(server, method, state, rows, t=2, absent=[0])
    assert new.members.all()
    assert new.reputation[0] > 0
    reward = new.models[0] - state.models[0]
    assert bool(reward.any())
    assert int((reward != 0).sum()) == round(18 * float(new.download[0]))


def test_the_original_leaves_the_reputation_of_an_absent_client_out_of_the_moving_average(make_server):
    server, state, _ = begun(make_server, original())
    state = replace(state, reputation=torch.tensor([0.3, 0.7], dtype=torch.float64))
    new = learned(server, original(), state, [[0.0] * 18, [1.0] * 18], t=2, absent=[0])
    r = [math.sinh(5 * 0.3), math.sinh(5 * (0.8 * 0.7 + 0.2 * 1.0))]
    assert new.reputation.tolist() == pytest.approx([r[0] / sum(r), r[1] / sum(r)], rel=1e-6)
