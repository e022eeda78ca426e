"""The methods: one paper a file, all of them the same few functions over one loop."""

from collections.abc import Mapping
from typing import Any

from cofair.errors import UsageError, nearest
from cofair.methods.fedavg import FedAvg
from cofair.methods.method import Method, Server
from cofair.methods.standalone import Standalone
from cofair.settings import read

METHODS: dict[str, type[Method[Any]]] = {method.name: method for method in (Standalone, FedAvg)}


def get(name: str) -> type[Method[Any]]:
    """Return a method's class by its name."""
    if name not in METHODS:
        raise UsageError(f"Unknown method {name!r}: {nearest(name, METHODS)}")
    return METHODS[name]


def make(name: str, settings: Mapping[str, Any]) -> Method[Any]:
    """Return a method with the given settings, the others at their defaults."""
    return read(get(name), settings, "method")


__all__ = ["METHODS", "Method", "Server", "get", "make"]
