"""The real data sets, from package registries and from a folder of packed files."""

import os
import time

import numpy as np
import pytest

from cofair.data import datasets
from cofair.data.datasets import store

PACKED = os.environ.get("COFAIR_DATA")

pytestmark = pytest.mark.long


@pytest.fixture
def packed(monkeypatch):
    if not PACKED:
        pytest.skip("COFAIR_DATA names no folder of packed data sets")
    monkeypatch.setenv("COFAIR_DATA", PACKED)


def channels(x):
    """Mean and standard deviation of each channel of images scaled to [0, 1]."""
    x = x.reshape(-1, x.shape[3] if x.ndim == 4 else 1)
    counts = np.stack([np.bincount(channel, minlength=256) for channel in x.T]) / len(x)
    value = np.arange(256) / 255
    mean = counts @ value
    return mean, np.sqrt(counts @ value**2 - mean**2)


@pytest.mark.network
@pytest.mark.parametrize(
    ("name", "train", "mean", "std"),
    [
        ("mnist", 60_000, (0.1307,), (0.3081,)),
        ("fashion-mnist", 60_000, (0.2860,), (0.3530,)),
        ("cifar10", 50_000, (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    ],
)
def test_registries_have_the_published_content(name, train, mean, std):
    path = datasets.get(name)
    dataset = datasets.load(name)
    assert store.peek(path)["verified"] == "content sha256"
    assert len(dataset.y_train) == train
    assert len(dataset.y_test) == 10_000
    np.testing.assert_allclose(channels(dataset.x_train), (mean, std), atol=6e-5)
    assert (np.bincount(dataset.y_test, minlength=10) > 800).all()


@pytest.mark.network
def test_a_whole_image_set_loads_in_less_than_a_second():
    datasets.get("cifar10")
    datasets.load("cifar10")
    start = time.monotonic()
    datasets.load("cifar10")
    assert time.monotonic() - start < 1


@pytest.mark.parametrize(
    ("name", "train", "test", "mean"),
    [
        ("svhn", 73_257, 26_032, (0.4377, 0.4438, 0.4728)),
        ("emnist-byclass", 100_000, 16_323, (0.1735,)),
        ("emnist-letters", 104_964, 17_493, (0.1746,)),
    ],
)
def test_packed_images(packed, name, train, test, mean):
    path = datasets.get(name)
    dataset = datasets.load(name)
    assert store.peek(path)["verified"] == "content sha256"
    assert (len(dataset.y_train), len(dataset.y_test)) == (train, test)
    np.testing.assert_allclose(channels(dataset.x_train)[0], mean, atol=6e-5)


@pytest.mark.parametrize(
    ("name", "train", "test", "classes"),
    [("mr", 9_596, 1_066, 2), ("sst", 8_544, 2_210, 5)],
)
def test_packed_sentences(packed, name, train, test, classes):
    path = datasets.get(name)
    dataset = datasets.load(name)
    assert store.peek(path)["verified"] == "content sha256"
    assert (len(dataset.y_train), len(dataset.y_test)) == (train, test)
    assert len(np.unique(dataset.y_test)) == classes
    assert dataset.x_train.max() == dataset.vocabulary_size - 1
    # About one word in twenty of the test split does not occur in training.
    assert 0.02 < (dataset.x_test == 1).sum() / (dataset.x_test > 0).sum() < 0.1
