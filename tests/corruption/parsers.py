"""Every parser of files that cofair has: a good file, ways to damage it, and how it is read."""

import hashlib
import io
import json
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch

from cofair.cli import ledger_command
from cofair.config.experiment import Experiment, read_file
from cofair.config.grid import read_grid
from cofair.data import datasets
from cofair.engine.protocol import Delivered
from cofair.errors import UsageError
from cofair.report import page
from cofair.report.ledger_section import CELLS, read_statement
from cofair.report.reported_runs import read_methods
from cofair.runs.state import RunState
from cofair.storage import checkpoint, tensor_file
from cofair.storage.folder import CHECKPOINT, PREVIOUS, REWARDS
from cofair.storage.history import read_history
from cofair.storage.ledger import FIRST, verified_entries
from cofair.storage.resume import _OTHER, first_entry, refuse_other
from cofair.storage.tensor_file import TensorFile
from tests.corruption.damage import bytes_damaged, json_damaged, toml_damaged
from tests.data.datasets import published_files as published
from tests.driving import prepare
from tests.storage.test_resume import Stopped, build, carried_out, experiment_of, small_federation

Spoil = Callable[[bytes, Random], bytes]
EXPERIMENT = experiment_of("fedsac", run={"evaluate_every": 1})


@dataclass
class Parser:
    """Good files by name, which of them are damaged and how, and what reads them from a folder."""

    files: dict[str, bytes]
    read: Callable[[Path], Any]
    damaged: tuple[str, ...] = ()  # all, where none is named
    spoils: tuple[Spoil, ...] = (bytes_damaged,)
    _last: str | None = field(default=None, init=False)

    def spoil(self, folder: Path, chance: Random) -> None:
        """Write the files with one of them damaged."""
        for name in self.files if self._last is None else [self._last]:
            (folder / name).write_bytes(self.files[name])
        self._last = chance.choice(self.damaged or tuple(self.files))
        (folder / self._last).write_bytes(chance.choice(self.spoils)(self.files[self._last], chance))


def all_parsers(scratch: Path) -> dict[str, Parser]:
    """Return the parsers by what they read; the files are made in an empty folder."""
    run = _run_folder(scratch / "stopped", 12)
    done = _run_folder(scratch / "done", None)
    state = EXPERIMENT.method.start(_prepared().server)
    made = {
        "TOML, an experiment": Parser(
            {"e.toml": run["experiment.toml"]}, lambda p: _experiment(p / "e.toml"), spoils=(_toml, bytes_damaged)
        ),
        "TOML, a sweep": Parser(
            {"s.toml": run["experiment.toml"] + b"\n[grid.training]\nlr = [0.1, 0.2]\n[grid.run]\nseed = [0, 1]\n"},
            lambda p: read_grid(read_file(p / "s.toml"), ()), spoils=(_toml, bytes_damaged),
        ),
        "checkpoint": Parser(
            {name: run[name] for name in (CHECKPOINT, PREVIOUS)}, lambda p: _checkpoint(p, state), (CHECKPOINT,),
            (bytes_damaged, _checksum_made_right),
        ),
        "rewards": Parser(
            {REWARDS: done[REWARDS]}, lambda p: TensorFile(p / REWARDS).value(Delivered, torch.device("cpu")),
            spoils=(bytes_damaged, _checksum_made_right),
        ),
        "ledger": Parser(
            {"ledger.jsonl": run["ledger.jsonl"]}, _ledger, spoils=(bytes_damaged, _hashes_made_right)
        ),
        "history": Parser(
            {"history.jsonl": run["history.jsonl"]}, lambda p: read_history(p / "history.jsonl"),
            spoils=(bytes_damaged, _a_line),
        ),
        "statement": Parser(
            {"statement.html": _STATEMENT}, lambda p: read_statement(p / "statement.html"),
        ),
        "run folder, resumed": Parser(
            {name: run[name] for name in ("experiment.toml", "ledger.jsonl", "history.jsonl", CHECKPOINT)},
            _resumed, ("experiment.toml", "ledger.jsonl"), (bytes_damaged, _either),
        ),
        "run folder, reported": Parser(
            {
                **{name: done[name] for name in ("experiment.toml", "run.json", "history.jsonl", "ledger.jsonl")},
                "summary.json": done["summary.json"],
                "traffic.json": json.dumps([{"client": "0", "bytes_down": 10, "bytes_up": 20}], indent=1).encode(),
            },
            _reported, spoils=(bytes_damaged, _either),
        ),
    }  # fmt: skip
    for name, (known, write) in DATA.items():
        folder = scratch / name.replace("/", " ")
        folder.mkdir()
        write(folder)
        made[name] = Parser({p.name: p.read_bytes() for p in folder.iterdir()}, lambda p, known=known: _data(known, p))
    return made


_STATEMENT = (
    '<!DOCTYPE html><html><p>Ü</p><table data-client="2"><tr>'
    + "".join(f'<td data-ledger="{name}">0.5</td>' for name in CELLS)
    + "</tr></table></html>"
).encode()


def _images(shape: tuple[int, ...]) -> tuple[Any, ...]:
    return published.images(1, 10, shape), np.arange(10), published.images(2, 4, shape), np.arange(4)


