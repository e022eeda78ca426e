"""Flower's messages as plain settings and numpy arrays, read without trust: arrays only, no pickle."""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from cofair.flower.printable_text import printable
from cofair.flower.wire import Arrays, Expected, RefusedError

CONFIG, ARRAYS = "config", "arrays"
Plain = int | float | bool | str | list[str] | list[int]
RAW = "cofair.raw"  # how arrays are written: only their numbers, one after another, lowest byte first


def content(config: Mapping[str, Plain], arrays: Mapping[str, np.ndarray[Any, Any]] | None = None) -> RecordDict:
    """Return settings and arrays as the content of a message."""
    records = RecordDict({CONFIG: ConfigRecord(dict(config))})
    if arrays:
        records[ARRAYS] = array_record(arrays)
    return records


def array_record(arrays: Mapping[str, np.ndarray[Any, Any]]) -> ArrayRecord:
    """Return arrays in Flower's form."""
    return ArrayRecord(
        OrderedDict(
            (name, Array(str(values.dtype), tuple(values.shape), RAW, np.ascontiguousarray(values).tobytes()))
            for name, values in arrays.items()
        )
    )


def numbers(array: Array) -> np.ndarray[Any, Any]:
    """Return the values of an array that this side wrote itself."""
    return np.frombuffer(array.data, np.dtype(array.dtype)).reshape(array.shape)


def config_of(message: Message) -> dict[str, Any]:
    """Return the settings of a message."""
    found = message.content.config_records.get(CONFIG)
    if found is None:
        raise RefusedError("it holds no settings")
    return dict(found)


def says_lost(message: Message) -> bool:
    """Return whether a client answers that it has lost what the message builds on."""
    found = message.content.config_records.get(CONFIG)
    return found is not None and found.get("status") == "lost"


def arrays_of(message: Message, allowed: Mapping[str, Expected]) -> Arrays:
    """Return the arrays of a message, refusing any that was not asked for, has the wrong type or is too large."""
    found = message.content.array_records.get(ARRAYS, ArrayRecord())
    arrays: Arrays = {}
    for name, array in found.items():
        if name not in allowed:
            raise RefusedError(f"it holds {printable(name, 40)!r}, which nobody asked for")
        arrays[name] = _read(name, array, allowed[name])
    return arrays


def payload(records: RecordDict) -> int:
    """Return the bytes of the arrays that a message carries."""
    return sum(len(array.data) for record in records.array_records.values() for array in record.values())


def _read(name: str, array: Array, wanted: Expected) -> np.ndarray[Any, Any]:
    """Return one array; no memory is allocated for what it merely claims to hold."""
    if len(array.data) > wanted.most:
        raise RefusedError(f"its {name} are too large: {len(array.data)} bytes, of which {wanted.most} are allowed")
    if array.stype != RAW:
        raise RefusedError(f"its {name} are not written as plain numbers")
    if array.dtype != str(wanted.dtype):
        raise RefusedError(f"its {name} have type {printable(array.dtype, 40)} and not {wanted.dtype}")
    shape = tuple(array.shape)
    if len(shape) != 1 or shape[0] * wanted.dtype.itemsize != len(array.data):
        raise RefusedError(f"its {name} have shape {shape[:4]}, which is not a list of what it holds")
    return np.frombuffer(array.data, wanted.dtype)
