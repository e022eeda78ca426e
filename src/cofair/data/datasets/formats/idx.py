"""IDX files, plain or gzipped: MNIST, Fashion-MNIST and EMNIST."""

import gzip
from collections.abc import Callable
from typing import IO, Any, cast

import numpy as np
from numpy.typing import NDArray

from cofair.data.datasets import content
from cofair.data.datasets.archives import Files, read_exactly
from cofair.data.datasets.content import Content, raw_bytes

UNSIGNED_BYTE = 0x08
CHUNK = 1 << 20


def read_mnist(files: Files) -> Content | None:
    """``train-images-idx3-ubyte`` and the other three files of MNIST and its likes, each perhaps with ``.gz``."""
    if _find(files, "train-images-idx3-ubyte") is None:
        return None
    train, test = (
        (_read(files, f"{split}-images-idx3-ubyte"), _read(files, f"{split}-labels-idx1-ubyte"))
        for split in ("train", "t10k")
    )
    return content.images(*train, *test)


def emnist_reader(subset: str, first_label: int) -> Callable[[Files], Content | None]:
    """A reader of ``emnist-SUBSET-train-images-idx3-ubyte`` and the other three files, each perhaps with ``.gz``."""

    def read(files: Files) -> Content | None:
        if _find(files, f"emnist-{subset}-train-images-idx3-ubyte") is None:
            return None
        splits = []
        for split in ("train", "test"):
            x = _read(files, f"emnist-{subset}-{split}-images-idx3-ubyte")
            y = _read(files, f"emnist-{subset}-{split}-labels-idx1-ubyte")
            # EMNIST is published with rows and columns exchanged. A slice at a time: the set is half a gigabyte.
            for start in range(0, len(x), 10_000):
                x[start : start + 10_000] = x[start : start + 10_000].transpose(0, 2, 1).copy()
            splits.append((x, y.astype(np.int64) - first_label))
        return content.images(*splits[0], *splits[1])

    return read


def _find(files: Files, name: str) -> str | None:
    return files.find(name) or files.find(f"{name}.gz")


def _read(files: Files, name: str) -> NDArray[np.uint8]:
    member = _find(files, name) or files.need(name)
    dimensions = 3 if "-images-" in name else 1
    with files.open(member) as stream:
        # By the bytes, not by the name: browsers unpack .gz and keep the name.
        compressed = stream.read(2) == b"\x1f\x8b"
    with files.open(member) as stream:
        if compressed:
            return _read_array(cast(IO[bytes], gzip.GzipFile(fileobj=stream)), dimensions, member)
        return _read_array(stream, dimensions, member)


def _read_array(stream: IO[bytes], dimensions: int, what: str) -> NDArray[np.uint8]:
    if read_exactly(stream, 4, what) != bytes((0, 0, UNSIGNED_BYTE, dimensions)):
        raise ValueError(f"{what} does not begin as an IDX file of {dimensions} dimensions of bytes does")
    shape = tuple(int(n) for n in np.frombuffer(read_exactly(stream, 4 * dimensions, what), ">u4"))
    array: NDArray[Any] = np.empty(shape, np.uint8)
    view = raw_bytes(array)
    for start in range(0, len(view), CHUNK):
        piece = view[start : start + CHUNK]
        piece[:] = read_exactly(stream, len(piece), what)
    # Reading on to the end also lets gzip check its CRC.
    if stream.read(1):
        raise ValueError(f"{what} continues after its {'×'.join(map(str, shape))} values")
    return array
