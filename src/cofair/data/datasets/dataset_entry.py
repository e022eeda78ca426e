"""What the catalogue says of a data set."""

from collections.abc import Callable
from dataclasses import dataclass

from cofair.data.datasets.archives import Files
from cofair.data.datasets.content import Content, Kind
from cofair.data.datasets.download import Remote
from cofair.data.datasets.registries import Registry


@dataclass(frozen=True)
class Format:
    """A form in which a data set is found, and its reader, which returns None where the files are not there.

    What is not in its authors' own form is only taken where its content's sha256 is a measured one.
    """

    files: str
    read: Callable[[Files], Content | None]
    published: bool = True


@dataclass(frozen=True)
class Variant:
    """A version of a data set that is known: its sizes, and its content's sha256 where that has been measured."""

    note: str
    train: int
    test: int
    sha256: str | None = None


@dataclass(frozen=True)
class DatasetEntry:
    """One data set; the first variant is the one that its authors publish."""

    name: str
    kind: Kind
    shape: tuple[int, ...]
    class_names: tuple[str, ...]
    licence: str
    homepage: str
    variants: tuple[Variant, ...]
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    formats: tuple[Format, ...] = ()
    archives: tuple[str, ...] = ()
    origin: tuple[Remote, ...] = ()
    registry: Registry | None = None
