import dataclasses
import warnings

import numpy as np
import pytest
import torch

import cofair
from cofair.config.experiment import Experiment
from cofair.data import datasets
from cofair.data.federation import Federation
from cofair.errors import UsageError
from tests.driving import prepare

GOOD = (np.ones((4, 3)), np.array([0, 1, 2, 0]))


def federation(**changes):
    return Federation(**({"clients": [GOOD, GOOD], "test": GOOD} | changes))


def test_arrays_tensors_and_lists_make_the_same_federation():
    x, y = GOOD
    made = [
        federation(clients=[(x, y)]),
        federation(clients=[(torch.tensor(x), torch.tensor(y))]),
        federation(clients=[(x.tolist(), y.tolist())]),
    ]
    for one in made:
        assert torch.equal(one.client(0).x.double(), torch.ones(4, 3).double())
        assert one.client(0).y.tolist() == [0, 1, 2, 0]
        assert (len(one), one.classes, one.input_shape) == (1, 3, (3,))


def test_bytes_are_scaled_and_integers_are_token_ids():
    y = np.array([0, 1])
    pictures = (np.array([[0, 255], [51, 0]], dtype=np.uint8), y)
    scaled = federation(clients=[pictures], test=pictures).client(0).x
    assert torch.allclose(scaled, torch.tensor([[0, 1], [0.2, 0]]))
    tokens = (np.array([[5, 6], [7, 8]]), y)
    assert federation(clients=[tokens], test=tokens).inputs.dtype == torch.int64


@pytest.mark.parametrize("kind", ["array", "tensor"])
def test_a_federation_keeps_copies_of_what_it_was_given(kind):
    x, y = np.ones((4, 3), dtype=np.float32), GOOD[1].copy()
    given = (torch.from_numpy(x), torch.from_numpy(y)) if kind == "tensor" else (x, y)
    made = federation(clients=[given], test=given, validation=given)
    x[:], y[:] = 7, 1
    for own in (made.client(0), made.test, made.validation):
        assert torch.equal(own.x, torch.ones(4, 3))
        assert own.y.tolist() == [0, 1, 2, 0]


def test_read_only_and_reversed_arrays_are_taken_without_a_warning():
    x, y = np.arange(12.0).reshape(4, 3), GOOD[1].copy()
    x.flags.writeable = y.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = federation(clients=[(x, y), (x[::-1], y[::-1])], test=(x, y))
    assert made.client(1).x[0].tolist() == [9, 10, 11]


def test_an_empty_client_keeps_its_place():
    empty = (np.zeros((0, 3)), np.zeros(0, dtype=int))
    made = federation(clients=[GOOD, empty, GOOD], names=["a", "b", "c"])
    assert made.sizes.tolist() == [4, 0, 4]
    assert len(made.client(1)) == 0
    assert made.client(2).y.tolist() == [0, 1, 2, 0]
    assert made.present(None).tolist() == [True, False, True]


def test_classes_are_counted_for_each_client():
    other = (np.zeros((2, 3)), np.array([2, 2]))
    assert federation(clients=[GOOD, other]).class_counts().tolist() == [[2, 1, 1], [0, 0, 2]]


