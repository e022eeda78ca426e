import gc
import json
import weakref

import pytest
import torch

from cofair.config.experiment import Experiment
from cofair.config.grid import read_grid
from cofair.config.job import Job
from cofair.engine.lockstep import Lockstep
from cofair.engine.vectorised import VectorisedEngine
from cofair.errors import CofairError, UsageError
from cofair.report.reported_runs import read_run
from cofair.runs.jobs import check_lockstep, run_jobs, unfinished
from cofair.runs.lockstep_batch import run_in_lockstep
from cofair.runs.run import Run
from cofair.runs.scheduling import batches, most_rows
from cofair.runs.single import run_experiment
from cofair.storage.audit import checked_entries, client_lines
from tests.driving import Heard

SMALL = {
    "federation": {"data": "digits", "clients": 4},
    "model": {"hidden": [16, 8]},
    "training": {"rounds": 4, "steps": 3, "lr": 0.1},
    "contribution": {"epochs": 2},
    "run": {"precision": "float64", "evaluate_every": 1, "device": "cpu"},
}
VARIED = {
    "run": {"seed": [0, 7]},
    "federation": [{"scene": "pow"}, {"scene": "cla"}],
    "method": [
        "fedavg",
        "fedsac",
        "fedrac",
        "fedave",
        "cgsv",
        "fjord",
        "standalone",
        "iafl",
        {"name": "q-ffl", "q": 2.0},
    ],
}


def jobs_of(tables, folder):
    return [Job(point.experiment, folder / point.name) for point in read_grid(tables)]


def test_runs_in_lockstep_give_the_numbers_of_runs_one_by_one(tmp_path):
    jobs = jobs_of(SMALL | {"grid": VARIED}, tmp_path)
    assert len(jobs) == 36
    for batch in batches(jobs):
        run_in_lockstep(batch, Heard())
    for job in jobs:
        together, alone = read_run(job.folder).outcome, run_experiment(job.experiment)
        assert together.contributions == pytest.approx(alone.contributions, abs=1e-9)
        assert [r.round for r in together.history] == [r.round for r in alone.history]
        for ours, theirs in zip(together.history, alone.history, strict=True):
            assert ours.accuracies == pytest.approx(theirs.accuracies, abs=1e-9), job.folder.name
            assert ours.download == pytest.approx(theirs.download, abs=1e-9)
            if theirs.reputation is not None:
                assert ours.reputation == pytest.approx(theirs.reputation, abs=1e-7)


def test_stages_alone_are_trained_in_lockstep_with_the_numbers_of_runs_one_by_one(tmp_path):
    """Which clients still rise differs from run to run, and so does who trains with whom."""
    stages = {"contribution": {"steps": 60, "stage": 6, "patience": 2, "every": 2}}
    varied = {"run": {"seed": [0, 7]}, "federation": VARIED["federation"], "method": ["fedrac", "standalone"]}
    jobs = jobs_of(SMALL | stages | {"grid": varied}, tmp_path)
    run_in_lockstep(jobs, Heard())
    for job in jobs:
        together, alone = read_run(job.folder).outcome, run_experiment(job.experiment)
        assert together.contributions == pytest.approx(alone.contributions, abs=1e-9)
        for ours, theirs in zip(together.history, alone.history, strict=True):
            assert ours.accuracies == pytest.approx(theirs.accuracies, abs=1e-9), job.folder.name
            assert (ours.contributions is None) == (theirs.contributions is None)
            if theirs.contributions is not None:
                assert ours.contributions == pytest.approx(theirs.contributions, abs=1e-9)


def test_who_asks_for_losses_trains_with_the_others(tmp_path, monkeypatch):
    """One training a round for all three, though only FedAVE's clients tell their losses."""
    trained = []
    train = VectorisedEngine.train

    def counted(engine, rewards, states, t):
        trained.append((rewards.work.phase.address, t, len(engine.problem.federation)))
        return train(engine, rewards, states, t)

    monkeypatch.setattr(VectorisedEngine, "train", counted)
    run_in_lockstep(jobs_of(SMALL | {"grid": {"method": ["cgsv", "fedave", "cffl"]}}, tmp_path), Heard())
    assert trained == [("alone", 1, 4), *[("train", t, 12) for t in (1, 2, 3, 4)]]


