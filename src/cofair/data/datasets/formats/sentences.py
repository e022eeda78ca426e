"""Sentences: rt-polarity (MR) and the Stanford Sentiment Treebank (SST), as published and as packed TSV."""

import gzip
import hashlib
import re

from cofair.data.datasets import content
from cofair.data.datasets.archives import Files
from cofair.data.datasets.content import Content

Pairs = list[tuple[int, str]]

LEAF = re.compile(r"\(\d ([^()]+)\)")
ROOT = re.compile(r"\((\d) ")
# What the treebank writes for characters that its brackets and slashes would confuse.
ESCAPES = {"-LRB-": "(", "-RRB-": ")", "\\/": "/"}


def read_polarity(files: Files) -> Content | None:
    """``rt-polarity.neg`` and ``rt-polarity.pos``, one sentence per line."""
    if files.find("rt-polarity.pos") is None:
        return None
    return _split_mr([(label, line) for label in (0, 1) for line in _polarity(files, ("neg", "pos")[label])])


def _polarity(files: Files, which: str) -> list[str]:
    with files.open(files.need(f"rt-polarity.{which}")) as stream:
        raw = stream.read()
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        # As published. It holds "…" as byte 0x85, which latin-1, as it is often called, would take for a line break.
        text = raw.decode("cp1252", errors="replace")
    return [line.strip(" \r") for line in text.split("\n") if line.strip(" \r")]


def read_mr_tsv(files: Files) -> Content | None:
    """``mr_rt_polarity.tsv.gz`` with the columns label and text."""
    rows = _tsv(files, "mr_rt_polarity.tsv.gz", ("label", "text"))
    return None if rows is None else _split_mr([(int(label), text) for label, text in rows])


def _split_mr(pairs: Pairs) -> Content:
    """Hold out a tenth for testing; MR has no published split.

    The order is that of the sentences' hashes: as good as shuffled, and the same from every source, whatever order the
    sentences came in.
    """
    pairs = sorted(pairs, key=lambda pair: hashlib.sha256(f"{pair[0]} {pair[1]}".encode()).digest())
    held_out = len(pairs) // 10
    return content.sentences(train=pairs[held_out:], test=pairs[:held_out])


def read_trees(files: Files) -> Content | None:
    """``train.txt`` and ``test.txt``, one bracketed tree per line, whose root has the label; dev.txt is left out."""
    if files.find("train.txt") is None:
        return None
    return content.sentences(*(_trees(files, f"{split}.txt") for split in ("train", "test")))


def _trees(files: Files, name: str) -> Pairs:
    with files.open(files.need(name)) as stream:
        lines = stream.read().decode().split("\n")
    return [_tree(line.strip(" \r"), f"{name} line {i}") for i, line in enumerate(lines, 1) if line.strip(" \r")]


def _tree(line: str, where: str) -> tuple[int, str]:
    root, leaves = ROOT.match(line), LEAF.findall(line)
    if not root or not leaves or line.count("(") != line.count(")"):
        raise ValueError(f"{where} is not a whole bracketed tree")
    text = " ".join(leaves)
    for escaped, plain in ESCAPES.items():
        text = text.replace(escaped, plain)
    return int(root[1]), text


def read_sst_tsv(files: Files) -> Content | None:
    """``sst5.tsv.gz`` with the columns split, label and text."""
    rows = _tsv(files, "sst5.tsv.gz", ("split", "label", "text"))
    if rows is None:
        return None
    train, test = ([(int(label), text) for part, label, text in rows if part == split] for split in ("train", "test"))
    return content.sentences(train=train, test=test)


def _tsv(files: Files, name: str, columns: tuple[str, ...]) -> list[tuple[str, ...]] | None:
    member = files.find(name)
    if member is None:
        return None
    with files.open(member) as stream, gzip.open(stream) as unpacked:
        header, *lines = unpacked.read().decode().removesuffix("\n").split("\n")
    rows = [tuple(line.split("\t")) for line in lines]
    if tuple(header.split("\t")) != columns or any(len(row) != len(columns) for row in rows):
        raise ValueError(f"{name} does not have the columns {', '.join(columns)}")
    return rows
