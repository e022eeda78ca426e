"""A run that was interrupted goes on to the very same bits."""

import json
import random
import zlib
from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest
import torch

import cofair
from cofair import methods
from cofair.config.experiment import Experiment
from cofair.config.job import Job
from cofair.data.federation import Federation
from cofair.engine import choose
from cofair.engine.optimisers import OPTIMISERS
from cofair.engine.protocol import Delivered
from cofair.errors import RunError, UsageError
from cofair.methods.fedavg import FedAvg
from cofair.models import build
from cofair.runs.compare import compare
from cofair.runs.jobs import unfinished
from cofair.runs.lockstep_batch import run_in_lockstep
from cofair.runs.run import drive, prepare
from cofair.runs.setup import Parts
from cofair.runs.single import run_experiment
from cofair.storage.checkpoint import RATE, Checkpoints
from cofair.storage.folder import CHECKPOINT, PREVIOUS, REWARDS, RunFolder
from cofair.storage.journal import FolderJournal, open_journal
from cofair.storage.ledger import verified_entries
from cofair.storage.tensor_file import Shelf, encode
from tests.driving import Heard, with_engine

methods.load_installed()
SETTINGS = {
    "training": {"rounds": 14, "steps": 1, "batch_size": 8, "lr": 0.01},
    "contribution": {"epochs": 2},
    "run": {"evaluate_every": 2, "checkpoint_every": 3},
}


class Stopped(Exception):  # noqa: N818 (nothing is wrong with it)
    pass


@dataclass
class Stopping:
    """An engine that breaks off at some training, as a power cut would."""

    engine: object
    left: int

    def train(self, *given):
        self.left -= 1
        if self.left < 0:
            raise Stopped
        return self.engine.train(*given)


def small_federation():
    draw = torch.Generator().manual_seed(0)
    centres = torch.randn(3, 6, generator=draw)

    def samples(n):
        y = torch.randint(0, 3, (n,), generator=draw)
        return centres[y] + 0.8 * torch.randn(n, 6, generator=draw), y

    return Federation([samples(n) for n in (8, 30, 50, 20)], validation=samples(60), test=samples(40), classes=3)


def experiment_of(name, **changes):
    tables = {table: values | changes.get(table, {}) for table, values in SETTINGS.items()}
    return Experiment.from_dict({**tables, "method": {"name": name, **changes.get("method", {})}})


def carried_out(experiment, path, stop_at=None, resume=False, federation=None):
    """Run an experiment in a folder, to its end or to some training; return all that must be the same."""
    folder = RunFolder(path, resume=resume)
    with choose.arithmetic(experiment.run.precision), open_journal(folder, experiment, keeps_rewards=True) as journal:
        torch.manual_seed(0)
        parts = Parts(federation or small_federation(), build("mlp", (6,), 3, hidden=(10, 6)))
        run = prepare(experiment, parts, journal=journal)
        engine = Stopping(run.engine, 10**9 if stop_at is None else stop_at)
        last = []
        show, journal.keep = journal.keep, lambda state: (show(state), last.append(state))
        drive(with_engine(run, engine)).result()
        return last[-1], 10**9 - engine.left


def bits(state):
    shelf = Shelf()
    return encode(replace(state, seconds=0.0), shelf), [tensor.tolist() for tensor in shelf.tensors.values()]


def written(path):
    lines = [json.loads(line) for line in (path / "history.jsonl").read_text().splitlines()]
    for line in lines:
        line.pop("seconds")
    return lines, (path / "ledger.jsonl").read_bytes(), json.loads((path / "summary.json").read_text())["ledger"]


SHORT = ("fedavg", "cgsv", "fedrac")  # on the loop engine, which is slow


