"""Readers of the formats in which data sets are published or packed.

A reader takes :class:`Files` and returns their :class:`Content`, or None where the files it knows are not there. On
damaged bytes a reader may raise anything; :mod:`cofair.data.datasets.sources` turns that into a sentence.
"""
