"""What a data set consists of, whichever source it came from, and the fingerprint that verifies it."""

import hashlib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Kind = Literal["image", "text"]

MEMBERS: dict[Kind, tuple[str, ...]] = {
    "image": ("x_train", "y_train", "x_test", "y_test"),
    "text": ("x_train", "x_train_offsets", "y_train", "x_test", "x_test_offsets", "y_test"),
}


@dataclass(frozen=True, eq=False)
class Content:
    """The arrays of one data set: uint8 images, or sentences as UTF-8 bytes with int64 offsets; int64 labels."""

    kind: Kind
    arrays: dict[str, NDArray[Any]]
    class_names: tuple[str, ...] = ()

    @cached_property
    def sha256(self) -> str:
        """Fingerprint of names, types, shapes and bytes: equal for every source of the same data."""
        digest = hashlib.sha256()
        for name in MEMBERS[self.kind]:
            array = np.ascontiguousarray(self.arrays[name])
            digest.update(member_header(name, array.dtype, array.shape))
            digest.update(raw_bytes(array))
        return digest.hexdigest()


def member_header(name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """What the fingerprint says of an array before its bytes."""
    return f"{name} {dtype.str} {'x'.join(map(str, shape))}\n".encode()


def raw_bytes(array: NDArray[Any]) -> memoryview:
    """A contiguous array's bytes, not copied."""
    return array.reshape(-1).view(np.uint8).data


def images(
    x_train: NDArray[np.uint8],
    y_train: NDArray[Any],
    x_test: NDArray[np.uint8],
    y_test: NDArray[Any],
    class_names: tuple[str, ...] = (),
) -> Content:
    """Content of an image data set."""
    arrays: dict[str, NDArray[Any]] = {
        "x_train": x_train,
        "y_train": y_train.astype(np.int64),
        "x_test": x_test,
        "y_test": y_test.astype(np.int64),
    }
    return Content("image", arrays, class_names)


def sentences(train: list[tuple[int, str]], test: list[tuple[int, str]]) -> Content:
    """Content of a text data set, from (label, sentence) pairs."""
    arrays: dict[str, NDArray[Any]] = {}
    for split, pairs in (("train", train), ("test", test)):
        encoded = [text.encode() for _, text in pairs]
        arrays[f"x_{split}"] = np.frombuffer(b"".join(encoded), dtype=np.uint8)
        arrays[f"x_{split}_offsets"] = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
        arrays[f"y_{split}"] = np.array([label for label, _ in pairs], dtype=np.int64)
    return Content("text", arrays)


def unpack_sentences(content: Content, split: str) -> Iterator[str]:
    """The sentences of one split, in order."""
    joined = content.arrays[f"x_{split}"].tobytes()
    offsets = content.arrays[f"x_{split}_offsets"].tolist()
    for start, end in itertools.pairwise(offsets):
        yield joined[start:end].decode()
