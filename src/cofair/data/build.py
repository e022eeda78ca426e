"""Make a federation of a data set and a scene."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from cofair import randomness
from cofair.data import datasets, scenes
from cofair.data.federation import Federation, Samples
from cofair.data.scene_request import SceneRequest
from cofair.data.tables import is_table
from cofair.errors import UsageError

if TYPE_CHECKING:
    import pandas as pd

RESIZED_AT_ONCE = 1024  # images that are held at their old size as real numbers


@dataclass(frozen=True)
class Pool:
    """A data set's inputs as models take them, on a device: federations made of it share one copy."""

    dataset: datasets.Dataset
    train: Tensor
    test: Samples

    @classmethod
    def of(cls, dataset: datasets.Dataset, device: torch.device, dtype: torch.dtype, resize: int | None) -> "Pool":
        """Normalise a whole data set and move it to a device."""
        test = Samples(inputs(dataset, dataset.x_test, resize, device), torch.from_numpy(dataset.y_test))
        train = Samples(inputs(dataset, dataset.x_train, resize, device), torch.from_numpy(dataset.y_train))
        return cls(dataset, train.to(device, dtype).x, test.to(device, dtype))


def federate(
    data: "str | datasets.Dataset | Pool | pd.DataFrame", scene: str = "pow", *, clients: int = 10,
    samples: int | None = None, alpha: float = 3.0, noise: Sequence[float] = (0.2, 0.4, 0.6), validation: float = 0.1,
    resize: int | None = None, label: str | None = None, by: str | None = None, leave_out: Sequence[str] = (),
    test: float = 0.2, seed: int = 0,
) -> Federation:  # fmt: skip
    """Spread a data set's training part over clients and the server; the official test set is the test set.

    Of a table (a pandas DataFrame, or a CSV or Parquet file) `label` names the column that is predicted, `by` the one
    that says whose a row is: each of its values is a client, and no scene is needed. A share `test` of the rows is the
    test set, `leave_out` names columns that are not used.

    `resize` makes images that many pixels wide and high, as FedRAC's ResNet for Tiny-ImageNet wants them (32). Of a
    `Pool`, which is resized already, the federation holds no copy of its own.
    """
    spread = SceneRequest(scene, clients, samples, alpha, tuple(noise))
    if not isinstance(data, datasets.Dataset | Pool) and (not isinstance(data, str) or is_table(data)):
        from cofair.data.tables import own_table  # which pandas is needed for

        return own_table.federation_of(
            data, label, by, spread, validation=validation, test=test, leave_out=leave_out, seed=seed
        )
    if label is not None or by is not None:
        raise UsageError("label and by name columns of a table, such as a DataFrame or the file hospitals.csv.")
    pooled = data if isinstance(data, Pool) else None
    dataset = datasets.load(data) if isinstance(data, str) else data.dataset if isinstance(data, Pool) else data
    if resize is not None and (dataset.kind != "image" or resize < 1):
        wrong = "which is not at least 1" if dataset.kind == "image" else f"but {dataset.name!r} has no images"
        raise UsageError(f"resize is {resize}, {wrong}: leave it out, or give the width of images in pixels.")
    labels = np.asarray(dataset.y_train)
    rng = randomness.numpy_generator(seed, "federation")
    held, pool = scenes.hold_out(len(labels), validation, rng)
    classes = len(dataset.class_names)
    shares = spread.shares(dataset.name, labels[pool], pool, classes, rng)

    if pooled is not None:
        server = torch.from_numpy(held).to(pooled.train.device)
        return Federation.from_pool(
            pooled.train,
            [(torch.from_numpy(share.indices), torch.from_numpy(share.labels)) for share in shares],
            test=pooled.test,
            validation=Samples(pooled.train[server], torch.from_numpy(labels[held]).to(server.device))
            if len(held)
            else None,
            classes=classes,
        )
    used, positions = np.unique(np.concatenate([share.indices for share in shares]), return_inverse=True)
    cuts = np.cumsum([len(share.indices) for share in shares])[:-1]
    own = [
        (torch.from_numpy(indices), torch.from_numpy(share.labels))
        for indices, share in zip(np.split(positions, cuts), shares, strict=True)
    ]
    return Federation.from_pool(
        inputs(dataset, dataset.x_train[used], resize),
        own,
        test=Samples(inputs(dataset, dataset.x_test, resize), torch.from_numpy(dataset.y_test)),
        validation=Samples(inputs(dataset, dataset.x_train[held], resize), torch.from_numpy(labels[held]))
        if len(held)
        else None,
        classes=classes,
    )


def inputs(
    dataset: datasets.Dataset, values: np.ndarray, resize: int | None = None, device: torch.device | None = None
) -> Tensor:
    """Return a data set's stored values as models take them: normalised (n, C, H, W), or token ids."""
    if dataset.kind == "text":
        return torch.from_numpy(values.astype(np.int64)).to(device)
    images = torch.from_numpy(np.ascontiguousarray(values)).to(device)
    images = images[:, None] if images.dim() == 3 else images.permute(0, 3, 1, 2)
    if resize is None or images.shape[2:] == (resize, resize):
        images = images.to(torch.float32, memory_format=torch.contiguous_format)
    else:
        images = _resized(images, resize)
    mean, std = (torch.tensor(part, device=images.device).view(1, -1, 1, 1) for part in (dataset.mean, dataset.std))
    return images.div_(255).sub_(mean).div_(std)


def _resized(images: Tensor, side: int) -> Tensor:
    """Return byte images as real numbers of another size; only the new ones are held as real numbers all at once."""
    resized = torch.empty(*images.shape[:2], side, side, device=images.device)
    for start in range(0, len(images), RESIZED_AT_ONCE):
        some = images[start : start + RESIZED_AT_ONCE].to(torch.float32, memory_format=torch.contiguous_format)
        resized[start : start + len(some)] = F.interpolate(some, (side, side), mode="bilinear", antialias=True)
    return resized
