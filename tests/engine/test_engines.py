"""Both engines give the same numbers, and the loop gives the numbers of plain PyTorch."""

import copy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from cofair.data.federation import Federation
from cofair.engine.choose import engine as choose_engine
from cofair.engine.linear_stack import LinearStack
from cofair.engine.loop_engine import LoopEngine
from cofair.engine.losses import loss as resolve_loss
from cofair.engine.protocol import ClientStates, Rewards
from cofair.engine.vectorised import VectorisedEngine
from cofair.engine.work import Work
from cofair.errors import RunError, UsageError
from cofair.models import build
from tests.conftest import small_federation, small_stack

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def start_of(problem):
    return problem.layout.row(problem.layout.prototype)


def train_both(problem, rewards, rounds=2):
    """Train some rounds with each engine, every round starting from the loop's result."""
    states = {LoopEngine: ClientStates(), VectorisedEngine: ClientStates()}
    parameters = rewards.parameters
    for t in range(1, rounds + 1):
        now = replace(rewards, parameters=parameters)
        uploads = {}
        for kind in (LoopEngine, VectorisedEngine):
            uploads[kind], states[kind] = kind(problem).train(now, states[kind], t)
        loop, vectorised = uploads[LoopEngine], uploads[VectorisedEngine]
        yield loop, vectorised
        parameters = parameters + loop.updates


WORKS = {
    "steps": Work(steps=5, epochs=None, batch_size=8, lr=0.1, clip=1.0),
    "epochs": Work(steps=None, epochs=2, batch_size=8, lr=0.1, clip=1.0),
    "no clip": Work(steps=4, epochs=None, batch_size=8, lr=0.1),
    "small clip": Work(steps=4, epochs=None, batch_size=8, lr=0.1, clip=0.01),
    "drop last": Work(steps=None, epochs=2, batch_size=8, lr=0.1, drop_last=True),
    "decay by round": Work(steps=3, epochs=None, batch_size=8, lr=0.1, decay=0.5),
    "decay by epoch": Work(steps=None, epochs=3, batch_size=16, lr=0.1, decay=0.5, decay_every="epoch"),
    "one sample a batch": Work(steps=6, epochs=None, batch_size=1, lr=0.1),
    "large batch": Work(steps=3, epochs=None, batch_size=64, lr=0.1, clip=0.5),
    "adam": Work(steps=4, epochs=None, batch_size=8, lr=0.01, optimiser="adam"),
}


class Scaled(nn.Module):
    """A module with a parameter that is one number."""

    def __init__(self):
        super().__init__()
        self.layer, self.scale = nn.Linear(6, 3), nn.Parameter(torch.tensor(0.7))

    def forward(self, x):
        return self.scale * self.layer(x)


MODULES = {
    "a number": Scaled,
    "relu stack": lambda: small_stack(nn.ReLU),
    "tanh stack": lambda: small_stack(nn.Tanh),
    "sigmoid stack": lambda: small_stack(nn.Sigmoid),
    "one layer": lambda: nn.Linear(6, 3),
    "not a stack": lambda: nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 3)),
    "dropout": lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.4), nn.Linear(8, 3)),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("work", WORKS.values(), ids=WORKS)
@pytest.mark.parametrize("module", MODULES.values(), ids=MODULES)
def test_engines_agree_in_float64(make_problem, module, work, device):
    torch.manual_seed(2)
    problem = make_problem(module(), device=device)
    for loop, vectorised in train_both(problem, Rewards(start_of(problem), work)):
        assert float((loop.updates - vectorised.updates).abs().max()) < 1e-9
        assert float(loop.updates.abs().max()) > 1e-4
        assert torch.equal(loop.present, vectorised.present)


@pytest.mark.parametrize(
    ("name", "shape", "vocabulary", "settings"),
    [
        ("mlp", (1, 8, 8), None, {"hidden": (12, 7)}),
        ("cnn-mnist", (1, 28, 28), None, {}),
        ("cnn-cifar", (3, 32, 32), None, {}),
        ("textcnn", (9,), 30, {}),
    ],
)
def test_engines_agree_on_our_models_under_neuron_masks(make_problem, name, shape, vocabulary, settings):
    torch.manual_seed(3)
    module = build(name, shape, 3, vocabulary=vocabulary, **settings)
    federation = small_federation((5, 9, 6), shape, tokens=vocabulary)
    problem = make_problem(module, federation)
    masks = torch.rand(3, problem.neurons.count, generator=torch.Generator().manual_seed(0)) < 0.6
    work = Work(steps=3, epochs=None, batch_size=4, lr=0.1)
    keep = problem.neurons.parameter_mask(masks)
    for loop, vectorised in train_both(problem, Rewards(start_of(problem), work, masks), rounds=1):
        assert float((loop.updates - vectorised.updates).abs().max()) < 1e-9
        for uploads in (loop, vectorised):
            assert float(uploads.updates[~keep].abs().max()) == 0  # nothing that is left out moves
            assert float(uploads.updates.abs().max()) > 1e-4