def test_optimisers_with_memory_keep_it_apart_in_lockstep(tmp_path):
    tables = SMALL | {"training": SMALL["training"] | {"optimiser": "adam", "lr": 0.01}}
    jobs = jobs_of(tables | {"grid": {"run": {"seed": [0, 1]}, "method": ["fedavg", "cgsv"]}}, tmp_path)
    (batch,) = batches(jobs)
    run_in_lockstep(batch, Heard())
    for job in jobs:
        alone = run_experiment(job.experiment)
        assert read_run(job.folder).outcome.accuracies == pytest.approx(alone.accuracies, abs=1e-9)


@pytest.mark.parametrize("checkpoint_every", [1, 0])
def test_runs_that_do_not_fit_in_memory_go_on_in_smaller_parts(tmp_path, monkeypatch, checkpoint_every):
    tables = SMALL | {"run": SMALL["run"] | {"checkpoint_every": checkpoint_every}}
    jobs = jobs_of(tables | {"grid": {"run": {"seed": [0, 1, 2, 3, 4]}, "method": ["fedrac"]}}, tmp_path)
    train, sizes = Lockstep.train, []

    def scarce(lockstep, requests):
        if requests[0].t == 3 and len(requests) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        sizes.append((requests[0].t, len(requests)))
        return train(lockstep, requests)

    alive, begun = weakref.WeakSet(), Run.__init__

    def noted(run, *given, **options):
        begun(run, *given, **options)
        if alive and len(alive) >= 5:
            raise AssertionError("what did not fit is still held")
        alive.add(run)

    monkeypatch.setattr(Lockstep, "train", scarce)
    monkeypatch.setattr(Run, "__init__", noted)
    gc.disable()  # what waits for it may wait too long
    try:
        with pytest.warns(UserWarning, match="5 runs at once: they continue 2 at a time"):
            run_in_lockstep(jobs, Heard())
    finally:
        gc.enable()
    assert [count for t, count in sizes if t == 4] == [2, 2, 1]
    if checkpoint_every:
        assert [count for t, count in sizes if t == 2] == [5]  # they went on where they were
    for job in jobs:
        alone = run_experiment(job.experiment)
        assert read_run(job.folder).outcome.accuracies == pytest.approx(alone.accuracies, abs=1e-9)


def test_a_run_that_failed_is_not_tried_again_when_memory_runs_out(tmp_path, monkeypatch):
    tables = SMALL | {"contribution": {"measure": "size"}, "run": SMALL["run"] | {"precision": "float32"}}
    jobs = jobs_of(tables | {"grid": {"training": {"lr": [0.1, 0.05, 1e30]}}}, tmp_path)
    train, heard = Lockstep.train, Heard()

    def scarce(lockstep, requests):
        if requests[0].t == 3 and len(lockstep.problems) == 3:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return train(lockstep, requests)

    monkeypatch.setattr(Lockstep, "train", scarce)
    with pytest.warns(UserWarning, match="3 runs at once: they continue 1 at a time"):
        run_in_lockstep(jobs, heard)
    assert unfinished(jobs) == jobs[2:]
    assert list(heard.failures) == [job.name for job in jobs[2:]]


def test_workers_share_the_memory_of_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (80e9, 100e9))
    gpu, size = torch.device("cuda"), 10_000_000
    alone, many = (most_rows(size, gpu, workers) for workers in (1, 10))
    assert alone == 0.6 * 80e9 // (4 * 10 * size)  # what is free
    assert many == 0.6 * 10e9 // (4 * 10 * size)  # a tenth of all there is


def test_validation_sets_of_different_sizes_ask_for_different_looks(tmp_path):
    tables = SMALL | {"federation": SMALL["federation"] | {"samples": 250, "clients": 3}, "method": {"name": "fedave"}}
    jobs = jobs_of(tables | {"grid": {"federation": {"validation": [0.06, 0.3]}}}, tmp_path)
    (batch,) = batches(jobs)
    run_in_lockstep(batch, Heard())
    for job in jobs:
        ours, theirs = read_run(job.folder).outcome.history[-1], run_experiment(job.experiment).history[-1]
        assert ours.reputation == pytest.approx(theirs.reputation, abs=1e-9)


def test_a_single_run_that_does_not_fit_in_memory_says_so(tmp_path, monkeypatch):
    def scarce(lockstep, requests):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(Lockstep, "train", scarce)
    with pytest.raises(torch.OutOfMemoryError):
        run_in_lockstep(jobs_of(SMALL | {"grid": {"run": {"seed": [0]}}}, tmp_path), Heard())


def test_the_ledger_of_a_sweep_names_no_rewards_for_none_are_kept(tmp_path):
    job = Job(Experiment.from_dict(SMALL | {"method": {"name": "fedrac"}}), tmp_path / "own")
    run_in_lockstep([job], Heard())
    entries = checked_entries(job.folder)
    assert not any("rewards" in entry for entry in entries)
    assert not list(job.folder.glob("*.safetensors"))
    lines = client_lines(entries, "2")
    assert [(line.round, line.reward) for line in lines] == [(t, None) for t in (1, 2, 3, 4)]


