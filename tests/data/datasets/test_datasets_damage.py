"""Cut, altered or wrong files are refused in a sentence, and nothing half-written is left behind."""

import io
import random
import tarfile
import zipfile

import numpy as np
import pytest

from cofair.data import datasets
from cofair.errors import CofairError, RunError, UsageError
from tests.data.datasets import published_files as files


def image_data(shape, train=10, classes=10):
    return files.images(1, train, shape), np.arange(train) % classes, files.images(2, 4, shape), np.arange(4)


def write_mnist(folder):
    files.mnist(folder, *image_data((28, 28)), packed=True)


def write_plain_mnist(folder):
    files.mnist(folder, *image_data((28, 28)))


def write_cifar(folder):
    files.cifar_batches(folder, *image_data((32, 32, 3)))


def write_cifar_tar(folder):
    batches = folder.parent / "batches"
    batches.mkdir()
    write_cifar(batches)
    files.tar_of(batches, folder / "cifar-10-binary.tar.gz", "cifar-10-batches-bin")


def write_cifar_sprites(folder):
    files.cifar_sprites(folder, *image_data((32, 32, 3)))


def write_svhn(folder):
    files.svhn_matlab(folder, *image_data((32, 32, 3)))


def write_svhn_sprites(folder):
    files.svhn_sprites(folder, *image_data((32, 32, 3)))


def write_emnist_npz(folder):
    arrays = dict(zip(("x_train", "y_train", "x_test", "y_test"), image_data((28, 28)), strict=True))
    np.savez_compressed(folder / "emnist_byclass_116k.npz", **arrays)


def write_tiny_imagenet(folder):
    x = files.images(1, 4, (64, 64, 3))
    root = files.tiny_imagenet(folder.parent, x, np.arange(4) % 2, x, np.arange(4) % 2, ("n02", "n01"))
    files.zip_of(root, folder / "tiny-imagenet-200.zip", "tiny-imagenet-200")


def write_mr(folder):
    files.tsv(folder / "mr_rt_polarity.tsv.gz", ("label", "text"), [(i % 2, f"film {i}") for i in range(20)])


def write_sst(folder):
    trees = folder.parent / "trees"
    trees.mkdir()
    files.trees(trees, train=["(3 (2 a) (2 film))"] * 6, test=["(1 (2 a) (2 bore))"] * 2)
    files.zip_of(trees, folder / "trainDevTestTrees_PTB.zip", "trees")


FORMATS = [
    ("mnist", write_mnist, 10, 4),
    ("mnist", write_plain_mnist, 10, 4),
    ("cifar10", write_cifar, 10, 4),
    ("cifar10", write_cifar_tar, 10, 4),
    ("cifar10", write_cifar_sprites, 10, 4),
    ("svhn", write_svhn, 10, 4),
    ("svhn", write_svhn_sprites, 10, 4),
    ("emnist-byclass", write_emnist_npz, 10, 4),
    ("tiny-imagenet", write_tiny_imagenet, 4, 4),
    ("mr", write_mr, 18, 2),
    ("sst", write_sst, 6, 2),
]
every_format = pytest.mark.parametrize(("name", "write", "train", "test"), FORMATS)


def nothing_is_left_in(home):
    return not (home / "datasets").exists() or not list((home / "datasets").iterdir())


@every_format
def test_a_cut_file_is_refused_whichever_it_is_and_wherever_it_is_cut(small, folder, home, name, write, train, test):
    small(name, train, test)
    write(folder)
    for path in sorted(folder.iterdir()):
        whole = path.read_bytes()
        for share in (0, 0.3, 0.9, 0.99):
            path.write_bytes(whole[: int(len(whole) * share)])
            with pytest.raises(CofairError) as caught:
                datasets.get(name, from_path=folder)
            assert "\n" not in str(caught.value)
            assert nothing_is_left_in(home)
        path.write_bytes(whole)
    datasets.get(name, from_path=folder)


@every_format
def test_altered_bytes_never_end_in_a_traceback(small, folder, home, name, write, train, test):
    """Where a format has no checksum of its own, altered pixels pass; what does not parse is an error in a sentence."""
    small(name, train, test)
    write(folder)
    chance = random.Random(7)
    for path in sorted(folder.iterdir()):
        whole = path.read_bytes()
        for _ in range(12):
            altered = bytearray(whole)
            for _ in range(chance.randint(1, 8)):
                # Headers are where it hurts.
                altered[chance.randrange(min(len(whole), chance.choice((40, len(whole)))))] = chance.randrange(256)
            path.write_bytes(altered)
            try:
                datasets.get(name, from_path=folder)
            except CofairError:
                continue
            datasets.load(name)
        path.write_bytes(whole)


@every_format
def test_a_missing_file_is_named(small, folder, home, name, write, train, test):
    small(name, train, test)
    write(folder)
    gone = sorted(folder.iterdir())[-1]
    gone.unlink()
    with pytest.raises(UsageError, match=r"expected|has no"):
        datasets.get(name, from_path=folder)
    assert nothing_is_left_in(home)


def test_an_empty_folder_is_told_what_is_expected(folder):
    with pytest.raises(UsageError, match=r"train_32x32\.mat and test_32x32\.mat; or .*svhn\.npz"):
        datasets.get("svhn", from_path=folder)


def test_a_path_that_is_not_there(folder):
    with pytest.raises(UsageError, match="there is no file or folder"):
        datasets.get("svhn", from_path=folder / "nowhere")


def test_right_format_but_other_images_are_not_the_data_set(folder, home):
    write_mnist(folder)
    with pytest.raises(UsageError, match=r"gave 10 training and 4 test samples where mnist has 60,000 and 10,000"):
        datasets.get("mnist", from_path=folder)
    assert nothing_is_left_in(home)


