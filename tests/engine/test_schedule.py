from itertools import chain

import pytest
import torch

from cofair.data.client_table import ClientTable
from cofair.engine.phases import PERSONALISE, TRAIN
from cofair.engine.schedule import longest_first, orders, schedule, steps_per_client
from cofair.engine.work import Work
from cofair.errors import UsageError
from cofair.randomness import client_keys


def table(sizes, names=None):
    sizes = torch.tensor(sizes)
    total = int(sizes.sum())
    names = names or [f"client {i}" for i in range(len(sizes))]
    return ClientTable(
        torch.arange(total)[:, None], torch.arange(total), torch.arange(total), torch.cumsum(sizes, 0) - sizes, sizes,
        client_keys(0, names),
    )  # fmt: skip


def batches_of(client, sizes, work, t=1, names=None):
    """The positions, within the client, of each of its batches, padding removed."""
    order = longest_first(sizes, work)
    place = order.tolist().index(client)
    offset = sum(sizes[:client])
    return [
        (step.positions[place][step.weights[place] > 0] - offset).tolist()
        for step in schedule(table(sizes, names).select(order), work, t, torch.float64)
        if step.active > place
    ]


@pytest.mark.parametrize("size", [1, 5, 31, 32, 33, 100])
def test_an_epoch_visits_every_sample_once(size):
    batches = batches_of(1, [70, size, 3], Work(steps=None, epochs=1, batch_size=32))
    assert sorted(chain(*batches)) == list(range(size))
    assert [len(batch) for batch in batches] == [32] * (size // 32) + ([size % 32] if size % 32 else [])


def test_every_epoch_has_an_order_of_its_own():
    first, second = batches_of(0, [40], Work(steps=None, epochs=2, batch_size=64))
    assert sorted(first) == sorted(second) == list(range(40))
    assert first != second


def test_steps_shuffle_again_when_the_data_is_used_up():
    batches = batches_of(0, [10], Work(steps=5, epochs=None, batch_size=4))
    assert [len(batch) for batch in batches] == [4, 4, 2, 4, 4]
    assert sorted(chain(*batches[:3])) == list(range(10))
    assert len(set(chain(*batches[3:]))) == 8


def test_drop_last_leaves_out_a_batch_that_is_not_full_but_never_all_of_them():
    work = Work(steps=None, epochs=1, batch_size=4, drop_last=True)
    assert [len(batch) for batch in batches_of(0, [10, 3], work)] == [4, 4]
    assert [len(batch) for batch in batches_of(1, [10, 3], work)] == [3]


def test_a_clients_batches_depend_on_nobody_else():
    work = Work(steps=7, epochs=None, batch_size=8)
    alone = batches_of(0, [50], work, t=3, names=["b"])
    together = batches_of(1, [500, 50, 20], work, t=3, names=["a", "b", "c"])
    assert alone == together


def test_few_of_many_samples_are_the_beginning_of_the_whole_order():
    few = batches_of(0, [1000], Work(steps=2, epochs=None, batch_size=8))
    whole = batches_of(0, [1000], Work(steps=None, epochs=1, batch_size=8))
    assert few == whole[:2]


def test_rounds_and_phases_have_batches_of_their_own():
    seen = {
        tuple(batches_of(0, [100], Work(steps=1, epochs=None, batch_size=16, phase=phase), t=t)[0])
        for t in (1, 2)
        for phase in (TRAIN, PERSONALISE)
    }
    assert len(seen) == 4


def test_weights_of_a_partial_batch_are_the_mean_over_its_samples():
    steps = list(schedule(table([5]), Work(steps=None, epochs=1, batch_size=3), 1, torch.float64))
    assert steps[0].weights.tolist() == [[1 / 3] * 3]
    assert steps[1].weights.tolist() == [[1 / 2, 1 / 2, 0]]


def test_clients_that_are_done_idle_and_empty_ones_never_start():
    work = Work(steps=None, epochs=2, batch_size=10)
    sizes = torch.tensor([25, 0, 8])
    assert steps_per_client(sizes, work).tolist() == [6, 0, 2]
    order = longest_first(sizes, work)
    active = [step.active for step in schedule(table([25, 0, 8]).select(order), work, 1, torch.float64)]
    assert active == [2, 2, 1, 1, 1, 1]


def test_the_learning_rate_decays_by_round_or_by_local_epoch():
    by_round = Work(steps=2, epochs=None, lr=0.8, decay=0.5)
    assert {step.lr for step in schedule(table([9]), by_round, 3, torch.float64)} == {0.2}
    by_epoch = Work(steps=None, epochs=2, batch_size=4, lr=0.8, decay=0.5, decay_every="epoch")
    rates = [step.lr.tolist() for step in schedule(table([8, 4]), by_epoch, 2, torch.float64)]
    # the second round starts after two epochs; the smaller client takes one step an epoch
    assert rates == [[0.2, 0.2], [0.2, 0.1], [0.1], [0.1]]


def test_work_in_both_steps_and_epochs_is_refused():
    with pytest.raises(UsageError, match="either steps or epochs"):
        Work(steps=1, epochs=1)
    with pytest.raises(UsageError, match="counted in epochs"):
        Work(steps=1, epochs=None, decay_every="epoch")


def test_more_training_in_a_round_starts_at_the_learning_rate_of_the_round():
    work = Work(steps=None, epochs=1, batch_size=4, lr=0.8, decay=0.5, decay_every="epoch")
    rates = [float(step.lr) for step in schedule(table([4]), work.times(3, PERSONALISE), 2, torch.float64)]
    assert rates == [0.4, 0.2, 0.1]


def test_one_large_client_does_not_make_everybodys_order_as_long(monkeypatch):
    made = []
    monkeypatch.setattr("cofair.engine.schedule.orders", lambda *given: made.append(orders(*given)) or made[-1])
    sizes = [100_000] + [10] * 99
    list(schedule(table(sizes), Work(steps=2, batch_size=8), 1, torch.float32))
    assert sum(part.numel() for part in made) < 3_000
