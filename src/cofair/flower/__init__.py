"""The same methods between real organisations, on Flower: `pip install 'cofair[flower]'`."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cofair.flower import files
    from cofair.flower.client import client_app
    from cofair.flower.federation_server import serve, server_app

__all__ = ["client_app", "files", "serve", "server_app"]


def __getattr__(name: str) -> Any:
    """Import only one side: a participant's process starts again for every message."""
    if name == "client_app":
        from cofair.flower.client import client_app

        return client_app
    if name in ("serve", "server_app"):
        from cofair.flower import federation_server

        return getattr(federation_server, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
