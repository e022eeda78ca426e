"""Data sets by name: ``load("cifar10")`` once ``get("cifar10")`` has fetched it; ``load("digits")`` at once."""

from cofair.federation.datasets.dataset import Dataset, load, path
from cofair.federation.datasets.listing import Description, describe, names
from cofair.federation.datasets.sources import get

__all__ = ["Dataset", "Description", "describe", "get", "load", "names", "path"]
