"""Neurons: which parameters belong together, and masks that leave them out."""
