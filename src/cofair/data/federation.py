"""A federation: the clients' data, the server's validation set (if it has one), the test set."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from cofair.data.client_table import ClientTable
from cofair.errors import UsageError

if TYPE_CHECKING:
    from cofair.data.tables.features import Encoding

Arrays = tuple[Any, Any]  # inputs and labels as tensors, numpy arrays or nested lists
Given = Arrays | Dataset[Any] | DataLoader[Any]  # where samples come from; a Dataset gives pairs (input, label)


@dataclass(frozen=True)
class Samples:
    """Inputs and labels."""

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.x)

    def to(self, device: torch.device, dtype: torch.dtype) -> "Samples":
        """Return the samples on a device, real numbers in the given type."""
        return Samples(_moved(self.x, device, dtype), _moved(self.y, device, dtype))


class Federation:
    """Clients with data of their own, and what the server has.

    Inputs are real numbers (images, tables) or integers (token ids); uint8 inputs are scaled to [0, 1].
    Labels are integers from 0, or real numbers for a custom loss. A client may be empty: it uploads
    nothing, and what it brings is what the initial model can do. All arrays are copied: changing them later changes
    nothing here.
    """

    class_names: tuple[str, ...] = ()  # of a table: what its classes are called there
    encoding: "Encoding | None" = None  # of a table: how its columns became the inputs

    def __init__(
        self, clients: Sequence[Given] | Mapping[str, Given], *, test: Given, validation: Given | None = None,
        names: Sequence[str] | None = None, classes: int | None = None,
    ) -> None:  # fmt: skip
        """Take each client's (inputs, labels), the test set, and the server's validation set if it has one.

        A dictionary gives the clients by their names.
        """
        if isinstance(clients, Mapping):
            if names is not None:
                raise UsageError("The clients have names in their dictionary already: leave out names=.")
            names, clients = [str(name) for name in clients], list(clients.values())
        if not clients:
            raise UsageError("A federation needs at least one client.")
        self.names = _names(names, len(clients))
        shares = [_samples(arrays, f"client {name!r}") for name, arrays in zip(self.names, clients, strict=True)]
        self.test = _copied(_samples(test, "the test set"))
        self.validation = None if validation is None else _copied(_samples(validation, "the validation set"))
        if not len(self.test):
            raise UsageError("The test set is empty: rewards could not be measured.")
        if self.validation is not None and not len(self.validation):
            raise UsageError("The validation set is empty: give some samples, or validation=None.")
        filled = [share for share in shares if len(share)]
        if not filled:
            raise UsageError("All clients are empty: at least one must have data.")
        named = [(f"client {name!r}", share) for name, share in zip(self.names, shares, strict=True) if len(share)]
        named.append(("the test set", self.test))
        if self.validation is not None:
            named.append(("the validation set", self.validation))
        _check_alike(named)
        self.classes = _classes(named, classes)
        self.inputs = torch.cat([share.x for share in filled])
        self.labels = torch.cat([share.y for share in filled])
        self.rows = torch.arange(len(self.inputs))
        self.sizes = torch.tensor([len(share) for share in shares])

    @classmethod
    def from_pool(
        cls,
        inputs: Tensor,
        shares: Sequence[Arrays],
        *,
        test: Samples,
        validation: Samples | None,
        classes: int | None,
        names: Sequence[str] | None = None,
    ) -> "Federation":
        """Make a federation whose clients are (indices, labels) into one pool of inputs; nothing is copied."""
        federation = cls.__new__(cls)
        federation.names = _names(names, len(shares))
        federation.test, federation.validation, federation.classes = test, validation, classes
        federation.inputs = inputs
        federation.rows = torch.cat([torch.as_tensor(indices) for indices, _ in shares])
        federation.labels = torch.cat([torch.as_tensor(labels) for _, labels in shares])
        federation.sizes = torch.tensor([len(indices) for indices, _ in shares])
        return federation

    @classmethod
    def concat(cls, federations: Sequence["Federation"]) -> "Federation":
        """Return the federation whose clients are those of all, in order; test and validation are the first one's.

        They must lie in one pool of inputs. A client's name is its federation's place and its own, as in "2/7".
        """
        first = federations[0]
        if any(other.inputs is not first.inputs for other in federations):
            raise UsageError("Federations can be joined only where they share one pool of inputs.")
        return first.replaced(
            names=tuple(f"{k}/{name}" for k, own in enumerate(federations) for name in own.names),
            rows=torch.cat([own.rows for own in federations]),
            labels=torch.cat([own.labels for own in federations]),
            sizes=torch.cat([own.sizes for own in federations]),
        )

    def replaced(
        self, *, names: tuple[str, ...] | None = None, inputs: Tensor | None = None, rows: Tensor | None = None,
        labels: Tensor | None = None, sizes: Tensor | None = None, test: Samples | None = None,
        validation: Samples | None = None,
    ) -> "Federation":  # fmt: skip
        """Return this federation with some parts replaced; they are taken as they are, and all others are shared."""
        other = copy.copy(self)
        other.names = self.names if names is None else names
        other.inputs = self.inputs if inputs is None else inputs
        other.rows = self.rows if rows is None else rows
        other.labels = self.labels if labels is None else labels
        other.sizes = self.sizes if sizes is None else sizes
        other.test = self.test if test is None else test
        other.validation = self.validation if validation is None else validation
        return other

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        validation = 0 if self.validation is None else len(self.validation)
        return (
            f"Federation({len(self)} clients with {int(self.sizes.min())} to {int(self.sizes.max())} samples of "
            f"shape {self.input_shape}, {validation} for validation, {len(self.test)} for testing)"
        )

    def places(self) -> Tensor:
        """Return each client's place (N,) in the order of names, shorter names first: the same in any order of clients.

        What is drawn or decided for a place and not for a row moves with the client when clients are permuted.
        """
        order = sorted(range(len(self)), key=lambda i: (len(self.names[i]), self.names[i]))
        return torch.tensor(order).argsort()

    @property
    def here(self) -> bool:
        """Say whether the clients' data is on this machine."""
        return True

    @property
    def device(self) -> torch.device:
        """Return the device of the data."""
        return self.inputs.device

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Return the shape of one input."""
        return tuple(self.inputs.shape[1:])

    @property
    def offsets(self) -> Tensor:
        """Return where each client's samples start in `rows` and `labels`."""
        return torch.cumsum(self.sizes, 0) - self.sizes

    def client(self, i: int) -> Samples:
        """Return the samples of one client."""
        start = int(self.offsets[i])
        where = slice(start, start + int(self.sizes[i]))
        return Samples(self.inputs[self.rows[where]], self.labels[where])

    def class_counts(self) -> Tensor:
        """Return how many samples of each class each client has: (N, classes)."""
        if self.classes is None:
            raise UsageError("This federation's labels are not classes, so classes cannot be counted.")
        owner = torch.repeat_interleave(torch.arange(len(self)), self.sizes)
        counts = torch.zeros(len(self), self.classes, dtype=torch.int64)
        return counts.index_put_((owner, self.labels.cpu()), torch.ones_like(owner), accumulate=True)

    def present(self, participants: Tensor | None) -> Tensor:
        """Return which participants can train: those with data (N,)."""
        filled = (self.sizes > 0).to(self.device)
        return filled if participants is None else filled & participants

    def table(self, keys: Tensor) -> ClientTable:
        """Return the clients' samples as engines read them, with one random key per client."""
        offsets = self.offsets.to(self.device)
        return ClientTable(self.inputs, self.rows, self.labels, offsets, self.sizes, keys)

    def with_classes(self) -> "Federation":
        """Return this federation with real labels 0.0 and 1.0 as classes 0 and 1; itself if they are something else."""
        sets = [self.labels, self.test.y, *([] if self.validation is None else [self.validation.y])]
        if self.classes is not None or not all(_are_binary(labels) for labels in sets):
            return self
        whole = self.replaced(
            labels=self.labels.flatten().long(), test=Samples(self.test.x, self.test.y.flatten().long()),
            validation=self.validation and Samples(self.validation.x, self.validation.y.flatten().long()),
        )  # fmt: skip
        whole.classes = 2
        return whole

    def to(self, device: torch.device | str, dtype: torch.dtype = torch.float32) -> "Federation":
        """Return this federation with its data on a device, real numbers in the given type."""
        device = torch.device(device)
        return self.replaced(
            inputs=_moved(self.inputs, device, dtype), labels=_moved(self.labels, device, dtype),
            rows=self.rows.to(device), test=self.test.to(device, dtype),
            validation=None if self.validation is None else self.validation.to(device, dtype),
        )  # fmt: skip


