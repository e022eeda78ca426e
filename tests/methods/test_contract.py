import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import cofair
from cofair import metrics
from cofair.engine.phases import TRAIN
from cofair.errors import UsageError
from cofair.methods.contract import Contract
from cofair.methods.rules.promises import (
    BcfMiddle,
    EqualGain,
    Inside,
    Proportional,
    check,
    check_all,
    inside_while,
    outside,
    through,
)
from tests.conftest import uploads_of

C = torch.tensor([0.28, 0.34, 0.36, 0.41], dtype=torch.float64)


def test_everybody_gains_the_same():
    promised = EqualGain()(C, 0.50)
    assert (promised - C).tolist() == pytest.approx([0.09] * 4)
    assert metrics.fairness(C, promised) == pytest.approx(100)


def test_curves_worked_out_by_hand():
    assert EqualGain(kappa=0.5)(C, 0.50).tolist() == pytest.approx([0.435, 0.465, 0.475, 0.50])
    assert Proportional()(C, 0.82).tolist() == pytest.approx([0.56, 0.68, 0.72, 0.82])
    assert BcfMiddle()(C, 0.82).tolist() == pytest.approx(
        [(0.28 + 0.69) / 2, (0.34 + 0.75) / 2, (0.36 + 0.77) / 2, 0.82]
    )
    assert through((0.0, 0.5, 1.0, 1.0))(C, 1.0).tolist() == pytest.approx((0.5 + 0.5 * C / 0.41).tolist())


def test_more_is_never_promised_for_less():
    for curve in (EqualGain(), Proportional(), BcfMiddle(), through((0.0, 0.2, 0.5, 0.8, 1.0, 1.0))):
        check(curve, C, 0.5)
    with pytest.raises(UsageError, match=r"promises less for a contribution of 0.34 than for 0.28"):
        check(lambda c, a: a - c, C, 0.5)
    with pytest.raises(UsageError, match="must not fall"):
        check(lambda c, a: torch.tensor([0.2, 0.199, 0.3, a], dtype=torch.float64), C, 0.5)
    alike = torch.tensor([0.2, 0.4, 0.4], dtype=torch.float64)
    for promised in ([0.1, 0.9, 0.5], [0.1, 0.5, 0.4]):
        with pytest.raises(UsageError, match="different accuracies for equal contributions"):
            check(lambda c, a, promised=promised: torch.tensor(promised).double(), alike, 0.5)
    for wrong in (lambda c, a: c[:2], lambda c, a: c / 0, lambda c, a: 3, lambda c, a: c.tolist()):
        with pytest.raises(UsageError, match="one finite accuracy"):
            check(wrong, C, 0.5)


@pytest.mark.parametrize("curve", [EqualGain(), EqualGain(3.0), Proportional(), BcfMiddle(), through((0.0, 0.2, 1, 1))])
def test_curves_of_ours_are_promises_for_every_accuracy(curve):
    for contributions in (C, C - 0.3, torch.zeros(3, dtype=torch.float64), 1000 * C):
        check_all(curve, contributions)
    assert BcfMiddle()(C, 0.3).tolist() == pytest.approx([(0.28 + 0.252439) / 2, 0.3, 0.3, 0.3], abs=1e-6)


@pytest.mark.parametrize(
    ("curve", "sentence"),
    [
        (
            lambda c, a: a * c / c.max() if a > 0.8 else a * (2 - c / c.max()),
            r"than for .* where the whole model has 5",
        ),
        (lambda c, a: a * c / c.max() if a > 0.8 else c * float("nan"), "one finite accuracy .* has 5.0 %"),
        (lambda c, a: (a * c / c.max()).tolist(), "one finite accuracy"),
        (lambda c, a: a * c[:2] / c.max(), "one finite accuracy"),
    ],
)
def test_a_curve_that_is_wrong_for_some_accuracy_is_refused_before_anything_is_told(curve, sentence, capsys):
    with pytest.raises(UsageError, match=sentence):
        run(own_curve=curve)
    assert "can be expected" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"pack": 0}, "method.pack must be at least 1, but is 0"),
        ({"curve": "foo"}, "method.curve = 'foo' is not a choice"),
        ({"curve": lambda c, a: c}, "method.curve must be 'equal_gain'"),
        ({"kappa": "x"}, "method.kappa must be a number"),
        ({"power": -1.0}, "method.power must be at least 0"),
        ({"points": ((0, 0.5), (1, 1))}, "method.points must be a list of numbers"),
        ({"own_curve": "proportional"}, "own_curve must be a function of contributions and A"),
    ],
)
def test_settings_that_are_none_are_told_in_python_too(settings, sentence):
    with pytest.raises(UsageError, match=sentence):
        run(**settings)


def test_a_curve_is_also_checked_where_it_was_not_looked_at_before():
    """Contributions may be measured anew, and A is any number."""
    method = Contract(own_curve=lambda c, a: a * c / c.max() if a != 0.123 else -c)
    with pytest.raises(UsageError, match=r"whole model has 12.3 %: it must not fall"):
        method.promise()(C, 0.123)