NAN = np.ones((4, 3))
NAN[2, 1] = np.nan
BAD = {
    "no clients": ({"clients": []}, "at least one client"),
    "NaN": ({"clients": [GOOD, (NAN, GOOD[1])]}, r"client '1' hold NaN or infinite values \(first in sample 2\)"),
    "infinite": ({"clients": [(NAN * np.inf, GOOD[1])]}, "client '0' hold NaN or infinite"),
    "beyond float32": (
        {"clients": [(np.diag([1.0, 1.0, 1e300, 1.0])[:, :3], GOOD[1])]},
        r"float32 \(first in sample 2\)",
    ),
    "labels beyond float32": ({"clients": [(GOOD[0], GOOD[1] * 1e300)]}, "labels of client '0' hold values too large"),
    "NaN in the test set": ({"test": (NAN, GOOD[1])}, "the test set hold NaN"),
    "other shape": (
        {"clients": [GOOD, (np.ones((4, 2)), GOOD[1])]},
        r"client '1' have shape \(2,\), those of client '0' \(3,\)",
    ),
    "other shape in validation": ({"validation": (np.ones((4, 2)), GOOD[1])}, "the validation set have shape"),
    "labels missing": ({"clients": [(GOOD[0], GOOD[1][:3])]}, "4 inputs but 3 labels"),
    "label too high": ({"classes": 2}, "contain 2; with 2 classes they run from 0 to 1"),
    "label negative": ({"clients": [(GOOD[0], -GOOD[1])]}, "contain -2"),
    "labels of two dimensions": ({"clients": [(GOOD[0], np.eye(4, dtype=int))]}, "one integer per sample"),
    "one class": ({"clients": [(GOOD[0], [0] * 4)], "test": (GOOD[0], [0] * 4)}, "same class"),
    "text": ({"clients": [([["a"]], [0])]}, "cannot be read as numbers"),
    "no pair": ({"clients": [3]}, r"pair \(inputs, labels\)"),
    "all empty": ({"clients": [(np.zeros((0, 3)), np.zeros(0, int))]}, "All clients are empty"),
    "empty test": ({"test": (np.zeros((0, 3)), np.zeros(0, int))}, "test set is empty"),
    "empty validation": ({"validation": (np.zeros((0, 3)), np.zeros(0, int))}, "validation set is empty"),
    "names": ({"names": ["a", "a"]}, "different names"),
    "a single number": ({"clients": [(3.0, 1)]}, "single number"),
    "complex": ({"clients": [(GOOD[0] * 1j, GOOD[1])]}, "complex"),
    "mixed labels": ({"clients": [(GOOD[0], GOOD[1] * 0.5)]}, "mix real numbers and integers"),
}


@pytest.mark.parametrize(("changes", "sentence"), BAD.values(), ids=BAD)
def test_bad_data_is_refused_in_a_sentence(changes, sentence):
    with pytest.raises(UsageError, match=sentence):
        federation(**changes)


@pytest.mark.parametrize(("factor", "remedy"), [(1.0, r"as integers, y\.long\(\)"), (0.5, "choose another loss")])
def test_cross_entropy_with_real_labels_says_what_to_do(factor, remedy):
    real = (GOOD[0], GOOD[1] * factor)
    model = torch.nn.Sequential(torch.nn.Linear(3, 3))
    with pytest.raises(UsageError, match=f"real numbers, which cross entropy does not take: .*{remedy}"):
        cofair.run(model, federation(clients=[real], test=real))


def test_a_data_set_and_a_scene_make_a_federation():
    made = cofair.federate("digits", "pow", clients=5, seed=3)
    assert len(made.validation) == 143
    assert len(made.test) == 364
    assert made.input_shape == (1, 8, 8)
    assert sorted(made.sizes.tolist()) == made.sizes.tolist()
    assert int(made.sizes.sum()) <= 1433 - 143
    again = cofair.federate("digits", "pow", clients=5, seed=3)
    other = cofair.federate("digits", "pow", clients=5, seed=4)
    assert torch.equal(made.labels, again.labels)
    assert not torch.equal(made.labels, other.labels)


def pictures(n, side, seed=0):
    x = np.random.default_rng(seed).integers(0, 256, (n, side, side, 3), dtype=np.uint8)
    return datasets.Dataset("pictures", "image", x, np.arange(n) % 2, x[:5], np.arange(5) % 2, ("a", "b"),
                            mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.4))  # fmt: skip


def test_images_are_resized_with_antialiasing_to_what_a_model_wants(monkeypatch):
    whole, small = (cofair.federate(pictures(40, 64), "uni", clients=2, resize=side) for side in (None, 32))
    assert whole.input_shape == (3, 64, 64)
    assert small.input_shape == tuple(small.test.x.shape[1:]) == tuple(small.validation.x.shape[1:]) == (3, 32, 32)
    # half the size: a triangle of weights 1, 3, 3, 1 over four pixels each way, away from the border
    weights = torch.tensor([1.0, 3, 3, 1]) / 8
    expected = torch.einsum("bcij,i,j->bc", whole.test.x[:, :, 19:23, 9:13], weights, weights)
    assert torch.allclose(small.test.x[:, :, 10, 5], expected, atol=1e-5)
    monkeypatch.setattr("cofair.data.build.RESIZED_AT_ONCE", 7)
    assert torch.equal(cofair.federate(pictures(40, 64), "uni", clients=2, resize=32).inputs, small.inputs)
    same = cofair.federate(pictures(40, 64), "uni", clients=2, resize=64)
    assert torch.equal(same.inputs, whole.inputs)