SIZES = {"mnist": (10, 4), "cifar10": (10, 4), "svhn": (10, 4), "mr": (18, 2), "sst": (6, 2)}
DATA: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "IDX": ("mnist", lambda p: published.mnist(p, *_images((28, 28)))),
    "IDX, gzipped": ("mnist", lambda p: published.mnist(p, *_images((28, 28)), packed=True)),
    "CIFAR, batches": ("cifar10", lambda p: published.cifar_batches(p, *_images((32, 32, 3)))),
    "CIFAR, sprites": ("cifar10", lambda p: published.cifar_sprites(p, *_images((32, 32, 3)))),
    ".mat": ("svhn", lambda p: published.svhn_matlab(p, *_images((32, 32, 3)))),
    "zip of sprites": ("svhn", lambda p: published.svhn_sprites(p, *_images((32, 32, 3)))),
    "TSV": (
        "mr",
        lambda p: published.tsv(p / "mr_rt_polarity.tsv.gz", ("label", "text"), [(i % 2, str(i)) for i in range(20)]),
    ),
    "trees": (
        "sst", lambda p: published.trees(p, train=["(3 (2 a) (2 film))"] * 6, test=["(1 (2 a) (2 bore))"] * 2)
    ),
}  # fmt: skip


def _data(name: str, folder: Path) -> None:
    datasets.get(name, from_path=folder, force=True)
    datasets.load(name)


def _prepared() -> Any:
    return prepare(
        EXPERIMENT, federation=small_federation(), model=build("mlp", (6,), 3, hidden=(10, 6)),
        contributions=torch.arange(4, dtype=torch.float64),
    )  # fmt: skip


def _run_folder(path: Path, stop_at: int | None) -> dict[str, bytes]:
    """Return the files of a run, stopped at some training or finished."""
    if stop_at is None:
        carried_out(EXPERIMENT, path)
    else:
        with pytest.raises(Stopped):
            carried_out(EXPERIMENT, path, stop_at)
    return {file.name: file.read_bytes() for file in path.iterdir()}


def _experiment(path: Path) -> None:
    made = Experiment.from_dict(read_file(path))
    path.write_text(made.to_toml(), encoding="utf-8")
    assert Experiment.from_dict(read_file(path)).to_toml() == made.to_toml()  # what is accepted is understood


def _checkpoint(folder: Path, state: Any) -> None:
    found = checkpoint.latest(folder)
    assert found is not None
    found.value((RunState, state), torch.device("cpu"))


def _ledger(folder: Path) -> None:
    entries = verified_entries(folder / "ledger.jsonl")
    with redirect_stdout(io.TextIOWrapper(io.BytesIO(), encoding="utf-8")):
        ledger_command.verify(folder, entries[-1]["hash"])
        ledger_command.show(folder, "2", as_json=False)


def _resumed(folder: Path) -> None:
    first = first_entry(folder, EXPERIMENT)
    if first is not None:
        torch.tensor(first["contributions"], dtype=torch.float64)
        with suppress(UsageError):  # another run's: a sentence, too
            refuse_other(folder, first, dict.fromkeys(_OTHER))


def _reported(folder: Path) -> None:
    """Read a folder and write all that a report shows, and the statement of a client."""
    entries = read_methods([folder])
    page.document(entries).encode()
    for entry in entries:
        page.client_document(entry, entry.runs[0].outcome.names[-1]).encode()
    with redirect_stdout(io.TextIOWrapper(io.BytesIO(), encoding="utf-8")):
        ledger_command.verify(folder, None)


def _toml(good: bytes, chance: Random) -> bytes:
    return toml_damaged(good.decode(), chance).encode(errors="surrogateescape")


def _a_line(good: bytes, chance: Random) -> bytes:
    """Damage one line of JSON, so that it stays JSON."""
    lines = good.decode().splitlines()
    k = chance.randrange(len(lines))
    lines[k] = json.dumps(json_damaged(json.loads(lines[k]), chance))
    return "".join(f"{line}\n" for line in lines).encode()


def _either(good: bytes, chance: Random) -> bytes:
    """Damage settings as settings, lines as lines, JSON as JSON."""
    if good.startswith((b"{\n", b"[\n")):
        return json.dumps(json_damaged(json.loads(good), chance)).encode()
    if not good.startswith(b"{"):
        return _toml(good, chance)
    return (_hashes_made_right if b'"hash"' in good else _a_line)(good, chance)


def _hashes_made_right(good: bytes, chance: Random) -> bytes:
    """Damage an entry of a ledger and compute all hashes anew, as a cheat would."""
    entries = [json.loads(line) for line in good.decode().splitlines()]
    k = chance.randrange(len(entries))
    entries[k] = json_damaged(entries[k], chance)
    return b"".join(line + b"\n" for line in chained(entries))


def chained(entries: Sequence[Any]) -> list[bytes]:
    """Return the lines of a ledger with all hashes computed anew."""
    previous, lines = FIRST, []
    for entry in entries:
        if isinstance(entry, dict):
            entry = {key: value for key, value in entry.items() if key != "hash"} | {"previous": previous}
            previous = entry["hash"] = hashlib.sha256(_canonical(entry)).hexdigest()
        lines.append(_canonical(entry))
    return lines


def _canonical(entry: Any) -> bytes:
    return json.dumps(entry, sort_keys=True, separators=(",", ":")).encode()


def _checksum_made_right(good: bytes, chance: Random) -> bytes:
    """Damage what a file of tensors says of itself and compute its checksum anew."""
    end = 8 + int.from_bytes(good[:8], "little")
    header, data = json.loads(good[8:end]), good[end:]
    metadata = header.pop("__metadata__")
    text = metadata["cofair"]
    if chance.randrange(4):
        text = json.dumps(json_damaged(json.loads(text), chance))
    else:
        header = json_damaged(header, chance)
    if not isinstance(header, dict):
        return good[:end]
    checksum = tensor_file._checksum(text, header, [memoryview(data)])
    encoded = json.dumps({"__metadata__": {"cofair": text, "sha256": checksum}, **header}).encode()
    return len(encoded).to_bytes(8, "little") + encoded + data