def test_engines_agree_in_float32_after_twenty_rounds(make_problem):
    """Averaging has no discrete choice, so rounding does not grow into another result."""
    problem = make_problem(dtype=torch.float32)
    work = Work(steps=5, epochs=None, batch_size=8, lr=0.1)
    ends = []
    for kind in (LoopEngine, VectorisedEngine):
        engine, row = kind(problem), start_of(problem)
        for t in range(1, 21):
            row = row + engine.train(Rewards(row, work), ClientStates(), t)[0].updates.mean(0)
        ends.append(row)
    assert float((ends[0] - ends[1]).abs().max()) < 1e-4


def test_the_loop_is_what_anyone_would_write(make_problem):
    """One client, batches of all its data: plain SGD on a plain module, with PyTorch's own clipping."""
    problem = make_problem()
    module = copy.deepcopy(problem.layout.prototype)
    own = problem.federation.client(2)
    optimiser = torch.optim.SGD(module.parameters(), lr=0.2)
    for _ in range(4):
        optimiser.zero_grad()
        F.cross_entropy(module(own.x), own.y).backward()
        nn.utils.clip_grad_norm_(module.parameters(), 0.5)
        optimiser.step()
    work = Work(steps=4, epochs=None, batch_size=1000, lr=0.2, clip=0.5)
    for kind in (LoopEngine, VectorisedEngine):
        uploads, _ = kind(problem).train(Rewards(start_of(problem), work), ClientStates(), 1)
        expected = problem.layout.row(module) - start_of(problem)
        assert float((uploads.updates[2] - expected).abs().max()) < 1e-12


def test_a_step_worked_out_by_hand():
    """f(x) = w x + b with squared error: two samples (1, 3) and (2, 3) from w = b = 0 at rate 0.1."""
    from cofair.engine.problem import Problem
    from cofair.models.parameters import Layout

    module = nn.Linear(1, 1).double()
    nn.init.zeros_(module.weight)
    nn.init.zeros_(module.bias)
    x, y = torch.tensor([[1.0], [2.0]]), torch.tensor([3.0, 3.0])
    federation = Federation([(x, y)], test=(x, y)).to("cpu", torch.float64)
    problem = Problem(Layout(module), None, federation, 0, resolve_loss("squared_error"))
    work = Work(steps=1, epochs=None, batch_size=2, lr=0.1, clip=None)
    # the gradient of the mean of (w x + b - y)² is 2 · mean((0 - 3) x) = -9 for w, and -6 for b
    for kind in (LoopEngine, VectorisedEngine):
        uploads, _ = kind(problem).train(Rewards(torch.zeros(2).double(), work), ClientStates(), 1)
        assert uploads.updates[0].tolist() == pytest.approx([0.9, 0.6], abs=1e-12)


def test_adams_memory_stays_with_the_client_between_rounds(make_problem):
    problem = make_problem()
    work = Work(steps=2, epochs=None, batch_size=8, lr=0.01, optimiser="adam")
    rewards = Rewards(start_of(problem), work)
    for kind in (LoopEngine, VectorisedEngine):
        engine = kind(problem)
        _, states = engine.train(rewards, ClientStates(), 1)
        assert states.optimiser["steps"].tolist() == [2, 2, 2, 2]
        fresh, _ = engine.train(rewards, ClientStates(), 2)
        kept, again = engine.train(rewards, states, 2)
        assert not torch.allclose(fresh.updates, kept.updates)
        assert again.optimiser["steps"].tolist() == [4, 4, 4, 4]
        assert states.optimiser["steps"].tolist() == [2, 2, 2, 2]  # a state is never written to


def test_who_takes_no_part_or_has_no_data_uploads_nothing(make_problem):
    random = torch.Generator().manual_seed(0)
    full = (torch.randn(9, 6, generator=random), torch.arange(9) % 3)
    empty = (torch.zeros(0, 6), torch.zeros(0, dtype=torch.int64))
    problem = make_problem(federation=Federation([full, empty, full], test=full))
    work = Work(steps=2, epochs=None, batch_size=4, lr=0.1)
    participants = torch.tensor([False, True, True])
    rewards = Rewards(start_of(problem), work, participants=participants)
    for loop, vectorised in train_both(problem, rewards, rounds=1):
        for uploads in (loop, vectorised):
            assert uploads.present.tolist() == [False, False, True]
            assert uploads.updates[:2].abs().max() == 0
            assert uploads.updates[2].abs().max() > 0
    nobody = Rewards(start_of(problem), work, participants=torch.zeros(3, dtype=torch.bool))
    for loop, vectorised in train_both(problem, nobody, rounds=1):
        assert not loop.present.any()
        assert not vectorised.present.any()


