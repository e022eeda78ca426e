import functools
import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cofair.contributions import cosine, shapley
from cofair.errors import RunError, UsageError

patient = settings(deadline=None, max_examples=50)


def brute_force(updates, weights):
    """Eq. 2 as it is written: all orders, and vectors of length D in every coalition."""
    u = cosine.normalised(updates)
    whole = weights @ u
    players = len(updates)

    @functools.cache
    def value(members):
        if not members:
            return 0.0
        together = sum(weights[i] * u[i] for i in members)
        lengths = float(together.norm() * whole.norm())
        return float(together @ whole) / lengths if lengths > 1e-9 else 0.0

    total = [0.0] * players
    for order in itertools.permutations(range(players)):
        for k, player in enumerate(order):
            total[player] += value(frozenset(order[: k + 1])) - value(frozenset(order[:k]))
    return [one / math.factorial(players) for one in total]


def gaussian(players, size, seed, dtype=torch.float64):
    random = torch.Generator().manual_seed(seed)
    return torch.randn(players, size, generator=random, dtype=dtype), torch.rand(players, generator=random).to(dtype)


problems = st.tuples(st.integers(1, 5), st.integers(1, 6), st.integers(0, 10**6))


@patient
@given(problems)
def test_exact_values_are_those_of_all_permutations(problem):
    updates, weights = gaussian(*problem)
    found = cosine.exact(updates, weights)
    assert found.dtype == torch.float64
    assert found.tolist() == pytest.approx(brute_force(updates, weights), abs=1e-7)
    assert float(found.sum()) == pytest.approx(1)  # efficiency: cos(u_N, u_N)


@patient
@given(problems)
def test_the_approximation_is_the_cosine_with_the_aggregate(problem):
    updates, weights = gaussian(*problem)
    u = cosine.normalised(updates)
    expected = torch.nn.functional.cosine_similarity(u, (weights @ u)[None], dim=1)
    assert torch.allclose(cosine.approximate(updates, weights), expected, atol=1e-9)


def test_two_clients_by_hand():
    # u_1 = (1, 0), u_2 = (0, 1), r = (0.6, 0.8): u_N = (0.6, 0.8), of length 1
    updates = torch.tensor([[2.0, 0.0], [0.0, 5.0]], dtype=torch.float64)
    weights = torch.tensor([0.6, 0.8], dtype=torch.float64)
    # v({1}) = 0.6, v({2}) = 0.8, v({1, 2}) = 1
    assert cosine.exact(updates, weights).tolist() == pytest.approx([(0.6 + 0.2) / 2, (0.8 + 0.4) / 2], abs=1e-6)
    assert cosine.approximate(updates, weights).tolist() == pytest.approx([0.6, 0.8], abs=1e-6)
    every_order = cosine.sampled(updates, weights, torch.Generator())
    assert every_order.tolist() == pytest.approx([0.4, 0.6], abs=1e-6)


def measures():
    return {
        "exact": cosine.exact,
        "approximate": cosine.approximate,
        "sampled": lambda u, r, present=None: cosine.sampled(u, r, torch.Generator().manual_seed(0), 10**6, present),
    }


each_measure = pytest.mark.parametrize("measure", measures().values(), ids=measures())


@each_measure
@patient
@given(seed=st.integers(0, 1000), random=st.randoms(use_true_random=False))
def test_permuting_clients_permutes_their_values(measure, seed, random):
    updates, weights = gaussian(5, 8, seed)
    order = list(range(5))
    random.shuffle(order)
    found, permuted = measure(updates, weights), measure(updates[order], weights[order])
    assert permuted.tolist() == pytest.approx(found[order].tolist(), abs=1e-12)


@each_measure
def test_the_length_of_an_update_changes_nothing(measure):
    updates, weights = gaussian(5, 30, 3)
    lengths = torch.tensor([1e3, 0.5, 7.0, 40.0, 1.0], dtype=torch.float64)[:, None]
    assert torch.allclose(measure(updates, weights), measure(updates * lengths, weights), atol=1e-6)
    assert torch.allclose(measure(updates, weights), measure(updates, 3 * weights), atol=1e-12)


