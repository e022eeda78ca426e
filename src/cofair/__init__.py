"""Federated learning in which every participant receives a model as good as what it brought."""

__version__ = "0.1.0"