def test_an_absent_client_does_not_change_the_others_batches(make_problem):
    problem = make_problem()
    work = Work(steps=3, epochs=None, batch_size=8, lr=0.1)
    engine = VectorisedEngine(problem)
    everyone, _ = engine.train(Rewards(start_of(problem), work), ClientStates(), 1)
    some = Rewards(start_of(problem), work, participants=torch.tensor([True, False, True, True]))
    without, _ = engine.train(some, ClientStates(), 1)
    assert torch.allclose(without.updates[[0, 2, 3]], everyone.updates[[0, 2, 3]], atol=1e-12)


def test_frozen_parameters_stay_frozen(make_problem):
    module = small_stack()
    module[1].requires_grad_(False)
    problem = make_problem(module)
    work = Work(steps=3, epochs=None, batch_size=8, lr=0.1)
    for loop, vectorised in train_both(problem, Rewards(start_of(problem), work)):
        assert float((loop.updates - vectorised.updates).abs().max()) < 1e-9
    assert problem.layout.size == 5 * 9 + 3 * 5 + 3


def test_a_custom_loss_is_minimised_by_both_engines(make_problem):
    def label_smoothing(outputs, targets):
        return F.cross_entropy(outputs, targets, reduction="none", label_smoothing=0.2)

    for loss in (label_smoothing, resolve_loss(nn.CrossEntropyLoss(label_smoothing=0.2))):
        problem = make_problem(loss=loss)
        work = Work(steps=3, epochs=None, batch_size=8, lr=0.1)
        for loop, vectorised in train_both(problem, Rewards(start_of(problem), work)):
            assert float((loop.updates - vectorised.updates).abs().max()) < 1e-9


def test_auto_takes_stacks_as_a_batch_and_leaves_convolutions_to_the_loop_on_a_cpu(make_problem):
    assert isinstance(choose_engine("auto", make_problem()), VectorisedEngine)
    images = small_federation((5, 5), (1, 28, 28))
    convolutions = make_problem(build("cnn-mnist", (1, 28, 28), 3), images)
    assert isinstance(choose_engine("auto", convolutions), LoopEngine)


def test_only_plain_stacks_take_the_hand_written_backward(make_problem):
    shared = nn.Linear(6, 6)

    class Tripled(nn.Linear):
        def forward(self, x):
            return 3 * super().forward(x)

    hooked = small_stack()
    hooked[1].register_forward_hook(lambda module, args, output: 3 * output)

    class Doubled(nn.Sequential):
        def forward(self, x):
            return 2 * super().forward(x)

    plain = [
        small_stack(),
        nn.Linear(6, 3),
        build("mlp", (6,), 3, hidden=(4,)),
        nn.Sequential(nn.Sequential(nn.Linear(6, 3))),
    ]
    others = [
        nn.Sequential(shared, nn.ReLU(), shared, nn.Linear(6, 3)),
        Doubled(nn.Linear(6, 3)),
        nn.Sequential(Tripled(6, 3)),
        hooked,
        nn.Sequential(nn.Linear(6, 3), nn.Tanh()),
        nn.Sequential(nn.Linear(6, 4), nn.LeakyReLU(), nn.Linear(4, 3)),
    ]
    for module in plain:
        problem = make_problem(module)
        assert LinearStack.of(problem.layout, problem.neurons) is not None
    for module in others:
        problem = make_problem(module)
        assert LinearStack.of(problem.layout, problem.neurons) is None