def _are_binary(labels: Tensor) -> bool:
    return labels.numel() == len(labels) and bool(((labels == 0) | (labels == 1)).all())


def _moved(values: Tensor, device: torch.device, dtype: torch.dtype) -> Tensor:
    return values.to(device=device, dtype=dtype if values.is_floating_point() else values.dtype)


def _names(names: Sequence[str] | None, count: int) -> tuple[str, ...]:
    if names is None:
        return tuple(str(i) for i in range(count))
    if len(names) != count or len(set(names)) != count:
        raise UsageError(f"{count} clients need {count} different names, but got {list(names)!r}.")
    return tuple(names)


def _samples(given: Given, owner: str) -> Samples:
    arrays = _stacked(given, owner) if isinstance(given, Dataset | DataLoader) else given
    try:
        x, y = arrays
    except (TypeError, ValueError):
        raise UsageError(f"The data of {owner} must be a pair (inputs, labels) or a torch Dataset.") from None
    x, y = _tensor(x, f"inputs of {owner}"), _tensor(y, f"labels of {owner}")
    if len(x) != len(y):
        raise UsageError(f"The data of {owner} has {len(x)} inputs but {len(y)} labels.")
    if x.dtype == torch.uint8:
        x = x.float() / 255
    if x.is_floating_point():
        x = x.to(torch.float32) if x.dtype != torch.float64 else x
        _check_finite(x, f"inputs of {owner}")
    else:
        x = x.long()
    if y.is_floating_point():
        _check_finite(y, f"labels of {owner}")
    else:
        y = y.long()
        if y.dim() != 1:
            raise UsageError(f"The labels of {owner} must be one integer per sample, not shape {tuple(y.shape)}.")
    return Samples(x, y)


