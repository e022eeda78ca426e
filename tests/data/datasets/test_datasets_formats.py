"""Every published format comes out as the arrays that went in."""

import numpy as np
import pytest

from cofair.data import datasets
from cofair.data.datasets import store
from cofair.errors import UsageError
from tests.data.datasets import published_files as files


def arrays(shape, classes=10, train=10, test=4):
    y_train = np.arange(train) % classes
    return files.images(1, train, shape), y_train, files.images(2, test, shape), files.labels(3, test, classes)


def assert_holds(dataset, x_train, y_train, x_test, y_test):
    for got, expected in (
        (dataset.x_train, x_train),
        (dataset.y_train, y_train),
        (dataset.x_test, x_test),
        (dataset.y_test, y_test),
    ):
        np.testing.assert_array_equal(got, expected)
    assert dataset.x_train.dtype == np.uint8
    assert dataset.y_train.dtype == dataset.y_test.dtype == np.int64


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
@pytest.mark.parametrize("packed", [True, False])
def test_idx_files_plain_and_gzipped(small, folder, name, packed):
    small(name, 10, 4)
    data = arrays((28, 28))
    files.mnist(folder, *data, packed=packed)
    datasets.get(name, from_path=folder)
    assert_holds(datasets.load(name), *data)


def test_an_unpacked_file_that_kept_its_gz_name(small, folder):
    small("mnist", 10, 4)
    data = arrays((28, 28))
    files.mnist(folder, *data)
    (folder / "train-images-idx3-ubyte").rename(folder / "train-images-idx3-ubyte.gz")
    datasets.get("mnist", from_path=folder)
    assert_holds(datasets.load("mnist"), *data)


def test_one_file_of_four_stands_for_its_folder(small, folder):
    small("mnist", 10, 4)
    data = arrays((28, 28))
    files.mnist(folder, *data)
    datasets.get("mnist", from_path=folder / "t10k-labels-idx1-ubyte")
    assert_holds(datasets.load("mnist"), *data)


def test_files_two_folders_down_are_found(small, folder):
    small("mnist", 10, 4)
    data = arrays((28, 28))
    deep = folder / "MNIST" / "raw"
    deep.mkdir(parents=True)
    files.mnist(deep, *data)
    datasets.get("mnist", from_path=folder)
    assert_holds(datasets.load("mnist"), *data)


def test_two_candidates_are_a_question_not_a_guess(small, folder):
    small("mnist", 10, 4)
    for name in ("mnist", "fashion"):
        (folder / name).mkdir()
        files.mnist(folder / name, *arrays((28, 28)))
    with pytest.raises(UsageError, match="more than once"):
        datasets.get("mnist", from_path=folder)


def test_emnist_is_turned_upright_and_letters_count_from_zero(small, folder):
    small("emnist-letters", 52, 4)
    x_train, y_train, x_test, y_test = arrays((28, 28), classes=26, train=52)
    files.emnist(folder, "letters", x_train, y_train + 1, x_test, y_test + 1)
    archive = files.zip_of(folder, folder.parent / "gzip.zip", "gzip")
    datasets.get("emnist-letters", from_path=archive)
    dataset = datasets.load("emnist-letters")
    assert_holds(dataset, x_train, y_train, x_test, y_test)
    assert dataset.class_names[dataset.y_train[25]] == "Z"


def test_emnist_byclass_counts_from_zero_already(small, folder):
    small("emnist-byclass", 62, 4)
    data = arrays((28, 28), classes=62, train=62)
    files.emnist(folder, "byclass", *data)
    datasets.get("emnist-byclass", from_path=folder)
    dataset = datasets.load("emnist-byclass")
    assert_holds(dataset, *data)
    assert [dataset.class_names[i] for i in (0, 9, 10, 35, 36, 61)] == ["0", "9", "A", "Z", "a", "z"]


@pytest.mark.parametrize("form", ["folder", "tar.gz", "a folder with the tar.gz"])
def test_cifar_binary_batches(small, folder, form):
    small("cifar10", 10, 4)
    data = arrays((32, 32, 3))
    files.cifar_batches(folder, *data)
    path = folder
    if form != "folder":
        path = files.tar_of(folder, folder.parent / "cifar-10-binary.tar.gz", "cifar-10-batches-bin")
    datasets.get("cifar10", from_path=folder.parent if form.startswith("a folder") else path)
    assert_holds(datasets.load("cifar10"), *data)


def test_cifar_sprites(small, folder):
    small("cifar10", 10, 4)
    data = arrays((32, 32, 3))
    files.cifar_sprites(folder, *data)
    datasets.get("cifar10", from_path=files.tar_of(folder, folder.parent / "some.tgz", "package"))
    assert_holds(datasets.load("cifar10"), *data)


def test_pickled_cifar_is_refused_with_the_way_out(folder, home):
    (folder / "data_batch_1").write_bytes(b"\x80\x02}q\x00.")
    with pytest.raises(UsageError, match=r"pickle.*cifar-10-binary\.tar\.gz"):
        datasets.get("cifar10", from_path=folder)
    assert not home.exists()


@pytest.mark.parametrize("write", [files.svhn_matlab, files.svhn_sprites])
def test_svhn_has_digit_zero_as_label_zero(small, folder, write):
    small("svhn", 17, 4)
    data = arrays((32, 32, 3), train=17)
    write(folder, *data)
    datasets.get("svhn", from_path=folder)
    assert_holds(datasets.load("svhn"), *data)


