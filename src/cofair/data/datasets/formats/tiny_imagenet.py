"""Tiny-ImageNet: 200 classes of 64×64 JPEG images; its validation images, which have labels, are the test set here."""

import re
from pathlib import PurePosixPath

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from cofair.data.datasets import content
from cofair.data.datasets.archives import Files
from cofair.data.datasets.content import Content

SIDE = 64


def read(files: Files) -> Content | None:
    """``wnids.txt``, ``train/WNID/images/*.JPEG``, ``val/images/*.JPEG`` with ``val/val_annotations.txt``."""
    listed = files.find("wnids.txt")
    if listed is None:
        return None
    root = PurePosixPath(listed).parent
    # Sorted, as every other reader of this data numbers the classes; the file's own order is arbitrary.
    wnids = sorted(_lines(files, listed))
    train = [
        (member, label)
        for label, wnid in enumerate(wnids)
        for member in sorted(files.under(f"{root / 'train' / wnid / 'images'}"), key=_number)
    ]
    annotations = [line.split("\t") for line in _lines(files, str(root / "val" / "val_annotations.txt"))]
    test = sorted(
        ((str(root / "val" / "images" / name), wnids.index(wnid)) for name, wnid, *_ in annotations),
        key=lambda sample: _number(sample[0]),
    )
    return content.images(*_decode(files, train), *_decode(files, test), _class_names(files, root, wnids))


def _decode(files: Files, samples: list[tuple[str, int]]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    x = np.empty((len(samples), SIDE, SIDE, 3), np.uint8)
    for i, (member, _) in enumerate(samples):
        with files.open(member) as stream, Image.open(stream, formats=("JPEG",)) as picture:
            if picture.size != (SIDE, SIDE):
                raise ValueError(f"{member} is {picture.width}×{picture.height} pixels")
            # Some are grey.
            x[i] = np.asarray(picture.convert("RGB"))
    return x, np.array([label for _, label in samples], np.int64)


def _class_names(files: Files, root: PurePosixPath, wnids: list[str]) -> tuple[str, ...]:
    """The first of a class's English names, "goldfish" of "goldfish, Carassius auratus"; two classes may share it."""
    words = dict(line.split("\t", 1) for line in _lines(files, str(root / "words.txt")))
    return tuple(words.get(wnid, wnid).split(",")[0] for wnid in wnids)


def _lines(files: Files, member: str) -> list[str]:
    with files.open(member) as stream:
        return [line for line in stream.read().decode().replace("\r\n", "\n").split("\n") if line]


def _number(member: str) -> int:
    """12 of ``n01443537_12.JPEG`` and of ``val_12.JPEG``."""
    found = re.search(r"_(\d+)\.JPEG$", member)
    if not found:
        raise ValueError(f"{member} is not named as Tiny-ImageNet's images are")
    return int(found[1])
