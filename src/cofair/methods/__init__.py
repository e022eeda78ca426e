"""The methods: one paper a file, all of them the same few functions over one loop."""

from cofair.methods import cgsv, fedavg, fedrac, standalone  # noqa: F401, importing registers them
from cofair.methods.method import Method, Server
from cofair.methods.registry import METHODS, get, load_file, load_installed, make, names, register

__all__ = ["METHODS", "Method", "Server", "get", "load_file", "load_installed", "make", "names", "register"]
