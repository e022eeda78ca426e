"""The same app under Flower's simulation: two actors of Ray. Needs `pip install 'flwr[simulation]>=1.41,<1.43'`."""

import os
import subprocess
import sys

import pytest

from cofair.flower.deploy.app import demonstration
from cofair.runs.single import run_experiment
from cofair.storage.history import read_history

pytestmark = pytest.mark.long

CODE = """
import sys
from pathlib import Path
from flwr.serverapp import ServerApp
from flwr.simulation import run_simulation
from cofair.flower import client_app, serve
from cofair.flower.flower_settings import Waiting
from cofair.config.experiment import Experiment
from cofair.storage.folder import RunFolder

experiment = Experiment.from_file(Path(sys.argv[1]))
app = ServerApp()

@app.main()
def main(grid, context):
    wait = Waiting(join_seconds=120, round_seconds=120, poll_seconds=0.1)
    serve(grid, experiment, wait=wait, folder=RunFolder(Path(sys.argv[2])))

run_simulation(app, client_app(experiment), 4, backend_config={
    "init_args": {"num_cpus": 2, "include_dashboard": False}, "client_resources": {"num_cpus": 1, "num_gpus": 0.0}})
"""


def test_two_actors_give_the_numbers_of_the_vectorised_engine(tmp_path):
    pytest.importorskip("ray")
    chosen = demonstration(3, 4, "fedrac", 0)
    (tmp_path / "e.toml").write_text(chosen.to_toml())
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    environment = {**os.environ, **quiet, "FLWR_HOME": str(tmp_path / "home"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", CODE, str(tmp_path / "e.toml"), str(tmp_path / "run")]
    done = subprocess.run(command, env=environment, timeout=400, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    measured, simulated = read_history(tmp_path / "run" / "history.jsonl"), run_experiment(chosen).history
    assert [r.accuracies for r in measured] == [pytest.approx(r.accuracies) for r in simulated]
    assert [r.reputation for r in measured] == [pytest.approx(r.reputation) for r in simulated]
