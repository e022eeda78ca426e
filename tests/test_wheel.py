"""The built wheel, installed alone into a clean environment."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.long
@pytest.mark.network
def test_the_wheel_alone_runs_a_comparison(tmp_path):
    def call(*command):
        done = subprocess.run(
            [str(part) for part in command], capture_output=True, text=True, cwd=tmp_path, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    call(sys.executable, "-m", "build", "--wheel", "--outdir", tmp_path, ROOT)
    (wheel,) = tmp_path.glob("cofair-*.whl")
    call(sys.executable, "-m", "venv", tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    call(python, "-m", "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt", wheel)
    table = call(tmp_path / "venv" / "bin" / "cofair", "compare", "--rounds", "12", "--set", "contribution.epochs=2")
    assert "fedavg" in table
    assert "What each client brought and got" in table
