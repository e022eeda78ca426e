"""Federations: data sets, scenes, and the federation object."""
