"""Files with any kind of damage: a sentence or a right answer, never another exception."""

import os
import time
import zlib
from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from cofair.data.datasets import catalogue
from cofair.data.datasets.dataset_entry import Variant
from cofair.errors import CofairError
from tests.corruption.parsers import SIZES, all_parsers

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # sums of numbers such as 1e308
EACH = 25  # of every parser in the short test
MANY = int(os.environ.get("COFAIR_DAMAGED", "10000"))  # of all parsers together in the long one


@pytest.fixture(scope="module")
def parsers(tmp_path_factory):
    """Every parser, with data sets as small as their files here and a store of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COFAIR_HOME", str(tmp_path_factory.mktemp("home")))
        patch.delenv("COFAIR_DATA", raising=False)
        for name, sizes in SIZES.items():
            known = catalogue.ENTRIES[name]
            formats = tuple(replace(form, published=True) for form in known.formats)
            small = replace(known, formats=formats, origin=(), registry=None, variants=(Variant("small", *sizes),))
            patch.setitem(catalogue.ENTRIES, name, small)
        yield all_parsers(tmp_path_factory.mktemp("good"))


def outcome_of(parser, folder, chance):
    """Damage a file and read it: a sentence of one line, or whatever was read."""
    parser.spoil(folder, chance)
    try:
        parser.read(folder)
    except CofairError as error:
        if not str(error) or "\n" in str(error):
            raise AssertionError(f"not one sentence: {error}") from error
        return "refused"
    return "read"


def counted(name, parser, folder, seed, count):
    told = Counter()
    for k in range(count):
        draw = f"{name} {seed} {k}"
        try:
            told[outcome_of(parser, folder, Random(draw))] += 1
        except Exception as error:
            raise AssertionError(f"{draw!r} ended in {error!r}") from error
    return told


def test_whole_files_are_read(parsers, tmp_path):
    for name, parser in parsers.items():
        folder = tmp_path / str(zlib.crc32(name.encode()))
        folder.mkdir()
        for file, content in parser.files.items():
            (folder / file).write_bytes(content)
        parser.read(folder)


def test_damaged_files_are_a_sentence_or_are_read(parsers, tmp_path):
    for name, parser in parsers.items():
        folder = tmp_path / str(zlib.crc32(name.encode()))
        folder.mkdir()
        assert counted(name, parser, folder, 0, EACH).total() == EACH


@pytest.mark.long
def test_ten_thousand_damaged_files(parsers, tmp_path):
    each, seed, total = -(-MANY // len(parsers)), int(time.time()), Counter()
    for name, parser in parsers.items():
        folder = tmp_path / str(zlib.crc32(name.encode()))
        folder.mkdir()
        told = counted(name, parser, folder, seed, each)
        total += told
        print(
            f"{name}: {told.total()} damaged, {told['refused']} refused in a sentence, {told['read']} read", flush=True
        )
    assert total.total() >= MANY
    print(
        f"{total.total()} damaged files: {total['refused']} refused in a sentence, {total['read']} read, no traceback"
    )
