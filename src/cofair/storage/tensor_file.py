"""Typed objects full of tensors as one safetensors file: no pickle, and a checksum over all of it.

Tensors are stored as in any safetensors file; the objects that they belong to are JSON in its metadata. When a file is
read, classes come from the caller's template, never from the file.
"""

import hashlib
import json
import os
import typing
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from cofair.errors import RunError, UsageError

_KINDS = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip
_ALIGNMENT = 8  # bytes


def write(path: Path, facts: Mapping[str, Any], value: Any) -> None:
    """Write a value with some facts about it, and wait until the disk has them."""
    shelf = Shelf()
    text = json.dumps({"facts": dict(facts), "value": encode(value, shelf)})
    header, end = {}, 0
    for name, tensor in shelf.tensors.items():
        begin, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": _KINDS[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    data = [raw(tensor) for tensor in shelf.tensors.values()]
    whole = {"__metadata__": {"cofair": text, "sha256": _checksum(text, header, data)}, **header}
    encoded = json.dumps(whole).encode()
    encoded += b" " * (-len(encoded) % _ALIGNMENT)
    with path.open("wb") as file:
        file.write(len(encoded).to_bytes(8, "little"))
        file.write(encoded)
        for part in data:
            file.write(part)
        file.flush()
        os.fsync(file.fileno())


def raw(tensor: Tensor) -> memoryview:
    """Return a tensor's bytes in order."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data


class TensorFile:
    """A file that was read completely and has the right checksum."""

    def __init__(self, path: Path) -> None:
        """Read and check a file."""
        self.path = path
        try:
            raw = path.read_bytes()
        except OSError as error:
            raise RunError(f"Cannot read {path}: {error.strerror}.") from None
        try:
            end = 8 + int.from_bytes(raw[:8], "little")
            header = json.loads(raw[8:end])
            metadata = header.pop("__metadata__")
            text, data = metadata["cofair"], memoryview(raw)[end:]
            if _checksum(text, header, [data]) != metadata["sha256"]:
                raise ValueError("checksum")
            document = json.loads(text)
            self.facts: dict[str, Any] = document["facts"]
            self._structure = document["value"]
            self._tensors = safetensors.torch.load(raw)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError, safetensors.SafetensorError):
            raise RunError(f"{path} is damaged: it was cut off or altered.") from None

    def value(self, template: Any, device: torch.device) -> Any:
        """Return the value that was written; its classes must be among the template's."""
        try:
            known = {cls.__qualname__: cls for cls in _classes(template)}
            return _decode(self._structure, _StoredTensors(self._tensors, device), known)
        except (ValueError, TypeError, LookupError, AttributeError, RuntimeError):  # RecursionError is one
            raise RunError(f"{self.path} does not fit this run: it was written for another method.") from None


class Shelf:
    """The tensors of a file by name; a tensor that is used several times is stored once."""

    def __init__(self) -> None:
        """Start empty."""
        self.tensors: dict[str, Tensor] = {}
        self._names: dict[Any, str] = {}

    def put(self, value: Tensor) -> str:
        """Add a tensor and return its name."""
        where = value.data_ptr() if value.numel() else id(value)  # the address of any empty tensor may be 0
        same = (where, value.dtype, value.device, value.shape, value.stride())
        if same not in self._names:
            self._names[same] = str(len(self.tensors))
            self.tensors[self._names[same]] = value.detach().cpu().contiguous()
        return self._names[same]


def encode(value: Any, shelf: Shelf, where: str = "state") -> Any:
    """Return a value as JSON; its tensors go on the shelf."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Tensor) and value.dtype in _KINDS and value.layout is torch.strided:
        return ["tensor", shelf.put(value), list(value.stride()), "cpu" if value.device.type == "cpu" else "device"]
    if is_dataclass(value) and not isinstance(value, type):
        own = [[f.name, encode(getattr(value, f.name), shelf, f"{where}.{f.name}")] for f in fields(value) if f.init]
        return ["dataclass", type(value).__qualname__, own]
    if isinstance(value, tuple | list):
        kind = "tuple" if isinstance(value, tuple) else "list"
        return [kind, [encode(item, shelf, f"{where}[{i}]") for i, item in enumerate(value)]]
    if isinstance(value, Mapping):
        pairs = [[encode(key, shelf, where), encode(item, shelf, f"{where}[{key!r}]")] for key, item in value.items()]
        return ["dict", pairs]
    kind = f"a tensor of {value.dtype}" if isinstance(value, Tensor) else f"of type {type(value).__name__}"
    raise UsageError(
        f"A checkpoint cannot hold {where}, which is {kind}: use tensors, numbers, text, tuples, dictionaries and "
        "dataclasses, or set run.checkpoint_every = 0."
    )


class _StoredTensors:
    """The tensors of a file, laid out in memory as they were; those that were the same object are so again."""

    def __init__(self, tensors: Mapping[str, Tensor], device: torch.device) -> None:
        self._tensors, self._device = tensors, device
        self._made: dict[tuple[str, tuple[int, ...], str], Tensor] = {}

    def take(self, name: str, stride: list[int], where: str) -> Tensor:
        key = (name, tuple(stride), where)
        if key not in self._made:
            device = self._device if where == "device" else torch.device("cpu")
            self._made[key] = _with_strides(self._tensors[name], stride, device)
        return self._made[key]


def _decode(structure: Any, tensors: _StoredTensors, known: Mapping[str, type]) -> Any:
    if not isinstance(structure, list):
        return structure
    kind, *parts = structure
    if kind == "tensor":
        return tensors.take(*parts)
    if kind == "dataclass":
        name, own = parts
        return known[name](**{key: _decode(value, tensors, known) for key, value in own})
    if kind == "dict":
        pairs = [[_decode(part, tensors, known) for part in pair] for pair in parts[0]]
        return dict(pairs)
    items = [_decode(item, tensors, known) for item in parts[0]]
    return {"tuple": tuple, "list": list}[kind](items)


def _with_strides(values: Tensor, stride: list[int], device: torch.device) -> Tensor:
    """Return values in their old memory layout: it decides which kernels add them up, and so the last bit."""
    shown_once = values[tuple(slice(0, 1) if step == 0 else slice(None) for step in stride)]
    made = torch.empty_strided(shown_once.shape, stride, dtype=values.dtype, device=device)
    return made.copy_(shown_once).expand(values.shape)


def _classes(template: Any) -> Iterator[type]:
    """Find the dataclasses of a value and of everything in it, including those that its fields may hold later."""
    waiting, seen = [template], set[Any]()
    while waiting:
        one = waiting.pop()
        if isinstance(one, tuple | list):
            waiting += one
        elif isinstance(one, Mapping):
            waiting += one.values()
        elif is_dataclass(one) and not isinstance(one, type):
            waiting += [type(one), *[getattr(one, f.name) for f in fields(one)]]
        elif isinstance(one, type) and is_dataclass(one) and one not in seen:
            seen.add(one)
            yield one
            try:
                waiting += typing.get_type_hints(one).values()
            except NameError:  # hints of a class made inside a function
                continue
        elif not isinstance(one, type):
            waiting += typing.get_args(one)


def _checksum(text: str, header: Mapping[str, Any], data: list[memoryview]) -> str:
    sha = hashlib.sha256(json.dumps([text, header], sort_keys=True).encode())
    for part in data:
        sha.update(part)
    return sha.hexdigest()
