"""A federation of a table: whose each row is, what is predicted, and which rows the server and the test set get."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from cofair import randomness
from cofair.data import scenes
from cofair.data.federation import Federation, Samples
from cofair.data.scene_request import SceneRequest
from cofair.data.tables.features import (
    Category,
    Rows,
    category,
    check_complete,
    few_values,
    fitted,
    numbers,
    read_features,
)
from cofair.data.tables.table_file import Table, read_table, table_of
from cofair.errors import UsageError

MOST_NUMBERS = 30  # different numbers that are labels of classes; more of them are amounts


@dataclass(frozen=True, eq=False)
class _Targets:
    """The labels of all rows, and for what they are not classes, one stratum."""

    y: Tensor
    strata: Rows
    class_names: tuple[str, ...]


def federation_of(
    data: Any, label: str | None, by: str | None, spread: SceneRequest, *, validation: float, test: float,
    leave_out: Sequence[str], seed: int,
) -> Federation:  # fmt: skip
    """Make a federation of a file or a DataFrame; its clients are the values of the column `by`, or a scene's."""
    if not isinstance(data, str | pd.DataFrame):
        raise UsageError(f"data must be a name, a file such as hospitals.csv or a DataFrame, but is {data!r}.")
    table = read_table(data) if isinstance(data, str) else table_of(data)
    if label is None:
        known = ", ".join(table.frame.columns)
        raise UsageError(f"{table.name}: name the column to predict as its label, one of {known}.")
    label, by, leave_out = str(label), None if by is None else str(by), [str(column) for column in leave_out]
    for column in (label, *([] if by is None else [by]), *leave_out):
        table.check_column(column)
        if column not in leave_out:
            check_complete(table, column, needed=True)
    if by == label:
        raise UsageError(f"{table.name}: column {label!r} cannot both be predicted and say whose a row is.")
    features = [name for name in table.frame.columns if name not in (label, by, *leave_out)]
    if not features:
        raise UsageError(f"{table.name} has no column to predict {label!r} from.")
    owners = None if by is None else _owners(table, by)
    targets, columns = _targets(table, label), read_features(table, features)

    rng = randomness.numpy_generator(seed, "federation")
    owner = np.zeros(len(table.frame), np.int64) if owners is None else owners.codes
    tested, pool = held_out(owner, targets.strata, np.arange(len(owner)), test, rng)
    server, pool = held_out(owner, targets.strata, pool, validation, rng)
    if not len(tested) or (validation and not len(server)):
        raise UsageError(f"{table.name} has {len(owner)} rows, too few to train, to validate and to test.")
    if owners is None:
        shares = spread.shares(table.name, targets.strata[pool], pool, max(1, len(targets.class_names)), rng)
    else:
        ends = np.cumsum(np.bincount(owner[pool]))  # every owner has kept a row
        own_rows = np.split(pool[np.argsort(owner[pool], kind="stable")], ends[:-1])
        shares = [scenes.Share(own, targets.strata[own]) for own in own_rows]
    encoding = fitted(columns, np.concatenate([share.indices for share in shares]))
    inputs = encoding.encoded(columns)

    def samples(rows: Rows) -> Samples:
        return Samples(inputs[torch.from_numpy(rows)], targets.y[torch.from_numpy(rows)])

    is_classes = bool(targets.class_names)  # whose labels a scene may have changed
    federation = Federation.from_pool(
        inputs,
        [
            (torch.from_numpy(own.indices), torch.from_numpy(own.labels) if is_classes else targets.y[own.indices])
            for own in shares
        ],
        test=samples(tested),
        validation=samples(server) if len(server) else None,
        classes=len(targets.class_names) or None,
        names=None if owners is None else owners.values,
    )
    federation.encoding, federation.class_names = encoding, targets.class_names
    return federation


def held_out(owner: Rows, strata: Rows, rows: Rows, fraction: float, rng: np.random.Generator) -> tuple[Rows, Rows]:
    """Return a random fraction of rows, and the rest: the same fraction of every owner's rows and of each stratum.

    Every owner keeps at least one row.
    """
    if not 0 <= fraction < 1:
        raise UsageError(f"The held-out fraction is {fraction}: it must be at least 0 and below 1.")
    rows = rng.permutation(rows)
    _, first = np.unique(owner[rows], return_index=True)
    free = np.delete(rows, first)
    free = free[np.lexsort((strata[free], owner[free]))]
    # every 1/fraction-th row of this order is taken: no owner and no class gets more than one too many
    ends = np.floor((np.arange(len(free) + 1)) * fraction + rng.random())
    taken = np.diff(ends) > 0
    return np.sort(free[taken]), np.sort(np.concatenate([rows[first], free[~taken]]))


def _owners(table: Table, by: str) -> Category:
    owners = category(table, by)
    if len(owners.values) > len(table.frame) / 2:
        raise UsageError(
            f"{table.name}: column {by!r} makes {len(owners.values):,} clients of {len(table.frame):,} rows: name a "
            "column that says whose a row is, such as a hospital."
        )
    return owners


def _targets(table: Table, label: str) -> _Targets:
    """Return labels as classes, or as real numbers where they have fractions or too many values."""
    values = numbers(table, label)
    if values is not None and (bool((values % 1 != 0).any()) or len(np.unique(values)) > MOST_NUMBERS):
        return _Targets(torch.from_numpy(values.astype(np.float32)), np.zeros(len(values), np.int64), ())
    classes = few_values(table, label)
    if len(classes.values) < 2:
        raise UsageError(
            f"{table.name}: every row has {label} = {classes.values[0]}: there is nothing to learn from one class."
        )
    return _Targets(torch.from_numpy(classes.codes), classes.codes, classes.values)
