"""The papers' numbers, as data files of the package."""

import csv
from dataclasses import dataclass
from functools import cache
from importlib import resources


@dataclass(frozen=True)
class Number:
    """One published number: of which table and cell, its mean and, where the paper prints it, its spread."""

    metric: str
    data: str
    clients: int
    scene: str
    method: str
    mean: float
    std: float | None


@cache
def numbers(file: str) -> tuple[Number, ...]:
    """Return the numbers of a file of published values."""
    text = (resources.files("cofair.reproduce") / "published" / f"{file}.csv").read_text(encoding="utf-8")
    return tuple(
        Number(
            row["metric"], row["dataset"], int(row["clients"]), row["scene"], row["method"], float(row["mean"]),
            float(row["std"]) if row["std"] else None,
        )
        for row in csv.DictReader(text.splitlines())
        if row["mean"]  # a dash in the paper
    )  # fmt: skip
