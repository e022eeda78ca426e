"""The rows of ``cofair data list``."""

from dataclasses import dataclass
from pathlib import Path

from cofair.data.datasets import digits, store
from cofair.data.datasets.catalogue import ENTRIES
from cofair.data.datasets.content import Kind
from cofair.data.datasets.dataset_entry import DatasetEntry


@dataclass(frozen=True)
class Description:
    """One data set: what it holds, and where it lies (None where it has not been fetched)."""

    name: str
    kind: Kind
    train: int
    test: int
    shape: tuple[int, ...]
    classes: int
    licence: str
    source: str
    path: Path | None
    verified: bool | None  # None where it has not been fetched or cannot be read


def names() -> list[str]:
    """The names of all data sets."""
    return list(ENTRIES)


def describe() -> list[Description]:
    """One row for every data set; sizes and source are those of the stored variant where there is one."""
    return [_describe(entry) for entry in ENTRIES.values()]


def _describe(entry: DatasetEntry) -> Description:
    published = entry.variants[0]
    train, test, source = published.train, published.test, entry.homepage
    place = digits.path() if entry.name == digits.NAME else store.file_of(entry.name)
    if not place.is_file():
        return _row(entry, train, test, source, None, None)
    verified: bool | None = True
    if entry.name != digits.NAME:
        metadata = store.peek(place)
        if metadata is None:
            verified = None
            source = f"damaged file: fetch it again with `cofair data get {entry.name} --force`"
        else:
            train, test = metadata.get("samples", (train, test))
            # A file of an older version that was not verified says "sizes only".
            verified = not str(metadata.get("verified")).startswith((store.NOT_VERIFIED, "sizes only"))
            note = "" if verified else f", {store.NOT_VERIFIED}"
            source = f"{metadata.get('source')} ({metadata.get('variant')}{note})"
    return _row(entry, train, test, source, place, verified)


def _row(
    entry: DatasetEntry, train: int, test: int, source: str, place: Path | None, verified: bool | None
) -> Description:
    classes = len(entry.class_names)
    return Description(
        entry.name, entry.kind, train, test, entry.shape, classes, entry.licence, source, place, verified
    )
