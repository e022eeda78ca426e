"""Local training, scoring, and what both need: the engines."""