def test_right_sizes_but_other_content_is_not_the_data_set(small, folder, home):
    from cofair.data.datasets.dataset_entry import Variant

    small("mnist", 10, 4, variants=(Variant("as published", 10, 4, "0" * 64),))
    write_mnist(folder)
    with pytest.raises(UsageError, match="that is not mnist: its content has sha256"):
        datasets.get("mnist", from_path=folder)
    assert nothing_is_left_in(home)


def test_labels_outside_the_classes_are_refused(small, folder):
    small("cifar10", 10, 4)
    x_train, y_train, x_test, y_test = image_data((32, 32, 3))
    files.cifar_batches(folder, x_train, y_train + 1, x_test, y_test)
    with pytest.raises(UsageError, match="train labels from 1 to 10 where cifar10 has 0 to 9"):
        datasets.get("cifar10", from_path=folder)


def test_images_of_another_size_are_refused(small, folder):
    small("mnist", 10, 4)
    files.mnist(folder, *image_data((20, 20)))
    with pytest.raises(UsageError, match=r"uint8 \(20, 20\) where mnist has uint8 \(28, 28\)"):
        datasets.get("mnist", from_path=folder)


@pytest.mark.parametrize("line", ["(3 (2 a) (2 film)", "no tree", "(3 )", "(x (2 a))"])
def test_a_broken_tree_is_named_by_its_line(small, folder, line):
    small("sst", 2, 1)
    files.trees(folder, train=["(3 (2 a) (2 film))", line], test=["(1 (2 a) (2 bore))"])
    with pytest.raises(RunError, match=r"train\.txt line 2 is not a whole bracketed tree"):
        datasets.get("sst", from_path=folder)


def test_matlab_labels_that_are_not_digits(small, folder):
    small("svhn", 10, 4)
    x_train, y_train, x_test, y_test = image_data((32, 32, 3))
    files.svhn_matlab(folder, x_train, y_train + 20, x_test, y_test)
    with pytest.raises(RunError, match=r"train_32x32\.mat does not hold .* y from 1 to 10"):
        datasets.get("svhn", from_path=folder)


def test_an_image_of_another_size_among_tiny_images_is_named(small, folder):
    small("tiny-imagenet", 2, 1, class_names=("",))
    x = files.images(1, 2, (32, 32, 3))
    files.tiny_imagenet(folder, x, np.zeros(2), x[:1], np.array([0]), ("n01",))
    with pytest.raises(RunError, match=r"n01_0\.JPEG is 32×32 pixels"):
        datasets.get("tiny-imagenet", from_path=folder)


def test_an_idx_header_cannot_ask_for_all_memory(small, folder):
    small("mnist", 10, 4)
    write_plain_mnist(folder)
    (folder / "train-images-idx3-ubyte").write_bytes(b"\x00\x00\x08\x03" + b"\xff" * 12 + b"abc")
    with pytest.raises(RunError, match="damaged"):
        datasets.get("mnist", from_path=folder)


def test_a_sprite_larger_than_said_is_not_decoded(small, folder):
    small("svhn", 10, 4)
    data = image_data((32, 32, 3))
    files.svhn_sprites(folder, *data, rows=50)
    with zipfile.ZipFile(folder / "svhn_webp.zip") as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    members["meta.json"] = members["meta.json"].replace(b'"x_train": 10', b'"x_train": 2')
    buffer = io.BytesIO()
    np.save(buffer, np.zeros(2, np.uint8))
    members["y_train.npy"] = buffer.getvalue()
    with zipfile.ZipFile(folder / "svhn_webp.zip", "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    with pytest.raises(RunError, match="a sprite is 96×128 RGB where 96×32 RGB was expected"):
        datasets.get("svhn", from_path=folder)


def test_names_that_climb_and_links_in_an_archive_write_and_read_nothing_outside(small, folder, tmp_path):
    small("cifar10", 10, 4)
    secret = tmp_path / "secret"
    secret.write_bytes(b"\x00" * 3073)
    write_cifar_tar(folder)
    hostile = folder / "hostile.tar.gz"
    with tarfile.open(folder / "cifar-10-binary.tar.gz") as old, tarfile.open(hostile, "w:gz") as new:
        for member in old:
            data = old.extractfile(member).read()
            if member.name.endswith("data_batch_2.bin"):
                member.type, member.linkname, member.size = tarfile.SYMTYPE, str(secret), 0
                new.addfile(member)
                continue
            member.name = f"../../{member.name}"
            new.addfile(member, io.BytesIO(data))
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UsageError, match=r"has no data_batch_2\.bin"):
        datasets.get("cifar10", from_path=hostile)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("where", ["../secret_1.JPEG", "{outside}/secret_1.JPEG"])
def test_names_in_a_data_sets_own_lists_do_not_lead_out_of_its_folder(small, folder, tmp_path, where):
    small("tiny-imagenet", 2, 1, class_names=("",))
    x = np.zeros((2, 64, 64, 3), np.uint8)
    root = files.tiny_imagenet(folder, x, np.zeros(2), x[:1], np.array([0]), ("n01",))
    for name in (tmp_path / "secret_1.JPEG", root / "val" / "secret_1.JPEG"):
        name.write_bytes(next((root / "val" / "images").iterdir()).read_bytes())
    annotations = root / "val" / "val_annotations.txt"
    line = annotations.read_text().split("\t", 1)[1]
    annotations.write_text(where.format(outside=tmp_path) + "\t" + line)
    with pytest.raises(RunError, match="names a file outside of itself"):
        datasets.get("tiny-imagenet", from_path=folder)