@each_measure
def test_who_uploads_zeros_or_nothing_gets_exactly_nothing_and_changes_nothing(measure):
    updates, weights = gaussian(4, 30, 4)
    others = measure(updates[[0, 1, 3]], weights[[0, 1, 3]])
    zeros = updates.clone()
    zeros[2] = 0
    assert measure(zeros, weights)[2] == 0
    assert measure(zeros, weights)[[0, 1, 3]].tolist() == pytest.approx(others.tolist(), abs=1e-12)
    broken = updates.clone()
    broken[2] = torch.nan  # nobody looks at what an absent client did not send
    found = measure(broken, weights, torch.tensor([True, True, False, True]))
    assert found[2] == 0
    assert found[[0, 1, 3]].tolist() == pytest.approx(others.tolist(), abs=1e-12)


@each_measure
def test_one_client_brings_everything_and_no_client_nothing(measure):
    updates, weights = gaussian(3, 5, 5)
    assert measure(updates[:1], weights[:1]).tolist() == pytest.approx([1])
    assert measure(updates, weights, torch.tensor([False, True, False])).tolist() == pytest.approx([0, 1, 0])
    assert measure(updates, weights, torch.zeros(3, dtype=torch.bool)).tolist() == [0, 0, 0]
    assert measure(torch.zeros(3, 5), weights).tolist() == [0, 0, 0]


@each_measure
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_updates_that_cancel_have_no_direction_in_common(measure, dtype):
    updates, _ = gaussian(1, 5000, 6, dtype)
    against = torch.cat([updates, -updates])
    assert measure(against, torch.ones(2)).tolist() == [0, 0]
    assert measure(torch.cat([updates, -0.37 * updates]), torch.ones(2)).tolist() == [0, 0]  # up to rounding
    # a third client alone decides the direction; the two still cancel in the coalition {0, 1}
    third, _ = gaussian(1, 5000, 7, dtype)
    found = measure(torch.cat([against, third]), torch.ones(3))
    assert float(found[2]) > 0.5
    assert torch.isfinite(found).all()


def test_coalitions_are_those_of_clients_that_brought_something():
    updates, weights = gaussian(5, 20, 16)
    many = torch.zeros(60, 20, dtype=torch.float64)
    many[10:15] = updates
    found = cosine.exact(many, torch.cat([torch.ones(10), weights, torch.ones(45)]))
    assert found[10:15].tolist() == pytest.approx(cosine.exact(updates, weights).tolist())
    assert found.count_nonzero() == 5


def test_without_weight_a_client_is_a_null_player_but_has_its_cosine():
    updates, weights = gaussian(3, 10, 8)
    weights[1] = 0
    assert cosine.exact(updates, weights)[1] == 0
    assert cosine.approximate(updates, weights)[1] != 0


@each_measure
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_an_update_that_is_not_finite_is_a_sentence_that_names_the_client(measure, bad):
    updates, weights = gaussian(4, 10, 9)
    updates[2, 3] = bad
    with pytest.raises(RunError, match=r"^The update of client 2 is not finite"):
        measure(updates, weights)
    with pytest.raises(RunError, match=r"^The update of client 2 is not finite"):
        measure(updates, weights, torch.tensor([False, True, True, True]))


@each_measure
def test_wrong_weights_are_refused(measure):
    updates, weights = gaussian(3, 10, 10)
    for wrong in (torch.full((3,), torch.nan), -weights):
        with pytest.raises(UsageError, match="Weights of clients must be finite numbers of at least 0"):
            measure(updates, wrong)
    with pytest.raises(UsageError, match=r"need weights \(N,\), but their shapes are \(3, 10\) and \(2,\)"):
        measure(updates, weights[:2])
    with pytest.raises(UsageError, match="present must say for each of the 3 clients"):
        measure(updates, weights, torch.ones(2, dtype=torch.bool))


def test_more_clients_than_coalitions_fit_are_refused_before_anything_is_tried():
    updates, weights = gaussian(25, 5, 11)
    with pytest.raises(UsageError, match="Exact Shapley values of 25 clients"):
        cosine.exact(updates, weights)
    assert torch.isfinite(cosine.sampled(updates, weights, torch.Generator().manual_seed(0))).all()


