"""Which methods there are: ours, those that other packages offer, and those a user registers."""

import hashlib
import importlib.metadata
import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from cofair.errors import UsageError, nearest
from cofair.methods.method import Method
from cofair.settings import read

METHODS: dict[str, type[Method[Any]]] = {}
Kind = TypeVar("Kind", bound=type[Method[Any]])


def register(method: Kind) -> Kind:
    """Make a method known by its name: a decorator for its class."""
    if METHODS.get(method.name, method).__qualname__ != method.__qualname__:
        raise UsageError(f"There is a method {method.name!r} already ({METHODS[method.name].__qualname__}).")
    METHODS[method.name] = method
    return method


def names() -> list[str]:
    """Return all methods' names, in the order of their registration."""
    return list(METHODS)


def get(name: str) -> type[Method[Any]]:
    """Return a method's class by its name."""
    if name not in METHODS:
        raise UsageError(f"Unknown method {name!r}: {nearest(name, METHODS)}")
    return METHODS[name]


def make(name: str, settings: Mapping[str, Any]) -> Method[Any]:
    """Return a method with the given settings, the others at their defaults."""
    return read(get(name), settings, "method")


def load_installed() -> None:
    """Import the methods that installed packages offer under the entry point `cofair.methods`."""
    for entry in importlib.metadata.entry_points(group="cofair.methods"):
        entry.load()


def load_file(path: Path) -> None:
    """Run a user's Python file, which registers its methods with the decorator."""
    # a name of its own, under which worker processes find the classes of the file again
    name = f"cofair_user_{path.stem}_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise UsageError(f"Cannot load methods from {path}: name a Python file.")
    sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(sys.modules[name])
    except UsageError:
        raise
    except Exception as error:  # whatever a user's file raises becomes one sentence
        raise UsageError(f"Loading {path} failed: {type(error).__name__}: {error}") from error
