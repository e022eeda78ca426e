"""A data set in memory, and how it is loaded from the store."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cofair.data.datasets import catalogue, digits, store
from cofair.data.datasets.content import Content, Kind, unpack_sentences
from cofair.errors import UsageError

PADDING, UNKNOWN = 0, 1


@dataclass(frozen=True, eq=False)
class Dataset:
    """A data set, split for training and testing.

    Images are uint8 of shape (n, H, W) or (n, H, W, 3). Sentences are int64 token ids (n, L), 0 for padding and 1 for
    words that the training split does not have; ``vocabulary[i]`` is the word with id i. Labels are int64.
    ``mean`` and ``std``, one value per channel, normalise images scaled to [0, 1]; they are empty for text.
    """

    name: str
    kind: Kind
    x_train: NDArray[Any]
    y_train: NDArray[np.int64]
    x_test: NDArray[Any]
    y_test: NDArray[np.int64]
    class_names: tuple[str, ...]
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    vocabulary: tuple[str, ...] = ()

    @property
    def vocabulary_size(self) -> int:
        """How many token ids there are, padding and unknown included; 0 for images."""
        return len(self.vocabulary)


def load(name: str) -> Dataset:
    """Load a data set that is embedded or has been fetched."""
    entry = catalogue.find(name)
    if name == digits.NAME:
        content = digits.read()
    else:
        content, _ = store.read(path(name), name, f"fetch it again with `cofair data get {name} --force`")
    vocabulary: tuple[str, ...] = ()
    x_train, x_test = content.arrays["x_train"], content.arrays["x_test"]
    if entry.kind == "text":
        x_train, x_test, vocabulary = _token_ids(content)
    return Dataset(
        name=name,
        kind=entry.kind,
        x_train=x_train,
        y_train=content.arrays["y_train"],
        x_test=x_test,
        y_test=content.arrays["y_test"],
        class_names=content.class_names or entry.class_names,
        mean=entry.mean,
        std=entry.std,
        vocabulary=vocabulary,
    )


def path(name: str) -> Path:
    """Where a data set lies; an error that says how to get it where it is not here."""
    catalogue.find(name)
    place = digits.path() if name == digits.NAME else store.file_of(name)
    if not place.is_file():
        raise UsageError(
            f"the data set {name} is not in {place.parent}: fetch it with `cofair data get {name}`, read it from files "
            f"you have with `cofair data get {name} --from PATH`, or let the environment variable COFAIR_DATA name a "
            "folder of packed data sets and get it then"
        )
    return place


def _token_ids(content: Content) -> tuple[NDArray[np.int64], NDArray[np.int64], tuple[str, ...]]:
    """Words of the training split by falling frequency get the ids from 2; rows are as long as its longest sentence."""
    train, test = (
        [sentence.lower().split(" ") for sentence in unpack_sentences(content, split)] for split in ("train", "test")
    )
    counts = Counter(word for words in train for word in words)
    vocabulary = ("<padding>", "<unknown>", *sorted(counts, key=lambda word: (-counts[word], word)))
    ids = {word: i for i, word in enumerate(vocabulary) if i > UNKNOWN}
    length = max(map(len, train), default=0)
    return _padded(train, ids, length), _padded(test, ids, length), vocabulary


def _padded(rows: Sequence[Sequence[str]], ids: dict[str, int], length: int) -> NDArray[np.int64]:
    x = np.full((len(rows), length), PADDING, np.int64)
    for i, words in enumerate(rows):
        kept = words[:length]
        x[i, : len(kept)] = [ids.get(word, UNKNOWN) for word in kept]
    return x
