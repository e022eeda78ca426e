import torch

from cofair.data.held_back import divided
from tests.conftest import small_federation


def rows_of(federation, i):
    start = int(federation.offsets[i])
    return federation.rows[start : start + int(federation.sizes[i])].tolist()


def test_a_fifth_and_at_least_one_sample_is_held_back_and_trains_nothing():
    federation = small_federation(sizes=(1, 2, 7, 40))
    own = divided(federation, seed=3)
    assert own.federation.sizes.tolist() == [1, 1, 6, 32]
    assert [len(places) for places in own.places] == [0, 1, 1, 8]
    assert len(own.samples) == 10
    for i, places in enumerate(own.places):
        everything = federation.client(i).x
        parts = torch.cat([own.federation.client(i).x, own.samples.x[places]])
        assert sorted(map(tuple, parts.tolist())) == sorted(map(tuple, everything.tolist()))


def test_labels_go_with_their_samples():
    federation = small_federation()
    own = divided(federation, seed=0)
    known = dict(zip(map(tuple, federation.inputs.tolist()), federation.labels.tolist(), strict=True))
    assert [known[tuple(x)] for x in own.samples.x.tolist()] == own.samples.y.tolist()
    assert [known[tuple(x)] for x in own.federation.client(1).x.tolist()] == own.federation.client(1).y.tolist()


def test_what_is_held_back_goes_with_the_name_and_the_seed():
    federation = small_federation()
    turned = federation.replaced(names=("3", "1", "2", "0"))
    assert rows_of(divided(turned, 0).federation, 1) == rows_of(divided(federation, 0).federation, 1)
    assert rows_of(divided(federation, 1).federation, 1) != rows_of(divided(federation, 0).federation, 1)


def test_who_all_have_a_single_sample_hold_nothing_back():
    own = divided(small_federation(sizes=(1, 1)), 0)
    assert len(own.samples) == 0
    assert own.federation.sizes.tolist() == [1, 1]
