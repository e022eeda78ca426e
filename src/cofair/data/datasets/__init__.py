"""Data sets by name: ``load("cifar10")`` once ``get("cifar10")`` has fetched it; ``load("digits")`` at once."""

from cofair.data.datasets.dataset import Dataset, load, path
from cofair.data.datasets.listing import Description, describe, names
from cofair.data.datasets.sources import get

__all__ = ["Dataset", "Description", "describe", "get", "load", "names", "path"]
