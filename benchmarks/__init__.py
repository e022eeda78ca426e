"""Benchmarks: each prints a ratio measured in one run, so that it means the same on every machine."""
