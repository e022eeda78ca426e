"""What is told before a run begins, once a method, and while a sweep goes on."""

from pathlib import Path

from cofair.cli import progress
from cofair.cli.progress import NotesOnce, sweep_progress
from cofair.config.experiment import Experiment
from cofair.config.job import Job


def job_of(method, seed):
    return Job(Experiment.from_dict({"method": {"name": method}, "run": {"seed": seed}}))


def test_notes_are_printed_for_the_first_seed_of_each_method(capsys):
    printer = NotesOnce()
    for seed in (3, 4):
        printer.notes(job_of("contract", seed), ["A first thing.", "A second."])
    printer.notes(job_of("fedavg", 3), ["Another."])
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == "contract, seed 3: A first thing. A second.\nfedavg, seed 3: Another.\n"


def test_a_log_hears_now_and_then_where_a_sweep_is(capsys, monkeypatch):
    job = Job(Experiment.from_dict({}), Path("run"))
    with sweep_progress(3) as listener:
        listener.failed(job, "It diverged.")  # less than PAUSE after the beginning
    assert capsys.readouterr().err == "run: It diverged.\n"
    monkeypatch.setattr(progress, "PAUSE", 0.0)
    with sweep_progress(3) as listener:
        listener.failed(job, "It diverged.")
    assert capsys.readouterr().err == "run: It diverged.\n1 of 3 runs\n"
