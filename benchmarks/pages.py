"""Draws a page of results, published against measured, from its own tables.

    python -m benchmarks.pages docs/results/fedsac.md --tables 1 2 --figure docs/figures/fedsac.png

A cell of a page reads "published → measured / measured"; the first number behind the arrow is by the rule of the paper.
"""

import argparse
import re
from pathlib import Path

from cofair.reproduce.figure import Pair, write

CELL = re.compile(r"^(-?[\d.]+) → (-?[\d.]+|–) / (-?[\d.]+|–)$")


def table(text: str, number: int) -> tuple[str, list[list[str]]]:
    """Return a table's title and its rows, the first of them its methods."""
    found = re.search(rf"^## Table {number}: (.+?)\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    if found is None:
        raise SystemExit(f"The page has no Table {number}.")
    first = re.search(r"(?:^\|.*\n)+", found[2], re.MULTILINE)  # what follows may be other tables
    lines = [] if first is None else [line for line in first[0].splitlines() if not line.startswith("| ---")]
    return found[1], [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def pairs(rows: list[list[str]], rules: tuple[str, str]) -> list[Pair]:
    """Return the cells that are measured."""
    found = []
    for row in rows[1:]:
        for method, cell in zip(rows[0][1:], row[1:], strict=True):
            if (read := CELL.match(cell)) is not None:
                measured = {
                    rule: float(text) for rule, text in zip(rules, read.groups()[1:], strict=True) if text != "–"
                }
                if measured:
                    found.append(Pair(method.replace("\\", ""), float(read[1]), measured))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", type=Path)
    parser.add_argument("--tables", type=int, nargs="+", required=True)
    parser.add_argument("--rules", nargs=2, default=["best", "last"], help="of the two numbers behind an arrow")
    parser.add_argument("--figure", type=Path, required=True)
    given = parser.parse_args()
    text = given.page.read_text(encoding="utf-8")
    found = {}
    for number in given.tables:
        title, rows = table(text, number)
        found[f"Table {number}: {title}"] = pairs(rows, tuple(given.rules))
    write(found, given.figure)
    print(f"{given.figure}: {sum(map(len, found.values()))} cells")


if __name__ == "__main__":
    main()
