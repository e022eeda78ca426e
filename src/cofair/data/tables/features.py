"""The columns of a table as a model takes them: numbers standardised, categories as one number for each value."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from cofair.data.tables.table_file import Table, table_of
from cofair.errors import UsageError

MOST_VALUES = 100  # different values of a category; a column with more is an identifier or free text
LEAVE_OUT = " (--leave-out, or leave_out in Python and TOML)"
_LARGEST = float(np.finfo(np.float32).max)

Numbers = NDArray[np.float64]
Rows = NDArray[np.int64]
Inputs = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Category:
    """Which of its values each row has, and the values in order."""

    codes: Rows
    values: tuple[str, ...]


@dataclass(frozen=True)
class NumberFeature:
    """A column of numbers, less their mean, divided by their standard deviation."""

    column: str
    mean: float
    deviation: float

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of what a model takes of it."""
        return (self.column,)

    def encoded(self, column: Numbers | Category) -> Inputs:
        """Return one number per row."""
        assert not isinstance(column, Category)
        standardised: Inputs = ((column - self.mean) / self.deviation).astype(np.float32)
        return standardised.reshape(-1, 1)


@dataclass(frozen=True)
class CategoryFeature:
    """A column of categories: one number per value, 1 where a row has it."""

    column: str
    values: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of what a model takes of it."""
        return tuple(f"{self.column}={value}" for value in self.values)

    def encoded(self, column: Numbers | Category) -> Inputs:
        """Return as many numbers per row as there are values; none of them is 1 where the value is not known."""
        assert isinstance(column, Category)
        place = {value: i for i, value in enumerate(self.values)}
        known = np.array([place.get(value, -1) for value in column.values])[column.codes]
        chosen: Inputs = (known[:, None] == np.arange(len(self.values))).astype(np.float32)
        return chosen


@dataclass(frozen=True)
class Encoding:
    """How a table's columns become a model's inputs; `encode` does the same to rows that come later."""

    features: tuple[NumberFeature | CategoryFeature, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Return a name for every input of the model."""
        return tuple(name for feature in self.features for name in feature.names)

    def encode(self, frame: pd.DataFrame) -> Tensor:
        """Return rows (n, inputs) of a DataFrame with the same columns as a model takes them."""
        table = table_of(frame)
        return self.encoded({feature.column: self._read(table, feature) for feature in self.features})

    def encoded(self, columns: dict[str, Numbers | Category]) -> Tensor:
        """Return columns that are read already as a model takes them."""
        parts = [feature.encoded(columns[feature.column]) for feature in self.features]
        return torch.from_numpy(np.concatenate(parts, axis=1))

    def describe(self) -> str:
        """Say in words what a model takes."""
        parts = [
            f"{own.column} less {own.mean:.6g}, divided by {own.deviation:.6g}"
            if isinstance(own, NumberFeature)
            else f"1 or 0 for each of {', '.join(own.names)}"
            for own in self.features
        ]
        return "one number per column: " + "; ".join(parts)

    def _read(self, table: Table, feature: NumberFeature | CategoryFeature) -> Numbers | Category:
        column = feature.column
        table.check_column(column)
        if isinstance(feature, CategoryFeature):
            return category(table, column)
        read = numbers(table, column)
        if read is None:
            raise UsageError(f"{table.name}: column {column!r} has texts, but had numbers when the model was trained.")
        return read


def read_features(table: Table, names: Sequence[str]) -> dict[str, Numbers | Category]:
    """Return columns as numbers or categories, or say which value is in the way."""
    found: dict[str, Numbers | Category] = {}
    for name in names:
        read = numbers(table, name)
        found[name] = few_values(table, name) if read is None else read
    return found


def fitted(columns: dict[str, Numbers | Category], rows: Rows) -> Encoding:
    """Return an encoding whose means and deviations are those of some rows, the ones that train."""
    return Encoding(tuple(
        CategoryFeature(name, column.values)
        if isinstance(column, Category)
        else NumberFeature(name, float(column[rows].mean()), float(column[rows].std()) or 1.0)
        for name, column in columns.items()
    ))  # fmt: skip


def numbers(table: Table, name: str) -> Numbers | None:
    """Return a column's numbers; None where it has categories."""
    column = table.frame[name]
    check_complete(table, name)
    dtype = column.dtype
    if isinstance(dtype, pd.CategoricalDtype) or pd.api.types.is_bool_dtype(column.infer_objects()):
        return None
    if pd.api.types.is_datetime64_any_dtype(dtype) or pd.api.types.is_timedelta64_dtype(dtype):
        raise UsageError(
            f"{table.name}: column {name!r} holds dates or times: turn it into numbers, such as days, or leave it out."
        )
    if not pd.api.types.is_numeric_dtype(dtype):
        try:
            column = pd.to_numeric(column, errors="coerce")
        except TypeError:
            return None
        if not _all_are_numbers(table, name, column.isna().to_numpy()):
            return None
    if pd.api.types.is_complex_dtype(column.dtype):
        raise UsageError(f"{table.name}: column {name!r} holds complex numbers.")
    values = column.to_numpy(np.float64)
    wrong = np.flatnonzero(~(np.abs(values) <= _LARGEST))
    if len(wrong):
        raise UsageError(f"{table.place(int(wrong[0]))}: column {name!r} has a number that is not finite or too large.")
    return values


def category(table: Table, name: str) -> Category:
    """Return a column as categories, in the order of numbers or of the alphabet."""
    check_complete(table, name)
    column = table.frame[name]
    if not pd.api.types.is_numeric_dtype(column.dtype) or pd.api.types.is_bool_dtype(column.dtype):
        places, texts = pd.factorize(column.astype(str))
        codes, values = pd.factorize(pd.Index(texts).str.strip(), sort=True)  # "north " is no other hospital
        return Category(codes[places].astype(np.int64), tuple(values))
    if pd.api.types.is_float_dtype(column.dtype) and bool((column % 1 == 0).all()):
        column = column.astype("int64")  # as whole numbers become where a column once had gaps
    codes, values = pd.factorize(column, sort=True)
    return Category(codes.astype(np.int64), tuple(map(str, values)))


def few_values(table: Table, name: str) -> Category:
    """Return a column as categories, or say that there are too many of them."""
    read = category(table, name)
    if len(read.values) > MOST_VALUES:
        raise UsageError(
            f"{table.name}: column {name!r} has {len(read.values):,} different values, as identifiers and free texts "
            f"have (at most {MOST_VALUES} can be categories): leave it out{LEAVE_OUT}, or group its values."
        )
    return read


def check_complete(table: Table, name: str, *, needed: bool = False) -> None:
    """Refuse a column that lacks values; one that is not needed can also be left out."""
    missing = np.flatnonzero(table.frame[name].isna().to_numpy())
    if len(missing):
        others = f", as in {len(missing):,} rows" if len(missing) > 1 else ""
        remedy = "fill it in, or delete such rows" + ("." if needed else f", or leave the column out{LEAVE_OUT}.")
        raise UsageError(f"{table.place(int(missing[0]))}: column {name!r} has no value{others}: {remedy}")


def _all_are_numbers(table: Table, name: str, texts: NDArray[np.bool_]) -> bool:
    """Say whether all values are numbers, or none of them need be; refuse a few texts among numbers."""
    if 0 < texts.sum() < len(texts) / 2:
        row = int(np.flatnonzero(texts)[0])
        raise UsageError(
            f"{table.place(row)}: column {name!r} has {str(table.frame[name].iloc[row])!r}, but most rows have numbers "
            f"there: correct it, or leave the column out{LEAVE_OUT}."
        )
    return not texts.any()
