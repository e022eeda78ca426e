"""Trackers: each tested round, logged with the tools that people already use."""