def test_the_gram_matrix_is_the_same_whatever_the_chunks(monkeypatch):
    updates, _ = gaussian(6, 1000, 12, torch.float32)
    whole = updates.double() @ updates.double().T
    for columns, at_once in ((1, 64), (7, 2), (7, 64), (1000, 1), (5000, 64)):
        monkeypatch.setattr(cosine, "_COLUMNS", columns)
        monkeypatch.setattr(cosine, "_AT_ONCE", at_once)
        assert torch.allclose(cosine.gram(updates), whole, rtol=1e-6, atol=1e-3)
        assert torch.allclose(cosine.gram(updates.T.contiguous().T), whole, rtol=1e-6, atol=1e-3)
        assert cosine.gram(updates).dtype == torch.float64


def test_single_and_double_precision_agree():
    updates, weights = gaussian(6, 20_000, 13)
    for measure in measures().values():
        assert torch.allclose(measure(updates, weights), measure(updates.float(), weights), atol=1e-5)


def test_coalitions_by_doubling_are_coalitions_one_by_one():
    updates, weights = gaussian(7, 9, 14)
    inner, _ = cosine.inner_products(updates, weights)
    members = shapley.coalitions(7)
    together = members.double() @ (weights[:, None] * cosine.normalised(updates))
    assert torch.allclose(cosine.coalition_squares(inner), together.square().sum(1), atol=1e-6)
    utility = cosine.cosine_utility(inner, 1e-12)
    assert torch.allclose(utility(members), cosine.coalition_cosines(inner, 1e-12), atol=1e-12)


def test_updates_are_scaled_to_one_norm():
    updates = torch.tensor([[3.0, 4.0], [0.0, 0.0]], dtype=torch.float64)
    assert cosine.normalised(updates, 0.5).tolist() == [pytest.approx([0.3, 0.4], abs=1e-6), [0, 0]]


def figure_1(players, size, runs, kind):
    """Mean l1 distance to the exact values, all divided by their sums: u_i ~ N(0, I), equal weights, not normalised."""
    distances = []
    for run in range(runs):
        random = torch.Generator().manual_seed(1000 * players + run)
        updates = torch.randn(players, size, generator=random)
        norms = updates.norm(dim=1)  # as weights, they undo the normalisation
        phi = cosine.exact(updates, norms)
        other = cosine.approximate(updates, norms) if kind == "psi" else cosine.sampled(updates, norms, random)
        distances.append(float((phi / phi.sum() - other / other.sum()).abs().sum()))
    return sum(distances) / runs


@pytest.mark.parametrize("players", range(5, 11))
def test_figure_1_approximation_error_is_a_hundredth_and_does_not_grow_with_clients(players):
    assert 0.007 < figure_1(players, 1000, 40, "psi") < 0.0125


@pytest.mark.parametrize("players", range(6, 11))
def test_figure_1_sampling_error_is_flat(players):
    # 150 of all 720 orders of six clients, without replacement: √(1 - 150/720) = 0.89 of the error with replacement
    replaced = 0.89 if players == 6 else 1
    assert 0.040 * replaced < figure_1(players, 1000, 40, "sampled") < 0.052 * replaced


def test_figure_1_with_five_clients_all_120_orders_are_used():
    assert figure_1(5, 1000, 5, "sampled") < 1e-6


def test_figure_1_approximation_error_falls_like_the_root_of_the_parameters():
    errors = [figure_1(10, size, 20, "psi") for size in (1024, 4096, 16384)]
    for coarse, fine in itertools.pairwise(errors):
        assert 1.6 < coarse / fine < 2.4
    assert errors[0] == pytest.approx(0.0106, rel=0.2)
    assert errors[1] == pytest.approx(0.0053, rel=0.2)


@pytest.mark.gpu
@each_measure
def test_a_gpu_gives_the_same_values(measure):
    updates, weights = gaussian(6, 50_000, 15, torch.float32)
    present = torch.tensor([True, True, False, True, True, True])
    here, there = measure(updates, weights, present), measure(updates.cuda(), weights.cuda(), present.cuda())
    assert there.device.type == "cuda"
    assert torch.allclose(here, there.cpu(), atol=1e-5)
