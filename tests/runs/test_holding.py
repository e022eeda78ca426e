"""What clients hold in the end, and how each of them chooses it."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import cofair
from cofair.config.experiment import Experiment
from cofair.config.job import Job
from cofair.data.federation import Samples
from cofair.data.held_back import Divided
from cofair.engine import choose
from cofair.engine.protocol import Delivered
from cofair.runs import tuning
from cofair.runs.in_turn import run_in_turn
from cofair.runs.kept import Kept
from cofair.runs.lockstep_batch import run_in_lockstep
from cofair.runs.own_choice import Judged, OwnSamples, choice
from cofair.runs.state import RunState
from cofair.storage import tensor_file
from tests.conftest import small_federation, small_stack
from tests.driving import Heard, collected, prepare

GIVEN = torch.tensor([0.2, 0.9, 0.5, 0.7], dtype=torch.float64)


def experiment(name="fedrac", **tables):
    settings = {
        "training": {"rounds": 6, "steps": 3, "batch_size": 8, "lr": 0.1},
        "run": {"precision": "float64", "evaluate_every": 3, "held": True},
        "method": {"name": name},
    }
    for table, values in tables.items():
        settings[table] = settings.get(table, {}) | values
    return Experiment.from_dict(settings)


def prepared(chosen, federation=None, **options):
    federation = small_federation() if federation is None else federation
    return prepare(chosen, federation=federation, model=small_stack, contributions=GIVEN, **options)


def last(chosen, federation=None):
    return collected(prepared(chosen, federation)).rounds[-1].record


def test_only_the_last_round_says_what_is_held_and_only_where_it_is_asked():
    first, *_, final = (tested.record for tested in collected(prepared(experiment())).rounds)
    assert first.held is first.held_parts is first.held_as is None
    assert list(final.held_parts) == ["delivered", "kept", "averaged", "ahead", "tuned", "most"]
    assert final.held == [final.held_parts[name][i] for i, name in enumerate(final.held_as)]
    assert final.held_parts["delivered"] == final.accuracies
    others = [own for name, own in final.held_parts.items() if name != "most"]
    assert all(top >= max(made) for top, made in zip(final.held_parts["most"], zip(*others, strict=True), strict=True))
    journal = collected(prepared(experiment(run={"held": False})))
    assert journal.rounds[-1].record.held is None
    assert all(state.kept is None for state in journal.states)
    assert journal.rounds[-1].record.accuracies == final.accuracies


@pytest.mark.parametrize("name", ["fedavg", "cgsv", "iafl", "heterofl", "fjord"])
def test_whole_models_and_windows_that_stay_leave_nothing_to_keep(name):
    parts = last(experiment(name)).held_parts
    assert parts["kept"] == parts["delivered"]


def test_windows_that_roll_leave_the_whole_model():
    journal = collected(prepared(experiment("fedrolex", training={"rounds": 12})))
    assert bool(journal.states[-1].kept.neurons.all())
    assert not bool(journal.rounds[-1].delivered.neuron_masks.all())


def held_on_digits(**federation):
    tables = {"federation": federation, "training": {"rounds": 30}, "method": {"name": "fedrac"}, "run": {"held": True}}
    return cofair.compare(Experiment.from_dict(tables), ["fedrac"]).outcomes[0].held


def test_rolling_submodels_leave_the_weakest_client_nearly_the_best_model():
    held = held_on_digits()
    assert held.parts["delivered"][0] < 0.6
    assert held.parts["kept"][0] > held.parts["delivered"].max() - 0.03


def test_the_weakest_client_leaves_its_submodel_where_it_has_samples_enough_to_tell():
    held = held_on_digits(scene="noisy", clients=5)  # it brings least by its labels
    assert held.chosen[2] != "delivered"
    assert held.weakest > held.parts["delivered"][2] + 0.2


@pytest.mark.parametrize("name", ["fedrac", "cgsv", "fedavg"])
def test_a_resumed_run_holds_the_same_bits(name, tmp_path):
    run = prepared(experiment(name, participation={"dropout": 0.3}))
    whole = collected(run)
    state = whole.states[2]
    tensor_file.write(tmp_path / "state", {}, state)
    template = (RunState, run.experiment.method.start(run.server))
    again = collected(run, begun=tensor_file.TensorFile(tmp_path / "state").value(template, torch.device("cpu")))
    assert again.rounds[-1].record.held_parts == whole.rounds[-1].record.held_parts
    assert again.rounds[-1].record.held_as == whole.rounds[-1].record.held_as
    assert isinstance(state.kept, Kept)
    for mine, theirs in zip(
        (again.states[-1].kept.newest, again.states[-1].kept.mean),
        (whole.states[-1].kept.newest, whole.states[-1].kept.mean),
        strict=True,
    ):
        assert torch.equal(mine.nan_to_num(-9), theirs.nan_to_num(-9))


@pytest.mark.parametrize("name", ["fedrac", "cffl"])
def test_engines_hold_the_same(name):
    looped, stacked = (last(experiment(name, run={"engine": engine})) for engine in ("loop", "vectorised"))
    assert looped.held_as == stacked.held_as
    for part, accuracies in looped.held_parts.items():
        assert accuracies == pytest.approx(stacked.held_parts[part])


def test_runs_in_lockstep_hold_what_runs_one_by_one_do():
    chosen = Experiment.from_dict(
        {
            "federation": {"clients": 4}, "model": {"hidden": [16]}, "contribution": {"epochs": 3},
            "training": {"rounds": 4, "steps": 3, "lr": 0.1}, "run": {"held": True, "precision": "float64"},
        }
    )  # fmt: skip
    jobs = [Job(chosen.with_method(name).with_run(seed=seed)) for name in ("fedrac", "cgsv") for seed in (0, 1)]
    records = []
    for drive in (run_in_turn, run_in_lockstep):
        found = {}
        drive(jobs, Heard(lambda job, record, found=found: found.update({job: record})))
        records.append([found[job] for job in jobs])
    for own, other in zip(*records, strict=True):
        assert own.held_as == other.held_as
        assert own.held_parts == {name: pytest.approx(values) for name, values in other.held_parts.items()}


def test_a_sweep_has_the_columns_and_pairs_methods_by_what_is_held(tmp_path):
    tables = {
        "federation": {"clients": 4}, "model": {"hidden": [16]}, "contribution": {"epochs": 3},
        "training": {"rounds": 4, "steps": 3, "lr": 0.1}, "run": {"held": True},
        "grid": {"method": ["fedrac", "cgsv"], "run": {"seed": [0, 1]}},
    }  # fmt: skip
    result = cofair.sweep(tables, tmp_path)
    table = result.to_frame()
    assert table["held_fairness"].notna().all()
    assert table["held_weakest_std"].notna().all()
    assert "held_fairness" in set(result.paired()["quantity"])


def test_the_choice_never_reads_the_test_set():
    federation = small_federation()
    random = torch.Generator().manual_seed(7)
    garbage = Samples(federation.test.x, torch.randint(0, 3, (30,), generator=random))
    right, wrong = last(experiment(), federation), last(experiment(), federation.replaced(test=garbage))
    assert right.held_as == wrong.held_as
    assert right.held_parts != wrong.held_parts


def test_a_removed_client_is_handed_nothing_more():
    chosen = experiment(
        training={"rounds": 12}, attack={"name": "sign_flip", "clients": (1,)},
        defence={"threshold": 0.9, "patience": 0, "memory": 0.0},
    )  # fmt: skip
    states = collected(prepared(chosen)).states
    away = next(k for k, state in enumerate(states) if not bool(state.status.members[1]))
    assert away < 10
    then, now = (states[k].kept for k in (away, -1))
    assert torch.equal(then.newest[1].nan_to_num(-9), now.newest[1].nan_to_num(-9))
    assert torch.equal(then.mean[1].nan_to_num(-9), now.mean[1].nan_to_num(-9))
    stays = int(states[-1].status.members.nonzero()[0])
    assert not torch.equal(then.newest[stays].nan_to_num(-9), now.newest[stays].nan_to_num(-9))


def test_a_client_with_one_sample_keeps_what_is_delivered():
    record = last(experiment(), small_federation(sizes=(1, 20, 1, 9)))
    assert record.held_as[0] == record.held_as[2] == "delivered"
    assert record.held_parts["tuned"][0] == record.held_parts["delivered"][0]
    alone = last(experiment(), small_federation(sizes=(1, 1, 1, 1)))
    assert alone.held_as == ["delivered"] * 4


def test_an_empty_client_holds_what_is_delivered():
    assert last(experiment(), small_federation(sizes=(0, 20, 8, 9))).held_as[0] == "delivered"


def test_clients_choose_by_the_metric_then_by_the_loss_then_the_first():
    judged = {
        "a": Judged(torch.tensor([0.5, 0.5, 0.5, torch.nan]), torch.tensor([1.0, 1.0, 1.0, torch.nan])),
        "b": Judged(torch.tensor([0.5, 0.4, 0.5, torch.nan]), torch.tensor([0.9, 0.1, 1.0, torch.nan])),
        "c": Judged(torch.tensor([0.4, 0.4, 0.5, torch.nan]), torch.tensor([0.1, 0.1, 1.0, torch.nan])),
    }
    assert choice(judged) == ["b", "a", "a", "a"]


def test_classes_count_alike_and_what_is_known_of_others_may_be_forgotten():
    labels = [0] * 9 + [1], [2] * 7, [0, 1, 2], []
    clients = [(torch.zeros(len(own), 6), torch.tensor(own, dtype=torch.int64)) for own in labels]
    test = torch.zeros(3, 6), torch.arange(3)
    problem = prepared(experiment(), cofair.Federation(clients, test=test, validation=test)).problem
    pool = problem.federation
    places = torch.arange(20).split([len(own) for own in labels])
    own = Divided(pool, Samples(pool.inputs[pool.rows], pool.labels), places)
    judge = OwnSamples(problem, own, doubt=0)
    finds_class_0 = torch.zeros(problem.layout.size, dtype=torch.float64)
    finds_class_0[-3] = 1  # the last layer's bias
    judged = judge(Delivered(finds_class_0))
    assert judged.metric.tolist() == pytest.approx([1 / 2, 0, 1 / 3, float("nan")], nan_ok=True)
    assert judge.forgetting(judged).tolist() == pytest.approx([1 / 2 * 1 / 2, 0, 0, float("nan")], nan_ok=True)
    doubting = OwnSamples(problem, own, doubt=1)  # of 9, 1 and 0 samples as much is known as 9/10, 1/2 and nothing
    judged = doubting(Delivered(finds_class_0))
    assert judged.metric[0].item() == pytest.approx((9 / 10) / (9 / 10 + 1 / 2))
    known = (9 / 10 + 1 / 2) / 3
    assert doubting.forgetting(judged)[0].item() == pytest.approx(judged.metric[0].item() * (1 - known) / known)
    assert choice({"a": judged, "b": judged.less(torch.tensor([-0.1, 0.1, -0.1, -0.1]))}) == ["b", "a", "b", "a"]


def test_a_metric_that_a_few_samples_do_not_define_leaves_the_choice_to_the_loss():
    record = last(experiment(run={"metric": "auroc"}), small_federation(sizes=(2, 2, 40, 40)))
    assert len(record.held) == 4


class Counting:
    """An engine that remembers what it was asked to train."""

    def __init__(self, engine, asked):
        self.engine, self.asked = engine, asked

    def train(self, rewards, states, t):
        self.asked.append(rewards)
        return self.engine.train(rewards, states, t)


@pytest.fixture
def asked(monkeypatch):
    found, real = [], choose.engine
    run = {}
    for name in ("fedavg", "fedrac"):
        run[name] = prepared(experiment(name, training={"decay": 0.9}))  # whose own engine is not counted
    monkeypatch.setattr(tuning.choose, "engine", lambda *given: Counting(real(*given), found))
    return run, found


def test_what_is_kept_is_not_trained_again_where_it_is_what_was_delivered(asked):
    run, found = asked
    collected(run["fedavg"])
    assert [rewards.work.epochs for rewards in found] == [1, 2, 7, 20] * 2  # two learning rates
    assert {rewards.work.decay for rewards in found} == {1.0}
    assert [rewards.work.lr for rewards in found] == pytest.approx([0.1] * 4 + [0.1 / 3] * 4)
    found.clear()
    collected(run["fedrac"])
    assert len(found) == 16


def test_a_client_with_much_data_tunes_for_fewer_epochs_and_the_others_for_all(asked, monkeypatch):
    run, found = asked
    monkeypatch.setattr(tuning, "MOST_STEPS", 24)  # batches of 8: an epoch of 6, 32, 16 and 27 samples has 1, 4, 2, 4
    collected(run["fedavg"])
    epochs = [0] * 4
    for rewards in found[: len(found) // 2]:
        for i in rewards.participants.nonzero().flatten().tolist():
            epochs[i] += rewards.work.epochs
    assert epochs == [24, 6, 12, 6]


def test_what_is_tuned_does_not_grow_beyond_its_submodel(asked):
    run, found = asked
    collected(run["fedrac"])
    for rewards in found:
        outside = ~run["fedrac"].problem.neurons.parameter_mask(rewards.neuron_masks)
        assert not rewards.parameters[outside].any()


def test_a_result_has_arrays_of_what_is_held():
    clients = [(np.random.default_rng(k).normal(size=(n, 6)), np.arange(n) % 3) for k, n in enumerate((9, 30, 18))]
    federation = cofair.Federation(clients, test=clients[1], validation=clients[2])
    result = cofair.run(small_stack, federation, "cgsv", rounds=3, held=True, contributions=[0.1, 0.3, 0.3], lr=0.1)
    held = result.held
    assert isinstance(held, cofair.Held)
    assert held.accuracies.shape == (3,)
    assert held.weakest == held.accuracies[0]
    assert held.fairness == cofair.metrics.fairness(result.contributions, held.accuracies)
    assert result.summary()["clients"][0]["held"] == held.accuracies[0]
    assert replace(result, history=result.history[:-1]).held is None  # an interrupted run has not measured it
