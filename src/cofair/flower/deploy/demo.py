"""A real federation on this machine, beside the simulation of the same experiment."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cofair.config.experiment import Experiment
from cofair.errors import RunError
from cofair.flower.deploy.local_federation import LocalFederation
from cofair.flower.deploy.processes import complaint
from cofair.flower.traffic import FILE as TRAFFIC
from cofair.results.record import Record
from cofair.results.result import Result
from cofair.runs.setup import set_up
from cofair.runs.single import run_experiment
from cofair.storage.history import read_history

STATUS_EVERY = 20.0  # seconds; asking Flower starts a process, which costs more than looking for files
TOLERANCE = 1e-4
SERVER_DATA = "server.npz"


@dataclass(frozen=True)
class DemoResult:
    """What the federation measured, the simulation of the same experiment, and the bytes that were sent."""

    simulated: Result
    history: list[Record]
    contributions: list[float]
    traffic: list[dict[str, int | str]]
    seconds: float

    @property
    def difference(self) -> float:
        """Return the largest difference to the simulation in contributions, accuracies, reputations and downloads."""
        own, other = self.history, self.simulated.history
        if len(own) != len(other):
            raise RunError(f"The federation tested {len(own)} rounds, but the simulation {len(other)}.")
        pairs = [(self.contributions, list(self.simulated.contributions))]
        for one, two in zip(own, other, strict=True):
            pairs += [(one.accuracies, two.accuracies), (one.reputation or [], two.reputation or [])]
            pairs.append((one.download, two.download))
        return max(abs(a - b) for left, right in pairs for a, b in zip(left, right, strict=True))


def demonstrate(folder: Path, chosen: Experiment, seconds: float, tell: Callable[[str], None]) -> DemoResult:
    """Run an experiment on a federation in an empty folder, and in simulation; no process is left afterwards."""
    began = time.monotonic()
    names, out = [str(k) for k in range(chosen.federation.clients)], folder / "run"
    with LocalFederation(folder, chosen, names) as federation:
        tell("made folders, certificates and keys; starting the server")
        federation.start_superlink()
        write_data(federation, chosen)
        federation.write_server_settings(clients=len(names), out=str(out), data=SERVER_DATA)
        for name in names:
            federation.admit(name)
            federation.start_node(name)
            tell(f"participant {name} admitted and started")
        run = federation.run()
        tell("the app is sent; every message to a participant starts a process there")
        simulated = run_experiment(chosen)
        wait(federation, run, out, began + seconds, tell)
        taken = time.monotonic() - began
        tell("stopping everything")
    return read_back(out, simulated, taken)


def read_back(out: Path, simulated: Result, seconds: float) -> DemoResult:
    """Return what the run folder of the federation holds, together with its simulation."""
    contributions = json.loads((out / "run.json").read_text(encoding="utf-8"))["contributions"]
    traffic = json.loads((out / TRAFFIC).read_text(encoding="utf-8"))
    return DemoResult(simulated, read_history(out / "history.jsonl"), contributions, traffic, seconds)


def write_data(federation: LocalFederation, chosen: Experiment) -> None:
    """Give every participant and the server a file of their own, as in reality."""
    data = set_up(chosen).problem.federation
    for i, name in enumerate(data.names):
        own = data.client(i)
        np.savez(federation.participant(name) / "data.npz", x=own.x.numpy(), y=own.y.numpy())
    assert data.validation is not None  # the experiment has one
    test, validation = data.test, data.validation
    np.savez(
        federation.organiser.folder / SERVER_DATA, x_test=test.x.numpy(), y_test=test.y.numpy(),
        x_validation=validation.x.numpy(), y_validation=validation.y.numpy(),
    )  # fmt: skip


def is_over(out: Path) -> bool:
    """Return whether the run in a folder has ended and everything is written."""
    return (out / "summary.json").exists() and (out / TRAFFIC).exists()


def wait(federation: LocalFederation, run: int, out: Path, until: float, tell: Callable[[str], None]) -> None:
    """Wait until the run is over, reporting each round, but not beyond a moment of `time.monotonic`."""
    reported, asked = 0, time.monotonic()
    while not is_over(out):
        federation.processes.check()
        rounds = len(read_history(out / "history.jsonl")) if (out / "history.jsonl").exists() else 0
        if rounds > reported:
            reported = rounds
            tell(f"round {rounds} is over")
        now = time.monotonic()
        if now > until:
            raise RunError(f"The federation did not finish in time: {complaint(federation.log(run))}")
        if now - asked > STATUS_EVERY:
            status, asked = federation.status(run), time.monotonic()
            if status.startswith("finished") and not is_over(out):
                raise RunError(f"Flower says that the run is {status}: {complaint(federation.log(run))}")
        time.sleep(0.3)