@pytest.mark.parametrize("form", ["zip", "folder"])
def test_tiny_imagenet(small, folder, form):
    small("tiny-imagenet", 4, 3, class_names=("", ""))
    x_train, y_train = files.images(1, 4, (1, 1, 3)).repeat(64, 1).repeat(64, 2), np.array([0, 0, 1, 1])
    x_test, y_test = files.images(2, 3, (1, 1, 3)).repeat(64, 1).repeat(64, 2), np.array([1, 0, 1])
    root = files.tiny_imagenet(folder, x_train, y_train, x_test, y_test, wnids=("n02", "n01"))
    path = root if form == "folder" else files.zip_of(root, folder / "tiny.zip", "tiny-imagenet-200")
    datasets.get("tiny-imagenet", from_path=path)
    dataset = datasets.load("tiny-imagenet")
    assert np.abs(dataset.x_train.astype(int) - x_train).max() <= 2
    assert np.abs(dataset.x_test.astype(int) - x_test).max() <= 2
    assert dataset.y_train.tolist() == [0, 0, 1, 1]
    assert dataset.y_test.tolist() == [1, 0, 1]
    assert dataset.class_names == ("name of n01", "name of n02")


def test_a_grey_image_among_coloured_ones_gets_three_equal_channels(small, folder):
    small("tiny-imagenet", 1, 1, class_names=("",))
    grey = np.full((1, 64, 64), 77, np.uint8)
    files.tiny_imagenet(folder, grey, np.array([0]), grey, np.array([0]), wnids=("n01",))
    datasets.get("tiny-imagenet", from_path=folder)
    assert (datasets.load("tiny-imagenet").x_train == 77).all()


NEGATIVE = [f"bad film {i} … really" for i in range(10)]
POSITIVE = [f"café {i} ’s charm" for i in range(10)]


def sentences_of(dataset, x):
    return [" ".join(dataset.vocabulary[i] for i in row if i) for row in x]


def test_polarity_files_and_their_table_give_the_same_content(small, folder, home):
    small("mr", 18, 2)
    files.polarity(folder, NEGATIVE, POSITIVE)
    datasets.get("mr", from_path=files.tar_of(folder, folder.parent / "rt-polaritydata.tar.gz", "rt-polaritydata"))
    from_files = store.peek(home / "datasets" / "mr.npz")
    dataset = datasets.load("mr")
    pairs = [(0, s) for s in NEGATIVE] + [(1, s) for s in POSITIVE]
    kept = list(zip(dataset.y_train.tolist(), sentences_of(dataset, dataset.x_train), strict=True))
    assert len(kept) == 18
    assert set(kept) < set(pairs)
    assert (dataset.x_train[:, 0] > 1).all()

    table = folder.parent / "table"
    table.mkdir()
    # Another order of the rows makes no difference.
    files.tsv(table / "mr_rt_polarity.tsv.gz", ("label", "text"), reversed(pairs))
    datasets.get("mr", from_path=table)
    from_table = store.peek(home / "datasets" / "mr.npz")
    assert from_table["content_sha256"] == from_files["content_sha256"]


def test_trees_give_the_roots_label_and_the_leaves(small, folder):
    small("sst", 2, 1)
    files.trees(
        folder,
        train=["(3 (2 The) (4 (3 Rock) (2 -LRB-)))", "(0 (2 either\\/or) (1 bad))"],
        dev=["(2 (2 left) (2 out))"],
        test=["(4 (2 the) (2 unseen))"],
    )
    datasets.get("sst", from_path=files.zip_of(folder, folder.parent / "trees.zip", "trees"))
    dataset = datasets.load("sst")
    assert dataset.y_train.tolist() == [3, 0]
    assert dataset.y_test.tolist() == [4]
    assert sentences_of(dataset, dataset.x_train) == ["the rock (", "either/or bad"]
    assert dataset.vocabulary[dataset.x_test[0, 0]] == "the"
    assert dataset.x_test[0].tolist()[1:] == [1, 0], "an unseen word is 1, padding is 0"


def test_sst_table_leaves_dev_out(small, folder):
    small("sst", 2, 1)
    rows = [("train", 0, "a b"), ("dev", 1, "c"), ("test", 2, "a"), ("train", 4, "b")]
    files.tsv(folder / "sst5.tsv.gz", ("split", "label", "text"), rows)
    datasets.get("sst", from_path=folder)
    dataset = datasets.load("sst")
    assert dataset.y_train.tolist() == [0, 4]
    assert dataset.vocabulary == ("<padding>", "<unknown>", "b", "a")
    assert dataset.vocabulary_size == 4


def test_packed_npz(small, folder):
    small("emnist-byclass", 62, 4)
    x_train, y_train, x_test, y_test = arrays((28, 28), classes=62, train=62)
    np.savez_compressed(
        folder / "emnist_byclass_116k.npz",
        x_train=x_train,
        y_train=y_train.astype(np.uint8),
        x_test=x_test,
        y_test=y_test.astype(np.uint8),
    )
    datasets.get("emnist-byclass", from_path=folder)
    assert_holds(datasets.load("emnist-byclass"), x_train, y_train, x_test, y_test)


def test_pickle_in_a_packed_npz_is_not_read(small, folder, home):
    small("emnist-byclass", 62, 4)
    np.savez(folder / "emnist_byclass_116k.npz", x_train=np.array([{"a": 1}], dtype=object))
    with pytest.raises(Exception, match="allow_pickle=False"):
        datasets.get("emnist-byclass", from_path=folder)
    assert not home.exists()
