"""The store holds whole files or none, and notices when they are not what was written."""

import contextlib
import errno
import io
import json
import os
import zipfile
from pathlib import Path

import numpy as np
import pytest

from cofair.data import datasets
from cofair.data.datasets import store
from cofair.errors import CofairError, RunError
from tests.data.datasets import published_files as files


@pytest.fixture
def mnist(small, folder):
    """A folder with a small MNIST, and the store's file of it."""
    small("mnist", 10, 4)
    files.mnist(folder, files.images(1, 10, (28, 28)), np.arange(10), files.images(2, 4, (28, 28)), np.arange(4))
    return folder


@pytest.fixture
def stored(mnist):
    return datasets.get("mnist", from_path=mnist)


def test_where_the_store_is(monkeypatch, tmp_path):
    monkeypatch.setenv("COFAIR_HOME", str(tmp_path / "h"))
    assert store.folder() == tmp_path / "h" / "datasets"
    monkeypatch.delenv("COFAIR_HOME")
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "x"))
    assert store.folder() == tmp_path / "x" / "cofair" / "datasets"
    monkeypatch.setenv("XDG_DATA_HOME", "relative/is/to/be/ignored")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert store.folder() == tmp_path / ".local" / "share" / "cofair" / "datasets"


def test_a_stored_file_is_npz_that_anyone_can_read_without_pickle(stored):
    with np.load(stored, allow_pickle=False) as arrays:
        assert arrays["x_train"].shape == (10, 28, 28)
        assert arrays["y_test"].dtype == np.int64
    with zipfile.ZipFile(stored) as archive:
        metadata = json.loads(archive.read("metadata.json"))
    assert metadata["format"] == 1
    assert metadata["variant"] == "small"
    assert metadata["samples"] == [10, 4]
    assert "no content sha256 is known" in metadata["verified"]
    assert len(metadata["content_sha256"]) == 64


def test_the_same_data_gives_the_same_file(mnist, stored):
    first = stored.read_bytes()
    datasets.get("mnist", from_path=mnist)
    assert stored.read_bytes() == first


def test_the_content_hash_sees_every_part_of_an_array():
    from cofair.data.datasets.content import images

    x, y = np.zeros((4, 2, 2), np.uint8), np.zeros(4, np.int64)
    other = x.copy()
    other[3, 1, 1] = 1
    hashes = {
        images(x, y, x, y).sha256,
        images(other, y, x, y).sha256,
        images(x, y, other, y).sha256,
        images(x, y + 1, x, y).sha256,
        images(x.reshape(4, 4, 1), y, x, y).sha256,
        images(x[:3], y[:3], x, y).sha256,
    }
    assert len(hashes) == 6


@pytest.mark.parametrize("share", [0, 0.01, 0.5, 0.99])
def test_a_cut_file_names_itself_and_the_remedy(stored, share):
    whole = stored.read_bytes()
    stored.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(RunError) as caught:
        datasets.load("mnist")
    assert str(stored) in str(caught.value)
    assert "cofair data get mnist --force" in str(caught.value)


def test_no_altered_byte_goes_unnoticed_in_the_data(stored):
    whole = stored.read_bytes()
    good = datasets.load("mnist")
    for place in np.linspace(0, len(whole) - 1, 120).astype(int):
        altered = bytearray(whole)
        altered[place] ^= 0x55
        stored.write_bytes(altered)
        with contextlib.suppress(RunError):
            loaded = datasets.load("mnist")
            # Dates and the like in the zip's own tables: the data is what it was.
            np.testing.assert_array_equal(loaded.x_train, good.x_train)
            np.testing.assert_array_equal(loaded.y_test, good.y_test)


def rewrite(path, change):
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    change(members)
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)


def npy(array):
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def ask_for_all_memory(members):
    members["x_train.npy"] = members["x_train.npy"].replace(b"(10, 28, 28)", b"(10**99, 2)".ljust(12))


def ask_for_much_memory(members):
    members["x_train.npy"] = members["x_train.npy"].replace(b"(10, 28, 28), }", b"(9999999999,),}")


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.update({"y_train.npy": npy(np.arange(10)[::-1])}),
        lambda m: m.update({"y_train.npy": npy(np.array([{}], dtype=object))}),
        lambda m: m.pop("x_test.npy"),
        lambda m: m.pop("metadata.json"),
        lambda m: m.update({"metadata.json": b"[]"}),
        lambda m: m.update({"metadata.json": m["metadata.json"].replace(b'"format": 1', b'"format": 2')}),
        lambda m: m.update({"metadata.json": m["metadata.json"].replace(b'"mnist"', b'"svhn"')}),
        ask_for_all_memory,
        ask_for_much_memory,
    ],
)
def test_a_well_formed_zip_with_other_content_is_refused(stored, change):
    rewrite(stored, change)
    with pytest.raises(RunError, match="is damaged"):
        datasets.load("mnist")