def test_what_is_finished_is_not_computed_again(tmp_path):
    jobs = jobs_of(SMALL | {"grid": {"run": {"seed": [0, 1]}}}, tmp_path)
    run_in_lockstep(jobs[:1], Heard())
    assert unfinished(jobs) == jobs[1:]
    changed = [Job(job.experiment.with_run(evaluate_every=2), job.folder) for job in jobs]
    assert unfinished(changed) == changed  # another experiment in the same folder is another run
    (jobs[0].folder / "summary.json").unlink()
    assert unfinished(jobs) == jobs


def test_a_run_that_diverges_does_not_end_the_others(tmp_path):
    tables = SMALL | {"contribution": {"measure": "size"}, "run": SMALL["run"] | {"precision": "float32"}}
    jobs = jobs_of(tables | {"grid": {"training": {"lr": [0.1, 1e30]}}}, tmp_path)
    heard = Heard()
    run_in_lockstep(jobs, heard)
    assert list(heard.failures) == [jobs[1].name]
    assert "diverged" in heard.failures[jobs[1].name]
    assert unfinished(jobs) == jobs[1:]


@pytest.mark.parametrize("wild_rate", [1e9, 1e300])  # losses, or models too, are not finite
def test_clients_that_diverge_alone_end_only_their_own_runs(tmp_path, wild_rate):
    jobs = jobs_of(SMALL | {"grid": {"training.lr": [0.1, wild_rate], "method": ["fedavg", "fedrac"]}}, tmp_path)
    heard = Heard()
    run_in_lockstep(jobs, heard)
    wild = [job for job in jobs if job.experiment.training.lr == wild_rate]
    assert len(wild) == 2
    assert wild == unfinished(jobs)
    assert list(heard.failures) == [job.name for job in wild]
    assert all("diverge" in failure or "finite" in failure for failure in heard.failures.values())


def test_a_run_with_other_settings_is_never_replaced(tmp_path):
    """Neither a finished one nor one that was interrupted."""
    jobs = jobs_of(SMALL | {"grid": {"method": ["fedavg"]}}, tmp_path)
    run_in_lockstep(jobs, Heard())
    kept = (jobs[0].folder / "history.jsonl").read_text()
    others = jobs_of(SMALL | {"training": {"rounds": 2, "steps": 3}, "grid": {"method": ["fedavg"]}}, tmp_path)
    assert [job.folder for job in others] == [job.folder for job in jobs]
    for _ in range(2):
        with pytest.raises(UsageError, match="holds a run with other settings"):
            run_jobs(others, Heard(), lockstep=True)
        (jobs[0].folder / "summary.json").unlink(missing_ok=True)
    assert (jobs[0].folder / "history.jsonl").read_text() == kept
    check_lockstep(jobs)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [({"federation.data": ["digits", "mnistt"]}, "mnist"), ({"run.device": ["cpu", "cuda"]}, "cuda|CUDA|GPU")],
)
def test_what_cannot_be_computed_is_found_before_anything_is(tmp_path, changes, sentence):
    if "run.device" in changes and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(CofairError, match=sentence):
        run_jobs(jobs_of(SMALL | {"grid": changes}, tmp_path), Heard(), lockstep=True)
    assert not list(tmp_path.iterdir())


def test_seconds_are_a_share_of_the_batch(tmp_path):
    jobs = jobs_of(SMALL | {"grid": {"run": {"seed": [0, 1, 2]}}}, tmp_path)
    run_in_lockstep(jobs, Heard())
    times = [json.loads((job.folder / "summary.json").read_text())["seconds"] for job in jobs]
    assert max(times) < 3 * min(times)


def test_batches_are_alike_and_runs_of_one_federation_stand_together(tmp_path):
    grid = {"federation": {"data": ["digits", "mnist"]}, "run": {"seed": [0, 1]}, "method": ["fedavg", "fedrac"]}
    jobs = jobs_of(SMALL | {"grid": grid}, tmp_path)
    found = batches(jobs)
    assert sorted(len(batch) for batch in found) == [4, 4]
    assert all(len({job.experiment.federation.data for job in batch}) == 1 for batch in found)
    assert [job.experiment.run.seed for job in found[0]] == [0, 0, 1, 1]
    assert len(batches(jobs, workers=4)) == 4