@pytest.mark.parametrize(
    ("name", "engine"),
    [(name, "vectorised") for name in methods.names()]
    + [pytest.param(name, "loop", marks=[] if name in SHORT else pytest.mark.long) for name in methods.names()],
)
def test_a_run_stopped_anywhere_goes_on_to_the_same_bits(name, engine, tmp_path):
    at = random.Random(zlib.crc32(f"{name} {engine}".encode()))
    optimiser = at.choice(sorted(OPTIMISERS))
    experiment = experiment_of(name, run={"engine": engine}, training={"optimiser": optimiser})
    final, trainings = carried_out(experiment, tmp_path / "whole")
    if trainings:
        for stop, resume in ((at.randrange(trainings // 2, trainings), False), (at.randrange(2), True)):
            with pytest.raises(Stopped):  # the second time it counts from the checkpoint on
                carried_out(experiment, tmp_path / "stopped", stop, resume=resume)
            assert not (tmp_path / "stopped" / "summary.json").exists()
        again, _ = carried_out(experiment, tmp_path / "stopped", resume=True)
        assert bits(again) == bits(final)
        assert written(tmp_path / "stopped") == written(tmp_path / "whole")
        one, other = ((tmp_path / run / REWARDS).read_bytes() for run in ("whole", "stopped"))
        assert one == other


@pytest.mark.parametrize("optimiser", ["momentum", "adamw"])
@pytest.mark.parametrize("name", ["fedavg", "fedsac"])
def test_the_memory_of_an_optimiser_goes_on(name, optimiser, tmp_path):
    experiment = experiment_of(name, training={"optimiser": optimiser})
    final, trainings = carried_out(experiment, tmp_path / "whole")
    with pytest.raises(Stopped):
        carried_out(experiment, tmp_path / "stopped", trainings - 2)
    again, _ = carried_out(experiment, tmp_path / "stopped", resume=True)
    assert bits(again) == bits(final)


def test_seconds_go_on_and_the_folder_says_that_it_was_resumed(tmp_path):
    experiment = experiment_of("fedavg")
    with pytest.raises(Stopped):
        carried_out(experiment, tmp_path, 20)
    (tmp_path / PREVIOUS).unlink()
    carried_out(experiment, tmp_path, resume=True)
    seconds = [json.loads(line)["seconds"] for line in (tmp_path / "history.jsonl").read_text().splitlines()]
    assert seconds == sorted(seconds)
    resumed = json.loads((tmp_path / "run.json").read_text())["resumed"]
    assert [again["round"] for again in resumed] == [9]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        ".lock", "experiment.toml", "history.jsonl", "ledger.jsonl", "rewards.safetensors", "run.json", "summary.json",
    ]  # fmt: skip


def test_the_head_that_is_told_is_one_that_no_resumption_takes_back(tmp_path, monkeypatch):
    heads, keep = {}, FolderJournal.keep
    monkeypatch.setattr(FolderJournal, "keep", lambda self, at: (keep(self, at), heads.update({at.round: self.head})))
    carried_out(experiment_of("fedavg"), tmp_path)  # tested in rounds 2 and 4 to 14, checkpoints every 3
    rounds = {entry["hash"]: entry["round"] for entry in verified_entries(tmp_path / "ledger.jsonl")}
    assert [rounds[heads[t]] for t in range(1, 15)] == [0, 0, 2, 2, 2, 6, 6, 6, 9, 9, 9, 12, 12, 12]


def test_contributions_are_measured_once(tmp_path, monkeypatch):
    experiment = experiment_of("cgsv")
    with pytest.raises(Stopped):
        carried_out(experiment, tmp_path, 0)  # before the first checkpoint
    monkeypatch.setattr("cofair.contributions.measure", None)
    carried_out(experiment, tmp_path, resume=True)


@pytest.fixture
def stopped(tmp_path):
    with pytest.raises(Stopped):
        carried_out(experiment_of("fedsac"), tmp_path, 11)
    return tmp_path


def test_another_experiment_is_refused_and_the_setting_named(stopped):
    for changes, sentence in [
        ({"training": {"lr": 0.02}}, r"training.lr is 0.01 there and 0.02 here"),
        ({"method": {"beta": 3}}, r"method.beta is 10.0 there and 3.0 here"),
        ({"run": {"seed": 3}}, r"run.seed is 0 there and 3 here"),
    ]:
        with pytest.raises(UsageError, match=sentence):
            carried_out(experiment_of("fedsac", **changes), stopped, resume=True)
    with pytest.raises(UsageError, match=r"method.name is 'fedsac' there and 'fedrac' here"):
        carried_out(experiment_of("fedrac"), stopped, resume=True)


def test_engine_and_device_may_change_because_they_decide_only_where(stopped):
    carried_out(
        experiment_of("fedsac", run={"engine": "loop", "device": "cpu", "checkpoint_every": 0}), stopped, resume=True
    )


def test_another_version_is_refused(stopped, monkeypatch):
    monkeypatch.setattr("cofair.__version__", "9.9.9")
    with pytest.raises(RunError, match=r"started by cofair 0\.\S+ and cannot be resumed by cofair 9\.9\.9"):
        carried_out(experiment_of("fedsac"), stopped, resume=True)


def test_another_federation_is_refused(stopped):
    other = small_federation()
    other.labels[3] = (other.labels[3] + 1) % 3
    with pytest.raises(UsageError, match="another federation"):
        carried_out(experiment_of("fedsac"), stopped, resume=True, federation=other)


def test_a_checkpoint_of_another_run_is_refused(stopped, tmp_path_factory):
    other = tmp_path_factory.mktemp("other")
    with pytest.raises(Stopped):
        carried_out(experiment_of("fedsac", run={"seed": 4}), other, 11)
    (stopped / CHECKPOINT).write_bytes((other / CHECKPOINT).read_bytes())
    with pytest.raises(RunError, match="is the checkpoint of another run"):
        carried_out(experiment_of("fedsac"), stopped, resume=True)


@pytest.mark.parametrize("how", ["altered", "truncated", "empty"])
def test_a_damaged_checkpoint_is_refused_and_the_previous_one_offered(stopped, how):
    good = (stopped / CHECKPOINT).read_bytes()
    bad = {"altered": good[:-9] + bytes([good[-9] ^ 1]) + good[-8:], "truncated": good[:-100], "empty": b""}[how]
    (stopped / CHECKPOINT).write_bytes(bad)
    with pytest.raises(RunError, match=rf"{CHECKPOINT} is damaged.*delete it to resume from round 6.*{PREVIOUS}"):
        carried_out(experiment_of("fedsac"), stopped, resume=True)
    (stopped / CHECKPOINT).unlink()
    carried_out(experiment_of("fedsac"), stopped, resume=True)
    (stopped / "whole").mkdir()
    carried_out(experiment_of("fedsac"), stopped / "whole")
    assert written(stopped) == written(stopped / "whole")


def test_two_damaged_checkpoints_are_one_sentence(stopped):
    for name in (CHECKPOINT, PREVIOUS):
        (stopped / name).write_bytes(b"nothing")
    with pytest.raises(RunError, match=rf"{CHECKPOINT} is damaged: it was cut off or altered\.$"):
        carried_out(experiment_of("fedsac"), stopped, resume=True)


@pytest.mark.parametrize("name", ["history.jsonl", "ledger.jsonl"])
def test_what_was_altered_before_the_checkpoint_is_refused(stopped, name):
    text = (stopped / name).read_text()
    (stopped / name).write_text(text.replace('"round"', '"ROUND"', 1))
    with pytest.raises(RunError, match=f"{name}.*altered"):
        carried_out(experiment_of("fedsac"), stopped, resume=True)
    (stopped / name).unlink()
    with pytest.raises(RunError, match=name):
        carried_out(experiment_of("fedsac"), stopped, resume=True)


def test_a_finished_run_is_not_computed_again(tmp_path):
    federation = small_federation()
    settings = {"rounds": 3, "steps": 1, "contribution": {"epochs": 1}, "out": tmp_path}
    first = cofair.run(lambda: build("mlp", (6,), 3, hidden=(4,)), federation, "fedsac", **settings)
    heard = []
    again = cofair.run(
        lambda: build("mlp", (6,), 3, hidden=(4,)), federation, "fedsac", resume=True,
        listener=lambda *what: heard.append(what), **settings,
    )  # fmt: skip
    assert not heard
    assert again.history == first.history
    for one, other in zip(first.rewards, again.rewards, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
    (tmp_path / REWARDS).unlink()
    with pytest.raises(RunError, match="finished run whose models were not kept"):
        cofair.run(lambda: build("mlp", (6,), 3, hidden=(4,)), federation, "fedsac", resume=True, **settings)


def test_resuming_an_empty_folder_begins(tmp_path):
    carried_out(experiment_of("fedavg"), tmp_path / "new", resume=True)
    with pytest.raises(UsageError, match="name it with out"):
        cofair.run(lambda: build("mlp", (6,), 3), small_federation(), resume=True)


DIGITS = Experiment.from_dict(
    {
        "federation": {"clients": 3},
        "model": {"hidden": [8]},
        "training": {"rounds": 12, "steps": 1},
        "contribution": {"epochs": 1},
        "run": {"checkpoint_every": 2},
    }
)


def test_a_comparison_keeps_what_is_finished_and_goes_on(tmp_path):
    names = ["fedavg", "cgsv", "fedrac"]
    compare(DIGITS, names, 2, tmp_path / "whole")
    heard = []

    def stopping(method, seed, record):
        heard.append((method, seed, record))
        if (method, seed) == ("cgsv", 1) and record.round == 8:
            raise Stopped

    with pytest.raises(Stopped):
        compare(DIGITS, names, 2, tmp_path / "stopped", listener=stopping)
    with pytest.raises(UsageError, match="holds results already"):
        compare(DIGITS, names, 2, tmp_path / "stopped")
    heard.clear()
    compare(DIGITS, names, 2, tmp_path / "stopped", resume=True, listener=lambda *what: heard.append(what))
    rounds = [(method, record.round) for method, _, record in heard if record is not None]
    assert {method for method, _ in rounds} == {"cgsv", "fedrac"}
    assert rounds[0] == ("cgsv", 7)  # the checkpoint was of round 6
    for name in names:
        for seed in (0, 1):
            folder = f"{name}-seed{seed}"
            assert written(tmp_path / "stopped" / folder) == written(tmp_path / "whole" / folder)


def test_a_sweep_goes_on_in_the_middle_of_its_runs(tmp_path):
    jobs = {
        where: [
            Job(replace(DIGITS, method=methods.make(name, {})), tmp_path / where / name) for name in ("fedsac", "cgsv")
        ]
        for where in ("whole", "stopped")
    }
    run_in_lockstep(jobs["whole"], Heard())
    heard = []

    def stopping(job, record):
        heard.append(record.round)
        if record.round == 9:
            raise Stopped

    with pytest.raises(Stopped):
        run_in_lockstep(jobs["stopped"], Heard(stopping))
    assert unfinished(jobs["stopped"]) == jobs["stopped"]
    heard.clear()
    run_in_lockstep(jobs["stopped"], Heard(lambda job, record: heard.append(record.round)))
    assert min(heard) == 9
    for one, other in zip(jobs["whole"], jobs["stopped"], strict=True):
        assert written(one.folder) == written(other.folder)
        assert not (other.folder / CHECKPOINT).exists()


def test_a_damaged_checkpoint_ends_only_its_own_run_of_a_sweep(tmp_path):
    jobs = [Job(DIGITS.with_run(seed=seed), tmp_path / str(seed)) for seed in (0, 1)]

    def stopping(job, record):
        if record.round == 9:
            raise Stopped

    with pytest.raises(Stopped):
        run_in_lockstep(jobs, Heard(stopping))
    for name in (CHECKPOINT, PREVIOUS):
        (jobs[0].folder / name).write_bytes(b"nothing")
    heard = Heard()
    run_in_lockstep(jobs, heard)
    assert list(heard.failures) == ["0"]
    assert "damaged" in heard.failures["0"]
    assert unfinished(jobs) == jobs[:1]


def test_a_state_that_cannot_be_stored_is_told_in_the_first_round(tmp_path, monkeypatch):
    monkeypatch.setattr(FedAvg, "learn", lambda self, server, state, *_: replace(state, personal=slice(3)))
    monkeypatch.setattr(FedAvg, "delivered", lambda self, server, state: Delivered(state.parameters))
    with pytest.raises(
        UsageError, match=r"cannot hold state\.method\.personal, which is of type slice.*checkpoint_every"
    ):
        carried_out(experiment_of("fedavg"), tmp_path / "told")
    carried_out(experiment_of("fedavg", run={"checkpoint_every": 0}), tmp_path / "without")


def test_checkpoints_by_time_cost_at_most_their_share(tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("cofair.storage.checkpoint.time.monotonic", lambda: now[0])
    kept = []
    monkeypatch.setattr("cofair.storage.checkpoint.sync_folder", lambda folder: kept.append(now[0]))

    def slow(path, facts, value):
        now[0] += 1.0
        path.write_bytes(b"")

    monkeypatch.setattr("cofair.storage.checkpoint.tensor_file.write", slow)
    at = type("At", (), {"round": 1, "last": False})
    checkpoints = Checkpoints(tmp_path, None)
    for _ in range(300):
        now[0] += 1.0
        if checkpoints.due(at):
            checkpoints.write({}, at)
    assert kept == [11.0, 62.0, 113.0, 164.0, 215.0, 266.0]


def test_run_experiment_resumes_too(tmp_path):
    def stopping(method, seed, record):
        if record is not None and record.round == 7:
            raise Stopped

    with pytest.raises(Stopped):
        run_experiment(DIGITS, RunFolder(tmp_path / "stopped"), stopping)
    result = run_experiment(DIGITS, RunFolder(tmp_path / "stopped", resume=True))
    whole = run_experiment(DIGITS, RunFolder(tmp_path / "whole"))
    assert [record.accuracies for record in result.history] == [record.accuracies for record in whole.history]
    assert written(tmp_path / "stopped") == written(tmp_path / "whole")


def test_the_first_checkpoint_of_a_large_run_waits_until_it_costs_no_more_than_its_share(tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("cofair.storage.checkpoint.time.monotonic", lambda: now[0])
    small, large = (Checkpoints(tmp_path, None) for _ in range(2))
    small.expect(1000)
    large.expect(int(10 * RATE))  # ten seconds, a fiftieth of 500
    position = SimpleNamespace(t=3, last=False)
    found = []
    for now[0] in (9.0, 11.0, 499.0, 501.0):
        found.append((small.due(position), large.due(position)))
    assert found == [(False, False), (True, False), (True, False), (True, True)]