def test_a_damaged_file_is_listed_as_damaged(stored):
    stored.write_bytes(b"no zip")
    row = next(row for row in datasets.describe() if row.name == "mnist")
    assert "--force" in row.source
    assert row.path == stored


class FullDisk:
    """A file on a disk that has room for one more kilobyte."""

    def __init__(self, file, number):
        self.file, self.number, self.room = file, number, 1000

    def write(self, data):
        if len(data) > self.room:
            raise OSError(self.number, "No space left on device")
        self.room -= len(data)
        return self.file.write(data)

    def __getattr__(self, name):
        return getattr(self.file, name)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.file.close()


def files_in(home):
    return sorted(path.name for path in home.rglob("*") if path.is_file())


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
def test_a_full_disk_leaves_the_earlier_file_alone(monkeypatch, mnist, stored, home, number):
    good = stored.read_bytes()
    plain_open = Path.open

    def open_on_full_disk(path, mode="r", *args):
        file = plain_open(path, mode, *args)
        return FullDisk(file, number) if "x" in mode else file

    monkeypatch.setattr(Path, "open", open_on_full_disk)
    with pytest.raises(RunError, match=r"cannot write .*mnist\.npz: No space left on device; it needs .* COFAIR_HOME"):
        datasets.get("mnist", from_path=mnist)
    assert files_in(home) == ["mnist.npz"]
    assert stored.read_bytes() == good


@pytest.mark.parametrize("call", ["os.fsync", "pathlib.Path.replace"])
def test_failing_at_the_very_end_leaves_nothing(monkeypatch, mnist, home, call):
    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(call, fail)
    with pytest.raises(RunError, match="No space left"):
        datasets.get("mnist", from_path=mnist)
    assert files_in(home) == []


def test_a_folder_that_may_not_be_written_to(monkeypatch, mnist, stored, home):
    plain_open = Path.open

    def open_read_only(path, mode="r", *args):
        if set(mode) & set("wxa+"):
            raise OSError(errno.EROFS, "Read-only file system")
        return plain_open(path, mode, *args)

    monkeypatch.setattr(Path, "open", open_read_only)
    with pytest.raises(RunError, match="Read-only file system"):
        datasets.get("mnist", from_path=mnist)
    assert datasets.load("mnist").name == "mnist"


def test_a_home_that_is_a_file(mnist, home):
    home.write_text("not a folder")
    with pytest.raises(RunError, match="cannot write"):
        datasets.get("mnist", from_path=mnist)


@pytest.mark.parametrize("stage", ["reading", "writing"])
def test_an_interrupt_leaves_no_trace(mnist, home, stage):
    def interrupt(doing, done, total):
        if doing.startswith(stage):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        datasets.get("mnist", from_path=mnist, progress=interrupt)
    assert files_in(home) == []


def test_what_a_killed_process_left_is_swept_up_but_not_another_ones_work(mnist, stored, home):
    old, new = (stored.with_name(f".mnist.npz.{which}.unfinished") for which in ("old", "new"))
    for path in (old, new):
        path.write_bytes(b"half")
    long_ago = stored.stat().st_mtime - 2 * store.DAY_S
    os.utime(old, (long_ago, long_ago))
    datasets.get("mnist", from_path=mnist)
    assert files_in(home) == [new.name, "mnist.npz"]


def test_what_is_here_is_kept_unless_forced(mnist, stored, monkeypatch):
    stored.write_bytes(b"damaged")
    assert datasets.get("mnist") == stored
    with pytest.raises(CofairError):
        datasets.get("mnist", force=True)
    assert stored.read_bytes() == b"damaged"
    monkeypatch.setenv("COFAIR_DATA", str(mnist))
    datasets.get("mnist", force=True)
    assert len(datasets.load("mnist").x_train) == 10


def test_progress_counts_bytes_up_to_the_whole(mnist):
    seen = []
    datasets.get("mnist", from_path=mnist, progress=lambda *report: seen.append(report))
    stage, done, total = seen[-1]
    assert stage == "writing"
    assert done == total == 14 * (28 * 28 + 8)