@pytest.mark.parametrize(
    ("workers", "sizes"),
    [(1, [8]), (2, [4, 4]), (3, [4, 4]), (4, [2] * 4), (5, [2] * 4), (8, [1] * 8), (50, [1] * 8)],
)
def test_more_workers_than_federations_divide_their_runs(tmp_path, workers, sizes):
    grid = {"run": {"seed": [0, 1]}, "method": ["fedavg", "fedrac", "fedsac", "cgsv"]}
    jobs = jobs_of(SMALL | {"grid": grid}, tmp_path)
    found = batches(jobs, workers)
    assert [len(batch) for batch in found] == sizes
    assert {job.folder for batch in found for job in batch} == {job.folder for job in jobs}


def test_only_federations_that_are_left_over_are_divided(tmp_path):
    grid = {"run": {"seed": [0, 1, 2, 3, 4]}, "method": ["fedavg", "fedrac", "fedsac", "cgsv"]}
    jobs = jobs_of(SMALL | {"grid": grid}, tmp_path)
    assert [len(batch) for batch in batches(jobs, workers=2)] == [4, 4, 4, 4, 2, 2]
    assert [len(batch) for batch in batches(jobs, workers=4)] == [4, 4, 4, 4, 1, 1, 1, 1]
    assert [len(batch) for batch in batches(jobs, workers=5)] == [4, 4, 4, 4, 4]


def test_a_grid_is_all_combinations():
    points = read_grid({"grid": {"run": {"seed": [0, 1]}, "method": ["fedavg", {"name": "fedsac", "beta": 5}]}})
    assert [point.name for point in points] == [
        "seed0-fedavg",
        "seed0-fedsac-beta5",
        "seed1-fedavg",
        "seed1-fedsac-beta5",
    ]
    assert points[1].experiment.method.beta == 5
    assert points[2].varied == {"run.seed": 1, "method.name": "fedavg"}


def test_a_file_without_a_grid_is_one_experiment():
    (point,) = read_grid({"training": {"rounds": 3}}, ("training.rounds=5",))
    assert point.experiment.training.rounds == 5
    assert point.name == "run"


def test_an_override_takes_a_part_of_the_grid_or_adds_to_it():
    tables = {"grid": {"run": {"seed": [0, 1]}, "method": ["fedavg", "cgsv"]}}
    points = read_grid(tables, ("grid.run.seed=[1]", 'grid.federation.scene=["pow", "cla"]', 'grid.method=["fedavg"]'))
    assert [point.name for point in points] == ["seed1-fedavg-pow", "seed1-fedavg-cla"]
    with pytest.raises(UsageError, match=r"set all of grid\.method"):
        read_grid(tables, ('grid.method.name=["fedavg"]',))


@pytest.mark.parametrize("asked", ["run.seed=7", "method.name=cgsv"])
def test_an_override_that_the_grid_would_undo_is_told(asked):
    tables = {"grid": {"run": {"seed": [0, 1]}, "method": ["fedavg", {"name": "fedsac", "beta": 5}]}}
    with pytest.raises(UsageError, match=f"The grid varies {asked.partition('=')[0]}: .* with grid"):
        read_grid(tables, (asked,))
    assert len(read_grid(tables, ("method.beta=3", "run.precision=tf32"))) == 4


def test_the_files_own_method_settings_stay_with_that_method():
    points = read_grid({"method": {"name": "fedsac", "beta": 3}, "grid": {"method": ["fedavg", "fedsac"]}})
    assert points[1].experiment.method.beta == 3


@pytest.mark.parametrize(
    ("grid", "sentence"),
    [
        ({"run": {"seed": 3}}, "grid.run.seed must be a list"),
        ({"run": {"seed": []}}, "grid.run.seed must be a list"),
        ({"federation": [3]}, "must list tables"),
        ({"run": {"seed": [0, 0]}}, "twice"),
        ({"run": {"seeds": [0]}}, "seeds"),
        ({"nothing": {"seed": [0]}}, "nothing"),
        ([1], "must be a table"),
        ({"run": {"seed": list(range(2000))}, "training": {"rounds": list(range(1, 2000))}}, "fewer"),
    ],
)
def test_a_grid_that_makes_no_sense_is_told(grid, sentence):
    with pytest.raises(UsageError, match=sentence):
        read_grid({"grid": grid})


def test_the_loop_engine_cannot_run_in_lockstep(tmp_path):
    experiment = Experiment.from_dict({"run": {"engine": "loop"}})
    with pytest.raises(UsageError, match="lockstep"):
        check_lockstep([Job(experiment, tmp_path)])
