"""Where the authors publish their files, with the checksums that are published for them.

The sha256 values are those of tensorflow_datasets (MNIST, Fashion-MNIST, CIFAR-10, SVHN, EMNIST), of Flux.jl's model
zoo (SST) and of several papers' repositories (Tiny-ImageNet). For MR there is a sha256 (Hugging Face's ``datasets``,
which fetched it from a mirror) and an md5 of the file at the authors' own address; either is accepted.
"""

from cofair.data.datasets.download import Remote


def _idx(base: str, files: dict[str, tuple[int, str]]) -> tuple[Remote, ...]:
    return tuple(Remote(f"{base}/{name}-ubyte.gz", size, (f"sha256:{sha}",)) for name, (size, sha) in files.items())


MNIST = _idx(
    "https://ossci-datasets.s3.amazonaws.com/mnist",
    {
        "train-images-idx3": (9_912_422, "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
        "train-labels-idx1": (28_881, "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
        "t10k-images-idx3": (1_648_877, "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
        "t10k-labels-idx1": (4_542, "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
    },
)
FASHION_MNIST = _idx(
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
    {
        "train-images-idx3": (26_421_880, "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"),
        "train-labels-idx1": (29_515, "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"),
        "t10k-images-idx3": (4_422_102, "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"),
        "t10k-labels-idx1": (5_148, "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"),
    },
)
CIFAR10 = (
    Remote(
        "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
        170_052_171,
        ("sha256:c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",),
    ),
)
SVHN = (
    Remote(
        "http://ufldl.stanford.edu/housenumbers/train_32x32.mat",
        182_040_794,
        ("sha256:435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8",),
    ),
    Remote(
        "http://ufldl.stanford.edu/housenumbers/test_32x32.mat",
        64_275_384,
        ("sha256:cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b",),
    ),
)
EMNIST = (
    Remote(
        "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",
        561_753_746,
        ("sha256:fb9bb67e33772a9cc0b895e4ecf36d2cf35be8b709693c3564cea2a019fcda8e",),
    ),
)
TINY_IMAGENET = (
    Remote(
        "http://cs231n.stanford.edu/tiny-imagenet-200.zip",
        248_100_043,
        ("sha256:6198c8ae015e2b3e007c7841da39ec069199b9aa3bfa943a462022fe5e43c821",),
    ),
)
MR = (
    Remote(
        "https://www.cs.cornell.edu/people/pabo/movie-review-data/rt-polaritydata.tar.gz",
        487_770,
        (
            "sha256:a05befe52aafda71d458d188a1c54506a998b1308613ba76bbda2e5029409ce9",
            "md5:50c1c2c047b4225e148e97aa7708c34e",
        ),
    ),
)
SST = (
    Remote(
        "https://nlp.stanford.edu/sentiment/trainDevTestTrees_PTB.zip",
        789_539,
        ("sha256:5c613a4f673fc74097d523a2c83f38e0cc462984d847b82c7aaf36b01cbbbfcc",),
    ),
)
