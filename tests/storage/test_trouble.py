"""Two writers, a full disk, a clock that jumps, files with any kind of damage: a sentence, and nothing is lost."""

import json
import os
import resource
import signal
import subprocess
from contextlib import ExitStack, contextmanager
from random import Random

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from cofair.engine.protocol import Delivered
from cofair.errors import CofairError, RunError
from cofair.models import build
from cofair.runs.state import RunState, Stopwatch
from cofair.storage import checkpoint, ledger
from cofair.storage.folder import CHECKPOINT, PREVIOUS, RunFolder
from cofair.storage.history import read_history
from cofair.storage.journal import FolderJournal
from cofair.storage.lock import locked
from cofair.storage.resume import first_entry
from cofair.storage.tensor_file import Shelf, TensorFile, encode, write
from tests.corruption.damage import bytes_damaged
from tests.driving import prepare
from tests.storage.test_resume import Stopped, carried_out, experiment_of, small_federation, written


def test_a_second_writer_is_refused_and_a_dead_one_is_not_waited_for(tmp_path):
    with locked(tmp_path):
        with pytest.raises(RunError, match=f"Another run is writing to {tmp_path}"), locked(tmp_path):
            pass
        with pytest.raises(RunError, match="Another run"):
            carried_out(experiment_of("fedavg"), tmp_path)
    heard, signalled = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            with locked(tmp_path):
                os.write(signalled, b"!")
                signal.pause()
        finally:
            os._exit(1)  # whatever happens, there must not be two pytests
    os.close(signalled)
    try:
        assert os.read(heard, 1) == b"!"
        with pytest.raises(RunError, match="Another run"), locked(tmp_path):
            pass
    finally:
        os.close(heard)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    with locked(tmp_path):
        pass


def test_results_that_another_process_wrote_meanwhile_are_not_overwritten(tmp_path):
    folder = RunFolder(tmp_path)
    assert folder.path == tmp_path
    (tmp_path / "summary.json").write_text("{}")
    journal = FolderJournal(folder, experiment_of("fedavg"), ExitStack())
    prepared = make_prepared()
    with pytest.raises(CofairError, match="holds results already"):
        journal.begin(prepared.experiment, prepared.problem, prepared.server, "", {}, dict)


def make_prepared():
    return prepare(
        experiment_of("fedavg"), federation=small_federation(), model=build("mlp", (6,), 3, hidden=(10, 6)),
        contributions=torch.arange(4, dtype=torch.float64),
    )  # fmt: skip


@contextmanager
def small_disk(path, kilobytes):
    """Mount a small disk, where that is allowed."""
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(path)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("a small disk cannot be mounted here")
    try:
        yield
    finally:
        subprocess.run(["umount", str(path)], check=True)


@pytest.mark.parametrize("kilobytes", [16, 24, 32])
def test_a_run_that_fills_the_disk_says_so_and_goes_on_when_there_is_room(tmp_path, kilobytes):
    experiment = experiment_of("fedsac", run={"checkpoint_every": 1})
    carried_out(experiment, tmp_path / "whole")
    with small_disk(tmp_path / "disk", kilobytes):
        with pytest.raises(RunError, match="the disk is full; what was written before is kept"):
            carried_out(experiment, tmp_path / "disk" / "run")
        left = tmp_path / "disk" / "run"
        if (left / "history.jsonl").exists():
            read_history(left / "history.jsonl")
        if (left / "ledger.jsonl").exists():
            assert ledger.read(left / "ledger.jsonl").fault is None
        subprocess.run(["mount", "-o", "remount,size=4m", str(tmp_path / "disk")], check=True)
        carried_out(experiment, left, resume=True)
        assert written(left) == written(tmp_path / "whole")


def test_files_that_may_not_grow_any_more_are_a_sentence_too(tmp_path):
    experiment = experiment_of("fedsac", run={"checkpoint_every": 1})
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4000, before[1]))
    try:
        with pytest.raises(RunError, match="file too large; what was written before is kept"):
            carried_out(experiment, tmp_path / "run")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    carried_out(experiment, tmp_path / "run", resume=True)
    carried_out(experiment, tmp_path / "whole")
    assert written(tmp_path / "run") == written(tmp_path / "whole")


def test_a_clock_that_jumps_back_gives_no_negative_time():
    times = iter([100.0, 101.0, 50.0, 52.0, 1e6])
    watch = Stopwatch(lambda: next(times), 7.0)
    assert [watch.seconds() for _ in range(4)] == [8.0, 8.0, 10.0, 10.0 + 1e6 - 52]