def _stacked(dataset: Dataset[Any] | DataLoader[Any], owner: str) -> Arrays:
    """Return the samples of a dataset as one pair of tensors; transforms are applied once."""
    source: Any = dataset.dataset if isinstance(dataset, DataLoader) else dataset
    if not hasattr(source, "__len__"):
        raise UsageError(f"The torch Dataset of {owner} has no length: give one with __len__ and __getitem__.")
    pairs = [source[i] for i in range(len(source))]
    try:
        x = [torch.as_tensor(np.asarray(x) if not isinstance(x, Tensor) else x) for x, _ in pairs]
        y = [torch.as_tensor(y) for _, y in pairs]
        return (torch.stack(x), torch.stack(y)) if pairs else ([], [])
    except (TypeError, ValueError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise UsageError(f"The torch Dataset of {owner} must give samples (input, label) alike: {reason}") from None


def _tensor(values: Any, what: str) -> Tensor:
    try:
        tensor = values.detach() if isinstance(values, Tensor) else torch.from_numpy(_plain(np.asarray(values)))
    except (TypeError, ValueError) as error:
        raise UsageError(f"The {what} cannot be read as numbers: {str(error).splitlines()[0]}") from None
    if tensor.dim() == 0:
        raise UsageError(f"The {what} must have one row per sample, not be a single number.")
    if tensor.is_complex():
        raise UsageError(f"The {what} are complex numbers; give real ones.")
    return tensor


def _plain(array: np.ndarray) -> np.ndarray:
    """Return an array that torch can share: it warns about read-only memory and refuses negative strides."""
    return array if array.flags.writeable and all(stride >= 0 for stride in array.strides) else array.copy()


def _copied(samples: Samples) -> Samples:
    return Samples(samples.x.clone(), samples.y.clone())


def _check_finite(values: Tensor, what: str) -> None:
    if not values.numel():
        return
    low, high = values.aminmax()  # NaN wherever there is one
    largest = torch.finfo(torch.float32).max
    if -largest <= low and high <= largest:
        return
    fine = torch.isfinite(values)
    problem = "NaN or infinite values" if not bool(fine.all()) else "values too large for float32"
    fine &= values.abs() <= largest
    row = int((~fine).flatten(1).any(1).nonzero()[0]) if fine.dim() > 1 else int((~fine).nonzero()[0])
    raise UsageError(f"The {what} hold {problem} (first in sample {row}).")


def _check_alike(named: Sequence[tuple[str, Samples]]) -> None:
    first, reference = named[0]
    for name, samples in named[1:]:
        if samples.x.shape[1:] != reference.x.shape[1:]:
            raise UsageError(
                f"The inputs of {name} have shape {tuple(samples.x.shape[1:])}, those of {first} "
                f"{tuple(reference.x.shape[1:])}: all clients, validation and test must have the same shape."
            )
        if samples.x.is_floating_point() != reference.x.is_floating_point():
            raise UsageError(f"The inputs of {name} and of {first} mix real numbers and integers.")
        if samples.y.is_floating_point() != reference.y.is_floating_point():
            raise UsageError(f"The labels of {name} and of {first} mix real numbers and integers.")


def _classes(named: Sequence[tuple[str, Samples]], classes: int | None) -> int | None:
    if named[0][1].y.is_floating_point():
        if classes is not None:
            raise UsageError("classes is given, but the labels are real numbers.")
        return None
    highest = max(int(samples.y.max()) for _, samples in named)
    limit = highest + 1 if classes is None else classes
    for name, samples in named:
        low, high = int(samples.y.min()), int(samples.y.max())
        if low < 0 or high >= limit:
            bad = low if low < 0 else high
            raise UsageError(
                f"The labels of {name} contain {bad}; with {limit} classes they run from 0 to {limit - 1}."
            )
    if len(torch.unique(torch.cat([samples.y for _, samples in named]))) < 2:
        raise UsageError("All labels are the same class: there is nothing to learn.")
    return limit
