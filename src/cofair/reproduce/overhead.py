"""Table 3 of CGSV: what a method costs at the server, as a share of the clients' training in the same rounds."""

import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from cofair.engine import choose
from cofair.engine.problem import Engine
from cofair.engine.protocol import ClientStates
from cofair.methods import Method, Server
from cofair.reproduce.measurements import Line, Value
from cofair.reproduce.paper_numbers import Number
from cofair.reproduce.paper_tables import PublishedTable, experiment
from cofair.runs.measurement import measured, server_of
from cofair.runs.setup import set_up

NAME = "cgsv-table3"
RULE = "measured"  # there are no rounds to choose from
ROUNDS = 6  # of which the first, that warms everything up, is not counted

Federation = tuple[list[Number], int]  # the cells that share one, and its seed
Counted = Callable[[Sequence[Federation], str], Iterable[Federation]]


def lines(table: PublishedTable, seeds: Sequence[int], changes: Sequence[str], counted: Counted) -> list[Line]:
    """Return the published ratios and ours; seconds depend on the machine, and are left out.

    Methods that run on the same federation share it; `counted` shows how many federations are done.
    """
    places: dict[tuple[str, int], list[Number]] = {}
    for cell in table.cells:
        if cell.metric == "time_overhead_over_training_time":
            places.setdefault((cell.data, cell.clients), []).append(cell)
    cheap = (*changes, "contribution.measure=size")  # what clients bring does not change what the server has to do
    ratios: dict[Number, list[float]] = {}
    for cells, seed in counted([(cells, seed) for cells in places.values() for seed in seeds], "federations"):
        chosen = [experiment(table.paper, cell, seed, cheap) for cell in cells]
        with choose.arithmetic(chosen[0].run.precision):
            methods = [own.method for own in chosen]
            setup = set_up(chosen[0], methods=methods)
            server = server_of(setup, measured(setup, methods))
            for cell, method in zip(cells, methods, strict=True):
                ratios.setdefault(cell, []).append(ratio(method, server, setup.engine))
    return [Line(cell, {RULE: _value(ratios[cell])}) for cell in table.cells if cell in ratios]


def ratio(method: Method[Any], server: Server, engine: Engine) -> float:
    """Return the median over rounds of the server's time over the clients' time."""
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


def _value(ratios: Sequence[float]) -> Value:
    return Value(statistics.fmean(ratios), statistics.stdev(ratios) if len(ratios) > 1 else None, len(ratios))


def _now() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()
