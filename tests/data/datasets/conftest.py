from dataclasses import replace

import pytest

from cofair.data.datasets import catalogue
from cofair.data.datasets.dataset_entry import Variant


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """An empty store of its own for every test, and no packed data set from outside."""
    place = tmp_path / "home"
    monkeypatch.setenv("COFAIR_HOME", str(place))
    monkeypatch.delenv("COFAIR_DATA", raising=False)
    return place


@pytest.fixture
def small(monkeypatch):
    """Let a data set have other sizes than the published ones, and no source but files (unless one is given).

    Its packed forms count as published, because their small content has no measured sha256.
    """

    def make(name, train, test, **changes):
        formats = tuple(replace(known, published=True) for known in catalogue.ENTRIES[name].formats)
        changes = {
            "formats": formats,
            "origin": (),
            "registry": None,
            "variants": (Variant("small", train, test),),
            **changes,
        }
        entry = replace(catalogue.ENTRIES[name], **changes)
        monkeypatch.setitem(catalogue.ENTRIES, name, entry)
        return entry

    return make


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "files"
    place.mkdir()
    return place