def test_resizing_what_cannot_be_resized_is_a_sentence():
    with pytest.raises(UsageError, match="resize is 0"):
        cofair.federate("digits", "uni", clients=2, resize=0)
    text = dataclasses.replace(pictures(40, 4), kind="text")
    with pytest.raises(UsageError, match="'pictures' has no images"):
        cofair.federate(text, "uni", clients=2, resize=32)


def test_an_experiment_may_resize_its_images():
    experiment = Experiment.from_dict({"federation": {"clients": 3, "resize": 5}, "contribution": {"epochs": 1}})
    assert prepare(experiment).problem.federation.input_shape == (1, 5, 5)


def test_no_sample_is_at_two_clients_or_at_a_client_and_the_server():
    made = cofair.federate("digits", "dir", clients=6, seed=0)
    parts = [made.client(i).x.flatten(1) for i in range(6)] + [made.validation.x.flatten(1), made.test.x.flatten(1)]
    everything = torch.cat(parts)
    assert len(everything) == 1797
    assert len(torch.unique(everything, dim=0)) == len(torch.unique(torch.cat([everything, parts[0]]), dim=0)) == 1797


def test_a_server_may_have_no_validation_set():
    assert cofair.federate("digits", "uni", clients=3, validation=0.0).validation is None


def test_too_many_clients_for_the_data_is_a_sentence():
    with pytest.raises(UsageError, match="too few for 5000 clients"):
        cofair.federate("digits", "uni", clients=5000)


def test_federations_of_one_pool_are_joined_and_others_refused():
    one = federation(names=["a", "b"])
    other = one.replaced(names=("c",), rows=one.rows[2:5], labels=one.labels[2:5] + 1, sizes=torch.tensor([3]))
    joined = Federation.concat([one, other])
    assert joined.names == ("0/a", "0/b", "1/c")
    assert joined.sizes.tolist() == [4, 4, 3]
    assert joined.client(2).y.tolist() == other.client(0).y.tolist()
    assert joined.inputs is one.inputs
    assert one.names == ("a", "b")
    with pytest.raises(UsageError, match="one pool of inputs"):
        Federation.concat([one, federation()])


class Squares(torch.utils.data.Dataset):
    """Samples that are made when they are asked for, as images are read from a disk."""

    def __len__(self):
        return 4

    def __getitem__(self, i):
        return np.full(3, i * i, dtype=np.float32), i % 3


def test_clients_have_the_names_of_their_dictionary():
    made = federation(clients={"north": GOOD, "south": (GOOD[0][:2], GOOD[1][:2])})
    assert made.names == ("north", "south")
    assert made.sizes.tolist() == [4, 2]
    with pytest.raises(UsageError, match="leave out names"):
        federation(clients={"north": GOOD}, names=["east"])


@pytest.mark.parametrize("batches", [False, True])
def test_a_torch_dataset_gives_its_samples_in_order(batches):
    given = torch.utils.data.DataLoader(Squares(), batch_size=3, shuffle=True) if batches else Squares()
    own = federation(clients=[given], test=torch.utils.data.TensorDataset(*map(torch.tensor, GOOD))).client(0)
    assert own.x.tolist() == [[0] * 3, [1] * 3, [4] * 3, [9] * 3]
    assert own.y.tolist() == [0, 1, 2, 0]


def test_a_dataset_that_cannot_be_one_table_is_refused():
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            yield 1, 2

    ragged = [(torch.ones(2), 0), (torch.ones(3), 1)]

    class Ragged(Squares):
        def __len__(self):
            return 2

        def __getitem__(self, i):
            return ragged[i]

    with pytest.raises(UsageError, match="The torch Dataset of client '0' has no length"):
        federation(clients=[Stream()])
    with pytest.raises(UsageError, match=r"The torch Dataset of client '0' must give samples \(input, label\) alike"):
        federation(clients=[Ragged()])
