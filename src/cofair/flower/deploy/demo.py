"""A real federation on this machine, beside the simulation of the same experiment."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cofair.errors import RunError
from cofair.flower.asks import asked_by
from cofair.flower.deploy.app import write_app
from cofair.flower.deploy.local import LocalFederation
from cofair.flower.deploy.processes import complaint
from cofair.flower.traffic import FILE as TRAFFIC
from cofair.runs.experiment import Experiment
from cofair.runs.history import Record, read_history
from cofair.runs.prepare import set_up
from cofair.runs.result import Result
from cofair.runs.run import run_experiment

STATUS_EVERY = 20.0  # seconds: asking Flower starts a process, which costs more than looking for files
TOLERANCE = 1e-4


@dataclass(frozen=True)
class Deployed:
    """What the federation measured, the simulation of the same, and the bytes that travelled."""

    simulated: Result
    history: list[Record]
    contributions: list[float]
    traffic: list[dict[str, int | str]]
    seconds: float

    @property
    def difference(self) -> float:
        """Return the largest difference between federation and simulation, of accuracies, reputations, downloads."""
        own, other = self.history, self.simulated.history
        if len(own) != len(other):
            raise RunError(f"The federation tested {len(own)} rounds, the simulation {len(other)}.")
        pairs = [(self.contributions, list(self.simulated.contributions))]
        for one, two in zip(own, other, strict=True):
            pairs += [(one.accuracies, two.accuracies), (one.reputation or [], two.reputation or [])]
            pairs.append((one.download, two.download))
        return max(abs(a - b) for left, right in pairs for a, b in zip(left, right, strict=True))


def experiment(rounds: int, clients: int, method: str, seed: int) -> Experiment:
    """Return the experiment of the demonstration: the embedded data, unequally spread."""
    return Experiment.from_dict({
        "federation": {"data": "digits", "scene": "pow", "clients": clients},
        "training": {"rounds": rounds},
        "contribution": {"on": "validation"},
        "run": {"seed": seed, "device": "cpu", "evaluate_every": 1},
        "method": {"name": method},
    })  # fmt: skip


def demonstrate(folder: Path, chosen: Experiment, seconds: float, tell: Callable[[str], None]) -> Deployed:
    """Run an experiment on a federation in an empty folder, and in simulation; all processes are gone afterwards."""
    began = time.monotonic()
    names, allow = [str(k) for k in range(chosen.federation.clients)], " ".join(asked_by(chosen))
    with LocalFederation(folder) as federation:
        tell("certificates and keys made; starting the SuperLink")
        federation.start_superlink()
        write_app(folder / "app", chosen, len(names))
        write_data(folder, chosen)
        for name in names:
            federation.register(name)
            federation.start_node(name, node_config(folder, name, allow))
            tell(f"SuperNode {name} registered and started")
        out = folder / "run"
        run = federation.run(folder / "app", run_config(folder, out))
        tell("the app is sent; every message to a participant starts a process there")
        simulated = run_experiment(chosen)
        wait(federation, run, out, began + seconds, tell)
        taken = time.monotonic() - began
        tell("stopping everything")
    return read_back(out, simulated, taken)


def read_back(out: Path, simulated: Result, seconds: float) -> Deployed:
    """Return what a run folder of the federation holds, beside its simulation."""
    contributions = json.loads((out / "run.json").read_text(encoding="utf-8"))["contributions"]
    traffic = json.loads((out / TRAFFIC).read_text(encoding="utf-8"))
    return Deployed(simulated, read_history(out / "history.jsonl"), contributions, traffic, seconds)


def node_config(folder: Path, name: str, allow: str) -> str:
    """Return the settings of a participant whose data `write_data` wrote."""
    return f'name="{name}" data={json.dumps(str(folder / f"data-{name}.npz"))} allow="{allow}"'


def run_config(folder: Path, out: Path) -> list[str]:
    """Return the settings of a run on the data that `write_data` wrote."""
    return [f"out={json.dumps(str(out))}", f"data={json.dumps(str(folder / 'server.npz'))}"]


def write_data(folder: Path, chosen: Experiment) -> None:
    """Give everybody a file of its own, as it is in reality."""
    federation = set_up(chosen).problem.federation
    for i, name in enumerate(federation.names):
        own = federation.client(i)
        np.savez(folder / f"data-{name}.npz", x=own.x.numpy(), y=own.y.numpy())
    assert federation.validation is not None  # the experiment has one
    test, validation = federation.test, federation.validation
    np.savez(
        folder / "server.npz", x_test=test.x.numpy(), y_test=test.y.numpy(),
        x_validation=validation.x.numpy(), y_validation=validation.y.numpy(),
    )  # fmt: skip


def is_over(out: Path) -> bool:
    """Tell whether the run of a folder has ended and everything is written."""
    return (out / "summary.json").exists() and (out / TRAFFIC).exists()


def wait(federation: LocalFederation, run: int, out: Path, until: float, tell: Callable[[str], None]) -> None:
    """Wait until the run is over, telling each round; bounded in time."""
    told, asked = 0, time.monotonic()
    while not is_over(out):
        federation.processes.check()
        rounds = len(read_history(out / "history.jsonl")) if (out / "history.jsonl").exists() else 0
        if rounds > told:
            told = rounds
            tell(f"round {rounds} is over")
        now = time.monotonic()
        if now > until:
            raise RunError(f"The federation did not finish in time: {complaint(federation.log(run))}")
        if now - asked > STATUS_EVERY:
            status, asked = federation.status(run), time.monotonic()
            if status.startswith("finished") and not is_over(out):
                raise RunError(f"Flower says that the run is {status}: {complaint(federation.log(run))}")
        time.sleep(0.3)
