"""Rules that methods are made of: aggregation, sparsification, reputation, promises, calibration."""
