"""Scoring: candidate models on the server's samples, many at once."""
