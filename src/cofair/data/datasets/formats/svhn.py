"""SVHN: the published MATLAB files, and lossless WebP sprites in a zip."""

import io
import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cofair.data.datasets import content
from cofair.data.datasets.archives import Files
from cofair.data.datasets.content import Content
from cofair.data.datasets.formats.sprites import read_sprite


def read_matlab(files: Files) -> Content | None:
    """``train_32x32.mat`` and ``test_32x32.mat``: X (32, 32, 3, n), y (n, 1) in which 10 stands for the digit 0."""
    if files.find("train_32x32.mat") is None:
        return None
    return content.images(*_matlab(files, "train_32x32.mat"), *_matlab(files, "test_32x32.mat"))


def _matlab(files: Files, name: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    # Here, because importing it takes a noticeable part of a second.
    from scipy.io import loadmat

    with files.open(files.need(name)) as stream:
        # It takes open files, too, which its stubs do not say.
        variables = loadmat(stream, variable_names=["X", "y"])  # type: ignore[arg-type]
    x, y = variables["X"], variables["y"].reshape(-1).astype(np.int64)
    if x.ndim != 4 or x.dtype != np.uint8 or not np.isin(y, range(1, 11)).all():
        raise ValueError(f"{name} does not hold X (32, 32, 3, n) of bytes and y from 1 to 10")
    return np.ascontiguousarray(x.transpose(3, 0, 1, 2)), y % 10


def read_sprites(files: Files) -> Content | None:
    """``meta.json`` with the tile size and counts, ``x_train_000.webp`` … with tiles row by row, ``y_train.npy`` …."""
    if files.find("x_train_000.webp") is None:
        return None
    with files.open(files.need("meta.json")) as stream:
        meta = json.load(stream)
    if meta["tile"] != [32, 32, 3] or meta["order"] != "row-major":
        raise ValueError("meta.json does not describe 32×32 RGB tiles in rows")
    return content.images(*_tiles(files, meta, "train"), *_tiles(files, meta, "test"))


def _tiles(files: Files, meta: dict[str, Any], split: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    count, a_row = int(meta["count"][f"x_{split}"]), int(meta["tiles_per_row"])
    with files.open(files.need(f"y_{split}.npy")) as stream:
        y = np.load(io.BytesIO(stream.read()), allow_pickle=False)
    if y.shape != (count,):
        raise ValueError(f"y_{split}.npy does not hold the {count} labels that meta.json says")
    x = np.empty((count, 32, 32, 3), np.uint8)
    done = sprite = 0
    while done < count:
        rows_left = -(-(count - done) // a_row)
        with files.open(files.need(f"x_{split}_{sprite:03d}.webp")) as stream:
            pixels = read_sprite(stream, width=32 * a_row, height=32 * rows_left, or_less=True)
        rows = len(pixels) // 32
        tiles = pixels.reshape(rows, 32, a_row, 32, 3).transpose(0, 2, 1, 3, 4).reshape(-1, 32, 32, 3)
        taken = min(len(tiles), count - done)
        x[done : done + taken] = tiles[:taken]
        done += taken
        sprite += 1
    return x, y
