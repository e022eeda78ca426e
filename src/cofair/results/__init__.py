"""Results: what a run gives back, and the one list of what a table shows."""
