"""Table 3 of CGSV: what a method costs at the server, as a share of the clients' training in the same rounds."""

import statistics
import time
from collections.abc import Sequence
from typing import Any

import torch

from cofair.engine import choose
from cofair.engine.exchange import ClientStates
from cofair.reproduce.measured import Line, Value
from cofair.reproduce.published import Number
from cofair.reproduce.tables import Table, experiment
from cofair.runs.experiment import Experiment
from cofair.runs.prepare import prepare

NAME = "cgsv-table3"
RULE = "measured"  # there are no rounds to choose from
ROUNDS = 6  # of which the first, that warms everything up, is not counted


def line(table: Table, cell: Number, seeds: Sequence[int], changes: Sequence[str]) -> Line:
    """Return a published ratio and ours."""
    cheap = (*changes, "contribution.measure=size")  # what clients bring does not change what the server has to do
    ratios = [ratio(experiment(table.paper, cell, seed, cheap)) for seed in seeds]
    spread = statistics.stdev(ratios) if len(ratios) > 1 else None
    return Line(cell, {RULE: Value(statistics.fmean(ratios), spread, len(ratios))})


def ratios_of(table: Table) -> list[Number]:
    """Return the ratios among the numbers of a table; its seconds are of one machine, and are left out."""
    return [cell for cell in table.cells if cell.metric == "time_overhead_over_training_time"]


def ratio(chosen: Experiment) -> float:
    """Return the median over rounds of the server's time over the clients' time."""
    method: Any = chosen.method
    with choose.arithmetic(chosen.run.precision):
        prepared = prepare(chosen)
        server, engine = prepared.server, prepared.engine
        state, clients = method.start(server), ClientStates()
        ratios = []
        for t in range(1, ROUNDS + 1):
            at_server, at_clients, began = 0.0, 0.0, _now()
            for phase in method.phases(server, t):
                rewards = method.rewards(server, state, t, phase)
                handed = _now()
                uploads, clients = engine.train(rewards, clients, t)
                trained = _now()
                state = method.learn(server, state, rewards, uploads, t, phase)
                learned = _now()
                at_server += handed - began + learned - trained
                at_clients, began = at_clients + trained - handed, learned
            ratios.append(at_server / at_clients)
    return statistics.median(ratios[1:])


def _now() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()
