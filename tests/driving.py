"""Runs as tests look at them: prepared from parts, driven from any state, every tested round and state collected."""

from dataclasses import replace

from cofair.config.job import Job
from cofair.results.listener import Listener
from cofair.runs import run as runs
from cofair.runs.setup import Parts
from cofair.storage.journal import NoJournal, Past


class Collected(NoJournal):
    """Collects tested rounds and the state after every round; the run begins at a state, if one is given."""

    def __init__(self, begun=None):
        self.rounds, self.states, self.begun = [], [], begun

    def begin(self, *given):
        return Past(state=self.begun)

    def tested(self, tested):
        self.rounds.append(tested)

    def keep(self, state):
        self.states.append(state)


def prepare(experiment, *, engine=None, **parts):
    """Return the run of an experiment, ready to start, with parts of our own and perhaps an engine of our own."""
    run = runs.prepare(experiment, Parts(**parts))
    return run if engine is None else with_engine(run, engine)


def with_engine(run, engine):
    run.setup = replace(run.setup, engine=engine)
    return run


def fresh(run, method=None, begun=None):
    """Return a run of the same set-up that has not started, from a state if one is given, and its journal."""
    experiment = run.experiment if method is None else replace(run.experiment, method=method)
    journal = Collected(begun)
    return runs.Run(Job(experiment), run.setup, run.brought, journal=journal), journal


def collected(run, method=None, begun=None):
    """Drive a fresh run of the same set-up to its end and return what its journal collected."""
    again, journal = fresh(run, method, begun)
    runs.drive(again)
    return journal


def rounds(run):
    """Return (record, delivered) of every tested round."""
    return [(tested.record, tested.delivered) for tested in collected(run).rounds]


class Heard(Listener):
    """A listener that calls what a test gives it, and collects failures by the name of the run."""

    def __init__(self, tested=None):
        self.failures, self.noted, self._tested = {}, {}, tested

    def notes(self, job, notes):
        self.noted[job.name] = notes

    def tested(self, job, record):
        if self._tested is not None:
            self._tested(job, record)

    def failed(self, job, reason):
        self.failures[job.name] = reason
