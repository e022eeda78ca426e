"""Experiments, runs and their folders."""
