"""Messages of Flower as plain settings and numpy arrays, read without trust: arrays only, no pickle."""

import io
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from cofair.flower.wire import Arrays, Expected, RefusedError

CONFIG, ARRAYS = "config", "arrays"
Plain = int | float | bool | str | list[str] | list[int]
_HEADER = 256  # bytes that a header of an array may take beside its numbers


def content(config: Mapping[str, Plain], arrays: Mapping[str, np.ndarray[Any, Any]] | None = None) -> RecordDict:
    """Return settings and arrays as what a message carries."""
    records = RecordDict({CONFIG: ConfigRecord(dict(config))})
    if arrays:
        records[ARRAYS] = array_record(arrays)
    return records


def array_record(arrays: Mapping[str, np.ndarray[Any, Any]]) -> ArrayRecord:
    """Return arrays as Flower keeps them."""
    return ArrayRecord(OrderedDict((name, Array(values)) for name, values in arrays.items()))


def config_of(message: Message) -> dict[str, Any]:
    """Return the settings of a message."""
    found = message.content.config_records.get(CONFIG)
    if found is None:
        raise RefusedError("it holds no settings")
    return dict(found)


def says_lost(message: Message) -> bool:
    """Tell whether a client answers that it has lost what the message builds on."""
    found = message.content.config_records.get(CONFIG)
    return found is not None and found.get("status") == "lost"


def arrays_of(message: Message, allowed: Mapping[str, Expected]) -> Arrays:
    """Return the arrays of a message, refusing those that were not asked for, of a wrong type or too large."""
    found = message.content.array_records.get(ARRAYS, ArrayRecord())
    arrays: Arrays = {}
    for name, array in found.items():
        if name not in allowed:
            raise RefusedError(f"it holds {name!r}, which nobody asked for")
        arrays[name] = _read(name, array, allowed[name])
    return arrays


def payload(records: RecordDict) -> int:
    """Return the bytes of the arrays that a message carries, with their headers."""
    return sum(len(array.data) for record in records.array_records.values() for array in record.values())


def _read(name: str, array: Array, wanted: Expected) -> np.ndarray[Any, Any]:
    """Return one array; its header is checked before memory is set aside for what it claims to hold."""
    if len(array.data) > wanted.most + _HEADER:
        raise RefusedError(f"its {name} are too large: {len(array.data)} bytes, of which {wanted.most} are allowed")
    stream = io.BytesIO(array.data)
    try:
        version = np.lib.format.read_magic(stream)
        if version != (1, 0) or array.stype != "numpy.ndarray":
            raise ValueError
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(stream)
    except (ValueError, EOFError, SyntaxError):
        raise RefusedError(f"its {name} are not an array") from None
    if dtype != wanted.dtype:
        raise RefusedError(f"its {name} have type {dtype} and not {wanted.dtype}")
    body = memoryview(array.data)[stream.tell() :]
    if fortran or len(shape) != 1 or shape[0] * dtype.itemsize != len(body):
        raise RefusedError(f"its {name} have shape {shape}, which is not a list of what it holds")
    return np.frombuffer(body, dtype)
