"""Whether what a source gave is the data set it should be."""

import numpy as np

from cofair.data.datasets.content import Content
from cofair.data.datasets.dataset_entry import DatasetEntry, Variant
from cofair.errors import UsageError


def verify(entry: DatasetEntry, content: Content, source: str, *, published: bool) -> Variant:
    """The known variant that the content is, or an error that says what is wrong with it.

    A variant of which only the sizes are known stands for its authors' own files alone: any packed content of the same
    size would pass for it.
    """
    for split in ("train", "test"):
        _check_split(entry, content, split, source)
    train, test = (len(content.arrays[f"y_{split}"]) for split in ("train", "test"))
    possible = [variant for variant in entry.variants if published or variant.sha256]
    sized = [variant for variant in possible if (variant.train, variant.test) == (train, test)]
    if not sized:
        known = " or ".join(dict.fromkeys(f"{variant.train:,} and {variant.test:,}" for variant in possible))
        raise UsageError(f"{source} gave {train:,} training and {test:,} test samples where {entry.name} has {known}")
    # A measured variant is preferred to one of which only the sizes are known.
    for sha256 in (content.sha256, None):
        for variant in sized:
            if variant.sha256 == sha256:
                return variant
    raise UsageError(
        f"{source} gave data of the right size that is not {entry.name}: its content has sha256 {content.sha256}, "
        f"expected {' or '.join(str(variant.sha256) for variant in sized)}"
    )


def _check_split(entry: DatasetEntry, content: Content, split: str, source: str) -> None:
    x, y = content.arrays[f"x_{split}"], content.arrays[f"y_{split}"]
    classes = len(content.class_names or entry.class_names)
    if content.kind != entry.kind:
        raise UsageError(f"{source} gave {content.kind} data where {entry.name} is {entry.kind} data")
    if entry.kind == "image" and (x.dtype != np.uint8 or x.shape[1:] != entry.shape):
        raise UsageError(
            f"{source} gave {split} images of {x.dtype} {x.shape[1:]} where {entry.name} has uint8 {entry.shape}"
        )
    samples = len(x) if entry.kind == "image" else len(content.arrays[f"x_{split}_offsets"]) - 1
    if samples != len(y) or y.dtype != np.int64:
        raise UsageError(f"{source} gave {samples:,} {split} samples with {len(y):,} labels")
    if samples and not 0 <= int(y.min()) <= int(y.max()) < classes:
        raise UsageError(
            f"{source} gave {split} labels from {y.min()} to {y.max()} where {entry.name} has 0 to {classes - 1}"
        )
