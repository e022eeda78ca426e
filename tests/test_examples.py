"""The examples run as they are."""

from pathlib import Path

import nbformat
from nbclient import NotebookClient

QUICKSTART = Path(__file__).parents[1] / "examples" / "quickstart.ipynb"


def test_the_quick_start_runs_from_top_to_bottom(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    notebook = nbformat.read(QUICKSTART, as_version=4)
    nbformat.validate(notebook)
    client = NotebookClient(
        notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()  # raises where a cell fails
    shown = {cell["id"]: cell["outputs"] for cell in notebook.cells if cell["cell_type"] == "code"}
    assert "<table" in shown["run"][-1]["data"]["text/html"]
    assert "fedavg" in shown["compare"][-1]["data"]["text/html"]
    assert "client 3 brought" in shown["reward"][-1]["text"]
    assert "image/png" in shown["figure"][-1]["data"]
    assert (tmp_path / "report.html").stat().st_size > 10_000


def test_the_quick_start_is_kept_without_outputs():
    notebook = nbformat.read(QUICKSTART, as_version=4)
    for cell in notebook.cells:
        if cell["cell_type"] == "code":
            assert not cell["outputs"]
            assert cell["execution_count"] is None
