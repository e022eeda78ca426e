"""The same methods between real organisations, on Flower: `pip install 'cofair[flower]'`."""

from cofair.flower.client import client_app
from cofair.flower.server import serve, server_app

__all__ = ["client_app", "serve", "server_app"]
