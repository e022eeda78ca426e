"""Limit how large answers become when they are unpacked.

Flower sends an array as pieces, and a list that says in which order to join them. The list may name a piece many times,
so that a few bytes on the wire become gigabytes in memory. The size of an answer is therefore computed before its
pieces are joined.
"""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from flwr.app import Array
from flwr.supercore.inflatable.inflatable_object import (
    InflatableObject,
    get_object_body,
    get_object_children_ids_from_object_content,
)
from flwr.supercore.inflatable.inflatable_utils import inflatable_class_registry

_LEFT = threading.local()  # bytes that the answer that this thread unpacks may still take; unlimited if not set


@contextmanager
def at_most(size: int) -> Iterator[None]:
    """Within this context, refuse an answer that this thread unpacks if its arrays have more bytes."""
    _LEFT.bytes = size
    try:
        yield
    finally:
        del _LEFT.bytes


class _CountedArray:
    """Stands in for Flower's array where answers are unpacked."""

    @staticmethod
    def inflate(object_content: bytes, children: dict[str, InflatableObject] | None = None) -> Array:
        """Return an array after checking that it is small enough."""
        left = getattr(_LEFT, "bytes", None)
        if left is not None:
            pieces = get_object_children_ids_from_object_content(object_content)
            order = json.loads(get_object_body(object_content, Array))["arraychunk_ids"]
            sizes = {key: len(piece.data) for key, piece in (children or {}).items()}  # type: ignore[attr-defined]
            _LEFT.bytes = left - sum(sizes[pieces[k]] for k in order)
            if _LEFT.bytes < 0:
                raise ValueError("it comes to more bytes than an update")
        return Array.inflate(object_content, children)


inflatable_class_registry[Array.__qualname__] = _CountedArray  # type: ignore[assignment]
