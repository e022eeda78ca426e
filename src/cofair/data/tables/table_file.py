"""A table in a file, CSV or Parquet, read as spreadsheets write it: a byte-order mark and semicolons are no matter."""

import csv
import gzip
import hashlib
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TextIO

import pandas as pd

from cofair.errors import UsageError, nearest

# pandas takes more for missing by itself, such as "None", which can be an answer
MISSING = ("", "NA", "N/A", "n/a", "NaN", "nan", "NULL", "null", "#N/A")
SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}


@dataclass(frozen=True, eq=False)
class Table:
    """Rows under named columns; `place` says where a row stands, in the words of whoever made the table."""

    name: str
    frame: pd.DataFrame
    place: Callable[[int], str]

    def check_column(self, column: str) -> None:
        """Refuse a column that is not there."""
        if column not in self.frame.columns:
            raise UsageError(f"{self.name} has no column {column!r}: {nearest(column, self.frame.columns)}")


def table_of(frame: pd.DataFrame) -> Table:
    """Return a DataFrame as a table whose rows go by their index."""
    index = frame.index
    named = frame.set_axis([str(column) for column in frame.columns], axis=1).reset_index(drop=True)
    return _checked(Table("the DataFrame", named, lambda row: f"the DataFrame, row {index[row]}"), list(named.columns))


def read_table(path: str) -> Table:
    """Read a table's file; the last one is kept, since every seed of a comparison reads it."""
    return _read(path, *_state(path))


def table_digest(path: str) -> str:
    """Return a hash of a table's file."""
    return _digest(path, *_state(path))


def _state(path: str) -> tuple[int, int]:
    """Return what changes with the file."""
    try:
        there = Path(path).stat()
    except OSError as error:
        raise UsageError(f"Cannot read the table {path} from {Path.cwd()}: {error.strerror}.") from None
    return there.st_mtime_ns, there.st_size


@lru_cache(maxsize=1)
def _digest(path: str, changed: int, size: int) -> str:
    with _explained(path), Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@lru_cache(maxsize=1)
def _read(path: str, changed: int, size: int) -> Table:
    if not size:
        raise UsageError(f"{path} is empty.")
    return _parquet(path) if path.lower().endswith(".parquet") else _csv(path)


def _parquet(path: str) -> Table:
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        raise UsageError(f"{path} needs a package that reads Parquet: pip install 'cofair[parquet]'.") from None
    try:
        frame = pd.read_parquet(path, engine="pyarrow")
    except (OSError, ValueError) as error:  # pyarrow's own errors are both
        raise UsageError(f"{path} cannot be read as Parquet: {str(error).splitlines()[0]}") from None
    if frame.index.name is not None:
        frame = frame.reset_index()
    return _checked(
        Table(path, frame.reset_index(drop=True), lambda row: f"{path}, row {row + 1}"), list(frame.columns)
    )


def _csv(path: str) -> Table:
    with _explained(path), _opened(path) as file:
        first = next((line for line in file if line.strip()), "")
        separator = max(SEPARATORS, key=first.count)
    with _explained(path):
        names = [name.strip() for name in next(_records(path, separator), (0, [""]))[1]]
        _check_header(path, names)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error", pd.errors.ParserWarning)  # rows that are longer than the header
                frame = pd.read_csv(
                    path, sep=separator, header=0, index_col=False, encoding="utf-8-sig", low_memory=False,
                    keep_default_na=False, na_values=MISSING, skipinitialspace=True,
                )  # fmt: skip
        except (pd.errors.ParserError, pd.errors.ParserWarning) as error:
            raise UsageError(_where_it_breaks(path, separator, len(names), error)) from None
    frame.columns = pd.Index(names)
    if separator == ";":
        frame = frame.apply(_with_decimal_points)
    if names[0] == "" and frame.iloc[:, 0].equals(pd.Series(range(len(frame)))):  # pandas's own row numbers
        frame = frame.iloc[:, 1:]
    return _checked(Table(path, frame, lambda row: f"{path}, {_line(path, separator, row)}"), list(frame.columns))


@contextmanager
def _explained(path: str) -> Iterator[None]:
    try:
        yield
    except UnicodeDecodeError:
        raise UsageError(
            f"{path} is not text in UTF-8: save it again as UTF-8 ('CSV UTF-8' in spreadsheets)."
        ) from None
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or "it is damaged"
        raise UsageError(f"Cannot read the table {path}: {reason}.") from None
    except csv.Error as error:
        raise UsageError(f"{path} cannot be read as CSV: {error}.") from None


def _opened(path: str) -> TextIO:
    if path.lower().endswith(".gz"):
        return gzip.open(path, "rt", encoding="utf-8-sig", newline="")
    return Path(path).open(encoding="utf-8-sig", newline="")


def _records(path: str, separator: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the records that are not blank, each with the line it begins in: a quoted value may have several lines."""
    with _opened(path) as file:
        reader, line = csv.reader(file, delimiter=separator, skipinitialspace=True), 1
        for record in reader:
            if len(record) > 1 or any(value.strip() for value in record):
                yield line, record
            line = reader.line_num + 1


def _line(path: str, separator: str, row: int) -> str:
    try:
        for count, (line, _) in enumerate(_records(path, separator)):
            if count == row + 1:
                return f"line {line}"
    except (OSError, ValueError, csv.Error):
        pass  # a value too long for Python's reader
    return f"row {row + 1}"


def _check_header(path: str, names: list[str]) -> None:
    if not any(names):
        raise UsageError(f"{path} is empty.")
    if all(name.replace(".", "").replace("-", "").isdigit() for name in names):
        raise UsageError(f"{path}, line 1: has numbers where the names of columns belong: add a line with names.")


def _where_it_breaks(path: str, separator: str, columns: int, error: Exception) -> str:
    for line, record in _records(path, separator):
        if len(record) != columns:
            return (
                f"{path}, line {line}: has {len(record)} values, but the first line names {columns} columns "
                f"(separated by {SEPARATORS[separator]})."
            )
    return f"{path} cannot be read as CSV: {str(error).splitlines()[0]}"


def _with_decimal_points(column: pd.Series) -> pd.Series:
    """Return a column with numbers such as 3,5, which go with semicolons, as numbers."""
    if not pd.api.types.is_string_dtype(column):
        return column
    numbers = pd.to_numeric(column.str.replace(",", ".", regex=False), errors="coerce")
    return numbers if (numbers.notna() | column.isna()).all() else column


def _checked(table: Table, names: list[str]) -> Table:
    for i, name in enumerate(names):
        if name == "":
            raise UsageError(f"{table.name}: column {i + 1} has no name.")
        if names.index(name) < i:
            where = f"columns {names.index(name) + 1} and {i + 1}"
            raise UsageError(f"{table.name} has two columns named {name!r} ({where}): rename one of them.")
    if not len(table.frame):
        raise UsageError(f"{table.name} has no rows.")
    return table
