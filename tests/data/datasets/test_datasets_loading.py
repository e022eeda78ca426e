"""What a loaded data set is, and what is said when it is not here."""

import numpy as np
import pytest

from cofair.data import datasets
from cofair.data.datasets import catalogue
from cofair.errors import UsageError
from tests.data.datasets import published_files as files


def test_digits_need_no_fetching():
    digits = datasets.load("digits")
    assert digits.kind == "image"
    assert digits.x_train.shape == (1433, 8, 8)
    assert digits.x_test.shape == (364, 8, 8)
    assert digits.x_train.dtype == np.uint8
    assert digits.y_train.dtype == np.int64
    assert datasets.get("digits") == datasets.path("digits")
    assert datasets.path("digits").is_file()


def test_digits_are_scikit_learns_exactly():
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    digits = datasets.load("digits")
    ours = np.concatenate([digits.x_train, digits.x_test]).reshape(-1, 64)
    assert set(np.unique(ours)) == {15 * value for value in range(17)}
    labelled = {(*row, label) for row, label in zip((15 * x).astype(int).tolist(), y.tolist(), strict=True)}
    labels = np.concatenate([digits.y_train, digits.y_test]).tolist()
    assert {(*row, label) for row, label in zip(ours.tolist(), labels, strict=True)} == labelled


def test_the_digits_split_is_the_same_for_ever_and_balanced():
    digits = datasets.load("digits")
    assert (np.abs(np.bincount(digits.y_test) / np.bincount(digits.y_train) - 0.25) < 0.01).all()
    entry = catalogue.find("digits")
    from cofair.data.datasets import digits as embedded

    assert embedded.read().sha256 == entry.variants[0].sha256


def test_the_digits_normalisation_is_measured_on_the_training_split():
    digits = datasets.load("digits")
    assert (digits.x_train / 255).mean() == pytest.approx(digits.mean[0], abs=5e-5)
    assert (digits.x_train / 255).std() == pytest.approx(digits.std[0], abs=5e-5)


def test_digits_are_not_read_from_files(tmp_path):
    with pytest.raises(UsageError, match="comes with scikit-learn"):
        datasets.get("digits", from_path=tmp_path)


@pytest.mark.parametrize("name", [name for name in datasets.names() if name != "digits"])
def test_a_data_set_that_is_not_here_says_how_to_get_it(name):
    with pytest.raises(UsageError) as caught:
        datasets.load(name)
    for remedy in (f"cofair data get {name}", "--from PATH", "COFAIR_DATA"):
        assert remedy in str(caught.value)
    with pytest.raises(UsageError):
        datasets.path(name)


@pytest.mark.parametrize("act", [datasets.load, datasets.get, datasets.path])
def test_a_misspelt_name_gets_the_nearest(act):
    with pytest.raises(UsageError, match="did you mean 'cifar10'"):
        act("cifar-10")


def test_every_data_set_is_described_whether_here_or_not(small, folder):
    small("mnist", 10, 4)
    files.mnist(folder, files.images(1, 10, (28, 28)), np.arange(10), files.images(2, 4, (28, 28)), np.arange(4))
    stored = datasets.get("mnist", from_path=folder)
    rows = {row.name: row for row in datasets.describe()}
    assert list(rows) == datasets.names()
    assert rows["mnist"].path == stored
    assert (rows["mnist"].train, rows["mnist"].test) == (10, 4)
    assert rows["cifar10"].path is None
    assert (rows["cifar10"].train, rows["cifar10"].shape, rows["cifar10"].classes) == (50_000, (32, 32, 3), 10)
    assert rows["tiny-imagenet"].classes == 200
    assert all(row.licence and row.source for row in rows.values())


def test_normalisation_is_fedracs():
    def normalisation(name):
        entry = catalogue.find(name)
        return entry.mean, entry.std

    assert normalisation("svhn") == normalisation("cifar10")
    assert normalisation("emnist-byclass") == normalisation("mnist") == ((0.1307,), (0.3081,))
    assert normalisation("mr") == ((), ())


def test_words_are_numbered_by_the_training_split_alone(small, folder):
    small("sst", 3, 2)
    rows = [
        ("train", 0, "b A a"),
        ("train", 1, "a"),
        ("train", 2, "b c d"),
        ("test", 3, "zebra a zebra zebra longer than any"),
        ("test", 4, "D"),
    ]
    files.tsv(folder / "sst5.tsv.gz", ("split", "label", "text"), rows)
    datasets.get("sst", from_path=folder)
    sst = datasets.load("sst")
    # a three times, b twice, then c and d by the alphabet.
    assert sst.vocabulary == ("<padding>", "<unknown>", "a", "b", "c", "d")
    assert sst.x_train.tolist() == [[3, 2, 2], [2, 0, 0], [3, 4, 5]]
    assert sst.x_test.tolist() == [[1, 2, 1], [5, 0, 0]]
    assert sst.x_train.dtype == np.int64
    assert sst.vocabulary_size == 6
    assert sst.mean == ()