def test_a_run_ends_the_same_whatever_its_clocks_say(tmp_path, monkeypatch):
    experiment = experiment_of("fedsac", run={"checkpoint_every": None})
    carried_out(experiment, tmp_path / "whole")
    jumps = Random(0)
    for name in ("time", "monotonic", "perf_counter"):
        monkeypatch.setattr(f"time.{name}", lambda: jumps.choice([-1e9, 0.0, 1.5, 1e9, 4e9]))
    with pytest.raises(Stopped):
        carried_out(experiment, tmp_path / "jumping", 9)
    carried_out(experiment, tmp_path / "jumping", resume=True)
    monkeypatch.undo()
    assert written(tmp_path / "jumping") == written(tmp_path / "whole")
    seconds = [record.seconds for record in read_history(tmp_path / "jumping" / "history.jsonl")]
    assert seconds == sorted(seconds)
    assert seconds[0] >= 0


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    path = tmp_path_factory.mktemp("stopped")
    with pytest.raises(Stopped):
        carried_out(experiment_of("fedsac", run={"evaluate_every": 1}), path, 12)
    return path


fuzzed = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
seeds = st.integers(0, 2**32)


@fuzzed
@given(seeds)
def test_a_damaged_checkpoint_is_a_sentence_or_the_same_checkpoint(stopped, state, tmp_path, draw):
    path, template = tmp_path / CHECKPOINT, (RunState, state)
    path.write_bytes(bytes_damaged((stopped / CHECKPOINT).read_bytes(), Random(draw)))
    try:
        found = checkpoint.latest(tmp_path)
    except CofairError:
        return
    assert found.facts == TensorFile(stopped / CHECKPOINT).facts
    shelves = [Shelf(), Shelf()]
    values = [TensorFile(p).value(template, torch.device("cpu")) for p in (path, stopped / CHECKPOINT)]
    assert encode(values[0], shelves[0]) == encode(values[1], shelves[1])
    for one, other in zip(shelves[0].tensors.values(), shelves[1].tensors.values(), strict=True):
        assert torch.equal(one, other)


@pytest.fixture(scope="module")
def state():
    return experiment_of("fedsac").method.start(make_prepared().server)


@fuzzed
@given(seeds)
def test_a_damaged_ledger_is_a_sentence_or_its_beginning(stopped, tmp_path, draw):
    whole = ledger.verified_entries(stopped / "ledger.jsonl")
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(bytes_damaged((stopped / "ledger.jsonl").read_bytes(), Random(draw)))
    try:
        entries = ledger.verified_entries(path)
    except CofairError:
        return
    assert entries == whole[: len(entries)]


@fuzzed
@given(seeds)
def test_a_damaged_history_is_a_sentence_or_records(stopped, tmp_path, draw):
    path = tmp_path / "history.jsonl"
    path.write_bytes(bytes_damaged((stopped / "history.jsonl").read_bytes(), Random(draw)))
    try:
        records = read_history(path)
    except CofairError:
        return
    assert [record.round for record in records] == sorted({record.round for record in records})
    for record in records:
        json.loads(record.to_json())


@fuzzed
@given(seeds, st.sampled_from(["experiment.toml", "ledger.jsonl"]))
def test_a_folder_with_any_damage_is_a_sentence_or_the_run_itself(stopped, tmp_path, draw, name):
    for other in ("experiment.toml", "ledger.jsonl", "run.json", "history.jsonl", CHECKPOINT, PREVIOUS):
        (tmp_path / other).write_bytes((stopped / other).read_bytes())
    (tmp_path / name).write_bytes(bytes_damaged((stopped / name).read_bytes(), Random(draw)))
    try:
        first = first_entry(tmp_path, experiment_of("fedsac", run={"evaluate_every": 1}))
    except CofairError:
        return
    assert first is None or first == ledger.verified_entries(stopped / "ledger.jsonl")[0]


def test_tensors_come_back_as_they_lay_in_memory(tmp_path):
    base = torch.arange(12.0).reshape(3, 4)
    value = {"t": base.T, "wide": torch.ones(1, 3).expand(5, 3), "same": base, "again": base, 3: (None, True, 0.1, "ü")}
    value |= {"empty": torch.zeros(0, 4), "flag": torch.tensor(True), "none": torch.tensor(float("nan"))}
    write(tmp_path / "f", {"x": 1}, value)
    back = TensorFile(tmp_path / "f").value((), torch.device("cpu"))
    assert list(back) == list(value)
    for key in ("t", "wide", "same", "empty", "flag"):
        assert torch.equal(back[key], value[key])
        assert back[key].stride() == value[key].stride()
    assert back["none"].isnan()
    assert back["same"] is back["again"]
    assert back[3] == value[3]
    assert len(load_file(tmp_path / "f")) == 6  # any reader of safetensors reads it; `same` and `again` lie there once
    write(tmp_path / "g", {}, Delivered(base))
    with pytest.raises(RunError, match="does not fit this run"):
        TensorFile(tmp_path / "g").value((), torch.device("cpu"))
