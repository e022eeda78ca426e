"""The embedded data set: 1,797 handwritten digits of 8×8 pixels that come with scikit-learn.

Pixels run from 0 to 16. They are stored as 15 times that, 0 to 240: exact, and full contrast when seen as an image.
There is no published split. The test set is a fifth of every class, fixed by hashes of the samples' positions, so that
it is the same under every version of numpy.
"""

import hashlib
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from cofair.data.datasets import content
from cofair.data.datasets.content import Content
from cofair.errors import RunError

NAME = "digits"
SCALE = 15
TEST_SHARE = 5


def read() -> Content:
    """The digits, split."""
    # Here, because importing it takes a noticeable part of a second.
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    x = (x.reshape(-1, 8, 8) * SCALE).astype(np.uint8)
    order = sorted(range(len(y)), key=lambda i: hashlib.sha256(f"digits {i}".encode()).digest())
    test = [i for digit in range(10) for n, i in enumerate(i for i in order if y[i] == digit) if n % TEST_SHARE == 0]
    # Both splits keep the file's order of samples.
    held_out = np.isin(np.arange(len(y)), test)
    return content.images(x[~held_out], y[~held_out], x[held_out], y[held_out])


def path() -> Path:
    """Where scikit-learn keeps them."""
    # Finding a package does not import it.
    package = find_spec("sklearn")
    if package is None or package.origin is None:
        raise RunError("scikit-learn, which holds the digits, is not installed: install cofair with its dependencies")
    return Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