def test_a_failing_module_is_told_with_the_client_that_met_it(make_problem):
    class Picky(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(6, 3)

        def forward(self, x):
            if len(x) == 7:
                raise ValueError("seven is too many")
            return self.layer(x)

    problem = make_problem(Picky())
    work = Work(steps=1, epochs=None, batch_size=8)
    with pytest.raises(RunError, match=r"round 1 at client '0': seven is too many"):
        LoopEngine(problem).train(Rewards(start_of(problem), work), ClientStates(), 1)


@pytest.mark.parametrize("name", ["mlp", "cnn-cifar"])
def test_a_mask_drawn_for_every_step_is_the_same_in_both_engines_and_covers_its_choices(make_problem, name):
    torch.manual_seed(3)
    shape = (6,) if name == "mlp" else (3, 32, 32)
    problem = make_problem(build(name, shape, 3), small_federation((9, 9), shape))
    K = problem.neurons.count
    widths = torch.arange(K)[None, :] % 4 < torch.tensor([[1], [2], [4]])
    work = Work(steps=8 if name == "mlp" else 2, epochs=None, batch_size=4, lr=0.1)
    rewards = Rewards(
        start_of(problem), work, neuron_masks=widths[[1, 2]], step_masks=widths.repeat(2, 1, 1),
        step_choices=torch.tensor([2, 3]),
    )  # fmt: skip
    outside = ~problem.neurons.parameter_mask(widths)
    for loop, vectorised in train_both(problem, rewards, rounds=1):
        assert float((loop.updates - vectorised.updates).abs().max()) < 1e-9
        assert float(loop.updates[0][outside[1]].abs().max()) == 0  # never more than it holds
    if name == "mlp":
        assert float(loop.updates[0][outside[0]].abs().max()) > 0  # and not always the smallest


class TwoDropouts(nn.Module):
    """One dropout used twice, which also stands under a second name."""

    def __init__(self):
        super().__init__()
        self.layer, self.head, self.dropout = nn.Linear(6, 8), nn.Linear(8, 3), nn.Dropout(0.5)
        self.alias = self.dropout

    def forward(self, x):
        return self.head(self.alias(self.dropout(self.dropout(self.layer(x)))))


def test_a_dropout_used_twice_drops_other_units_each_time_and_the_same_in_both_engines(make_problem):
    problem = make_problem(TwoDropouts())
    work = Work(steps=3, epochs=None, batch_size=8, lr=0.1)
    for loop, vectorised in train_both(problem, Rewards(start_of(problem), work)):
        assert float((loop.updates - vectorised.updates).abs().max()) < 1e-9
    module = VectorisedEngine(problem).forward.training
    ones = torch.ones(4, 8, dtype=torch.float64)
    assert not torch.equal(module.dropout(ones), module.dropout(ones))


@pytest.mark.parametrize("kind", [LoopEngine, VectorisedEngine])
def test_a_module_that_draws_for_itself_gives_the_same_result_twice(make_problem, kind):
    class Drawing(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(6, 3)

        def forward(self, x):
            return self.layer(F.dropout(x, 0.5, self.training))

    problem = make_problem(Drawing())
    rewards = Rewards(start_of(problem), Work(steps=3, epochs=None, batch_size=8, lr=0.1))
    first, again = (kind(problem).train(rewards, ClientStates(), 1)[0].updates for _ in range(2))
    other = kind(problem).train(rewards, ClientStates(), 2)[0].updates
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("kind", [LoopEngine, VectorisedEngine])
def test_submodels_of_a_model_without_neurons_are_refused(make_problem, kind):
    problem = make_problem(nn.Linear(6, 3))
    masks = torch.ones(4, 5, dtype=torch.bool)
    with pytest.raises(UsageError, match="no neurons"):
        kind(problem).train(Rewards(start_of(problem), Work(steps=1), masks), ClientStates(), 1)


@pytest.mark.parametrize("module", [small_stack, lambda: build("cnn-cifar", (3, 18, 18), 3)], ids=["stack", "cnn"])
@pytest.mark.parametrize("statistics", [(), ("loss_before",)])
def test_a_round_without_anybody_changes_nothing(make_problem, module, statistics):
    built = module()
    shape = (6,) if isinstance(built[1], nn.Linear) else (3, 18, 18)
    problem = make_problem(built, small_federation(shape=shape))
    nobody = torch.zeros(4, dtype=torch.bool)
    masks = torch.ones(4, problem.neurons.count, dtype=torch.bool)
    rewards = Rewards(start_of(problem), Work(steps=2, batch_size=4, statistics=statistics), masks, participants=nobody)
    uploads, _ = VectorisedEngine(problem).train(rewards, ClientStates(), 1)
    assert not uploads.updates.any()
    assert not uploads.present.any()
    assert all(values.isnan().all() for values in uploads.statistics.values())


def test_rewards_of_another_precision_are_trained_in_the_models(make_problem):
    problem = make_problem(dtype=torch.float32)
    rewards = Rewards(start_of(problem).double(), Work(steps=2, batch_size=4))
    uploads, _ = VectorisedEngine(problem).train(rewards, ClientStates(), 1)
    assert uploads.updates.dtype is torch.float32


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
def test_a_client_that_trains_alone_first_gets_the_same_bits_as_later(make_problem, optimiser):
    """A resumed run may begin with a step of one client: the way that is tried on the first step must be the same."""
    problem = make_problem(MODULES["not a stack"](), dtype=torch.float32)
    work = Work(steps=3, batch_size=8, lr=0.01, optimiser=optimiser)
    one = Rewards(start_of(problem), work, participants=torch.tensor([False, True, False, False]))
    fresh, used = VectorisedEngine(problem), VectorisedEngine(problem)
    used.train(Rewards(start_of(problem), work), ClientStates(), 1)
    assert torch.equal(fresh.train(one, ClientStates(), 2)[0].updates, used.train(one, ClientStates(), 2)[0].updates)
    assert fresh.gradients.are_fast is used.gradients.are_fast is True
