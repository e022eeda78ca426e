"""The demonstration with real processes: it takes minutes."""

import os
import signal
import subprocess
import sys
import time

import pytest

from cofair.cli.deploy_command import demo
from tests.flower.deployed import needs_nginx
from tests.flower.killing import ours

pytestmark = [pytest.mark.long, needs_nginx]
DEMO = [sys.executable, "-m", "cofair", "deploy", "demo"]


def test_the_demonstration_equals_its_simulation_and_leaves_nothing_behind(tmp_path, capsys):
    before = ours()
    demo(rounds=2, clients=2, method="fedrac", seed=1, seconds=500, out=tmp_path / "kept")
    printed = capsys.readouterr().out
    assert "Largest difference between the two, over all rounds: 0" in printed
    assert not ours() - before
    assert (tmp_path / "kept" / "report.html").exists()
    assert not list((tmp_path / "kept").rglob("*.key"))


@pytest.mark.parametrize(
    ("ask", "when"),
    [
        (signal.SIGINT, "starting the server"),
        (signal.SIGTERM, "participant 0 admitted"),
        (signal.SIGINT, "the app is sent"),
        (signal.SIGTERM, "the app is sent"),
        (signal.SIGINT, "round 1 is over"),
    ],
)
def test_an_interruption_leaves_no_process_and_no_folder(tmp_path, ask, when):
    before, environment = ours(), {**os.environ, "TMPDIR": str(tmp_path)}
    process = subprocess.Popen(
        [*DEMO, "--clients", "2"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment,
        cwd=tmp_path,
    )  # fmt: skip
    for line in process.stdout:
        if when in line:
            break
    time.sleep(1)
    process.send_signal(ask)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)  # impatience: it goes on to stop everything
    assert process.wait(timeout=60) in (130, -signal.SIGINT)  # the second one may meet it at its very end
    process.stdout.close()
    assert not ours() - before
    assert not list(tmp_path.iterdir())