@pytest.mark.parametrize(
    "points",
    [(0.0, 0.0), (0.0, 0.0, 1.0), (0.5, 0.1, 0.5, 0.9), (1.0, 1.0, 0.0, 0.0), (0.0, 0.0, 0.4, 0.4, 0.5, 0.1, 1.0, 1.0)],
)
def test_points_that_make_no_curve_are_refused(points):
    with pytest.raises(UsageError, match="pairs of numbers"):
        Contract(curve="points", points=points).promise()


def test_who_would_be_outside_the_band_is_named():
    assert outside(EqualGain(), C, 0.50, "abcd") == []
    low = outside(EqualGain(), C, 0.40, "abcd")
    assert low[0] == "Client a is promised 27.0 %, not more than the 28.0 % it reaches alone."
    high = outside(EqualGain(kappa=0.1), C, 0.80, "abcd")
    assert high[0].startswith("Client a is promised 78.7 %, above the 67.3 %")


def test_promises_stay_a_margin_of_noise_below_the_band():
    """Worked out by hand: A = 0.5, so that bounds are 0.5 − 0.25 (1 − c / 0.41) and equal gain is c + 0.09."""
    c = torch.tensor([0.28, 0.40, 0.405, 0.41], dtype=torch.float64)
    promised = Inside(EqualGain(), margin=1.0, samples=2_500)(c, 0.50)
    upper = [0.5 - 0.25 * (1 - value / 0.41) for value in c.tolist()]
    noise = [(a * (1 - a) / 2_500) ** 0.5 for a in (0.37, 0.49, 0.495)]  # about a point
    assert promised[0] == pytest.approx(0.37)  # far enough below its bound of 42.1 %
    assert promised[1:3].tolist() == pytest.approx([upper[1] - noise[1], upper[2] - noise[2]])
    assert promised[3] == 0.50
    # of very few samples all that is known is the band: its middle is promised
    assert Inside(EqualGain(), 1.0, 4)(c, 0.50)[1] == pytest.approx((0.40 + upper[1]) / 2)


def test_a_promise_outside_the_band_is_kept_as_it_is():
    generous = EqualGain(kappa=0.1)
    assert outside(generous, C, 0.80, "abcd")
    assert Inside(generous, 1.0, 100)(C, 0.80).tolist() == generous(C, 0.80).tolist()
    poor = EqualGain()  # a young model is worse than the best alone
    assert Inside(poor, 1.0, 100)(C, 0.40).tolist() == poor(C, 0.40).tolist()


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=8), st.floats(0, 3), st.integers(1, 10_000))
def test_a_margin_never_promises_more_nor_less_for_more(brought, margin, samples):
    c = torch.tensor(brought, dtype=torch.float64)
    for curve in (EqualGain(), EqualGain(0.4), Proportional(), BcfMiddle(), through((0, 0.9, 0.9, 0.95, 1, 1))):
        kept = Inside(curve, margin, samples)
        check_all(kept, c)
        for accuracy in (0.1, 0.5, 0.9):
            promised = curve(c, accuracy)
            assert bool((kept(c, accuracy) <= promised + 1e-12).all())
            inside = metrics.within_alpha_bound(c, promised)
            assert metrics.within_alpha_bound(c, kept(c, accuracy))[inside].all()


def run(contribution=None, **settings):
    federation = cofair.federate("digits", "pow", clients=6)
    from cofair.models import build

    return cofair.run(
        lambda: build("mlp", (1, 8, 8), 10, hidden=(40, 40)), federation, Contract(**settings), rounds=40, steps=10,
        lr=0.1, contribution=contribution or {"on": "validation"}, seed=1,
    )  # fmt: skip


def test_the_promise_is_kept_on_the_validation_set_and_told_round_by_round():
    result = run(margin=0.0)
    last = result.history[-1]
    assert last.promised is not None
    assert last.validated is not None
    gains = [a - c for a, c in zip(last.promised, result.contributions, strict=True)]
    assert max(gains) - min(gains) < 1e-9
    assert max(abs(a - b) for a, b in zip(last.promised, last.validated, strict=True)) < 0.06
    assert result.fairness > 97


def test_the_margin_comes_from_the_samples_that_choose(make_server):
    """And only where rewards and contributions are accuracies, or the organiser's own function says otherwise."""
    server = make_server([0.1, 0.2, 0.3])
    samples = len(server.validation.samples)
    assert Contract().owed(server) == Inside(EqualGain(), 1.0, samples)
    assert Contract(hands="submodels", margin=2.0, fit="halves").owed(server) == Inside(
        EqualGain(), 2.0, (samples + 1) // 2
    )
    for method in (Contract(margin=0.0), Contract(hands="submodels", pays="neurons")):
        assert method.owed(server) == EqualGain()
    assert not isinstance(Contract(own_curve=EqualGain()).owed(server), Inside)
    server.brings_accuracies = False
    assert Contract().owed(server) == EqualGain()


def test_a_curve_of_ones_own_is_a_function():
    result = run(own_curve=lambda c, accuracy: accuracy * (c / c.max()) ** 2)
    last = result.history[-1]
    expected = [max(last.promised) * (c / max(result.contributions)) ** 2 for c in result.contributions]
    assert last.promised == pytest.approx(expected)


def test_what_is_delivered_is_what_was_granted_and_calibrated_on_the_current_model():
    result = run()
    last = result.history[-1]
    scores = result.rewards  # the modules themselves
    held = cofair.federate("digits", "pow", clients=6, seed=0).validation
    for i, promised in enumerate(last.validated):
        right = (scores[i](held.x).argmax(1) == held.y).double().mean()
        assert float(right) == pytest.approx(promised, abs=1e-6)


def test_what_can_be_expected_is_said_before_training():
    notes = run().facts["notes"]
    assert notes[0].startswith("A model chosen on 143 samples keeps its promise on new data to ±")
    assert "or more can be expected of a round tested on 364 samples" in notes[1]
    assert run(hands="submodels", fit="halves").facts["notes"][0].startswith("A model chosen on 72 samples")


def test_the_best_must_be_promised_the_whole_model():
    with pytest.raises(UsageError, match=r"promises 25.0 % to the best contributor where the whole model has 50.0 %"):
        check(through((0.0, 0.0, 1.0, 0.5)), C, 0.5)


def test_it_is_said_while_what_accuracy_everybody_is_inside_the_band():
    told = inside_while(EqualGain(), C, "abcd")
    # at 100 %: a* = 87 %, the bound (0.5 · 28 / 41 + 0.5) · 100 % = 84.1 %
    assert told.endswith(
        "while the whole model has 41 to 82 %. Where it has 100 %: Client a is promised 87.0 %, above the 84.1 % that "
        "its contribution bounds. So are 2 others."
    )
    always = inside_while(BcfMiddle(), C, "abcd")
    assert always.endswith("while the whole model has 41 to 100 %.")
    in_stripes = inside_while(lambda c, a: BcfMiddle()(c, a) if a < 0.6 or a > 0.7 else 0 * c + a, C, "abcd")
    assert "has 41 to 60 %. Where it has 60 %: Client a is promised" in in_stripes
    never = inside_while(lambda c, a: a * torch.ones_like(c), C, "abcd")
    assert never.startswith(
        "No accuracy of the whole model keeps everybody inside the α-BCF band. Client a is promised"
    )


def test_contributions_that_are_no_accuracies_promise_no_interval():
    (note,) = run(contribution={"measure": "size"}).facts["notes"]
    assert note.startswith("Contributions are not measured as accuracies here")


def test_a_run_does_not_go_on_under_another_curve(tmp_path):
    """A function is in no file: it is known by what it promises."""
    federation = cofair.federate("digits", "pow", clients=3)

    def go(curve):
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.ReLU(), nn.Linear(12, 10))
        torch.manual_seed(0)
        for parameter in model.parameters():
            nn.init.normal_(parameter, std=0.1)
        method = Contract(own_curve=curve)
        return cofair.run(model, federation, method, rounds=3, out=tmp_path / "a", resume=True, steps=2)

    first = go(lambda c, a: a * c / c.max())
    assert "method.own_curve" in first.facts["given"]
    assert go(lambda c, a: a * (c / c.max())).accuracies == first.accuracies
    for other in (lambda c, a: a * (c / c.max()) ** 2, None):
        with pytest.raises(UsageError, match="another experiment"):
            go(other)


@pytest.mark.parametrize(
    ("brought", "settings", "weights"),
    [
        ([0.2, 0.4], {}, [0.125, 1]),
        ([0.2, 0.4], {"power": 1.0}, [0.5, 1]),
        ([-0.1, 0.4], {}, [0, 1]),  # less than nothing weighs nothing
        ([0.2, 0.4], {"power": 0.0}, None),
        ([0.0, 0.0], {}, None),  # nobody brings anything: all alike
    ],
)
def test_an_update_weighs_as_its_clients_contribution_says(brought, settings, weights, make_server):
    found = Contract(**settings).weights(make_server(brought))
    assert weights is None if found is None else found.tolist() == pytest.approx(weights)


@pytest.mark.parametrize(
    ("settings", "defence", "share"),
    [({}, {}, 1 / 9), ({"power": 0.0}, {}, 0.5), ({}, {"defence": {"aggregate": "median"}}, 0.5)],
)
def test_the_model_moves_as_weights_say(settings, defence, share, make_server):
    server = make_server([0.2, 0.4], **defence)
    method = Contract(**settings, strides=(1.0,))
    state = method.start(server)
    size = len(server.initial)
    uploads = uploads_of([[1.0] * size, [3.0] * size], [12, 12])
    after = method.learn(server, state, method.rewards(server, state, 1, TRAIN), uploads, 1, TRAIN)
    moved = after.parameters - state.parameters
    assert moved.tolist() == pytest.approx([share * 1 + (1 - share) * 3] * size)
