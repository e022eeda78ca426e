"""A client's reward as files that need no cofair."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn
from typer.testing import CliRunner

import cofair
from cofair.cli.main import app
from cofair.config.experiment import Experiment
from cofair.engine.protocol import Delivered
from cofair.errors import RunError, UsageError
from cofair.models import build
from cofair.runs.folder_rewards import export_from_folder
from cofair.runs.single import run_experiment
from cofair.storage.export import export
from cofair.storage.folder import RunFolder
from cofair.storage.tensor_file import TensorFile, write
from tests.corruption.parsers import chained

TINY = {"training": {"rounds": 3, "steps": 2}, "run": {"device": "cpu"}, "contribution": {"epochs": 1}}
ALONE = """
import sys, torch
from safetensors.torch import load_file, save_file
program = torch.export.load(sys.argv[1]).module()
save_file({"y": program(load_file(sys.argv[2])["x"]).detach()}, sys.argv[3])
assert "cofair" not in sys.modules
"""


def carried_out(folder, hands):
    experiment = Experiment.from_dict({**TINY, "method": {"name": "contract", "hands": hands}})
    return run_experiment(experiment, RunFolder(folder))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "contract"
    return folder, carried_out(folder, "submodels")


def test_a_submodel_runs_in_a_python_that_has_no_cofair(finished, tmp_path):
    folder, result = finished
    answer = CliRunner().invoke(app, ["export", str(folder), "--client", "3", str(tmp_path / "mine")])
    assert answer.exit_code == 0, answer.output
    x = torch.randn(7, 1, 8, 8)
    save_file({"x": x}, tmp_path / "x")
    paths = [str(tmp_path / name) for name in ("mine.pt2", "x", "y")]
    subprocess.run([sys.executable, "-I", "-c", ALONE, *paths], check=True, timeout=120)
    assert torch.allclose(load_file(tmp_path / "y")["y"], result.rewards[3](x), atol=1e-5)


def test_tensors_come_with_what_is_known_of_them(finished, tmp_path):
    folder, result = finished
    tensors, _ = export_from_folder(folder, "3", tmp_path / "mine.safetensors")
    module = build("mlp", (1, 8, 8), 10)
    module.load_state_dict(load_file(tensors))
    x = torch.randn(4, 1, 8, 8)
    with torch.no_grad():
        assert torch.equal(module(x), result.rewards[3](x))
    with safe_open(tensors, "pt") as file:
        facts = file.metadata()
    ledger = [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]
    assert facts["sha256_in_ledger"] == ledger[-1]["rewards"][3]
    assert facts["test_accuracy"] == f"{result.history[-1].accuracies[3]:.6g}"
    assert (facts["client"], facts["method"], facts["round"]) == ("3", "contract", "3")
    assert "scaled to [0, 1]" in facts["inputs"]


def swapped(path):
    file = TensorFile(path)
    kept = file.value(Delivered, torch.device("cpu"))
    write(path, file.facts, replace(kept, parameters=kept.parameters + 1))


def of_an_earlier_version(folder):
    """Write the ledger as earlier versions did, with hashes of the clients' own models only."""
    entries = [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]
    old = [{k: v for k, v in entry.items() if k not in ("settings", "facts", "kept", "last")} for entry in entries]
    lines = chained(old)
    (folder / "ledger.jsonl").write_bytes(b"".join(line + b"\n" for line in lines))
    summary = json.loads((folder / "summary.json").read_text())
    (folder / "summary.json").write_text(json.dumps(summary | {"ledger": json.loads(lines[-1])["hash"]}))


def test_a_reward_that_is_not_the_one_in_the_ledger_is_refused(finished, tmp_path):
    folder = shutil.copytree(finished[0], tmp_path / "run")
    swapped(folder / "rewards.safetensors")
    with pytest.raises(RunError, match="are not those whose hashes the ledger has"):
        export_from_folder(folder, "3", tmp_path / "mine")
    of_an_earlier_version(folder)
    with pytest.raises(RunError, match=r"The reward of client '3' in .* is not the one whose hash the ledger has"):
        export_from_folder(folder, "3", tmp_path / "mine")
    assert not list(tmp_path.glob("mine*"))


def test_a_whole_model_that_is_not_the_one_in_a_ledger_of_an_earlier_version_is_refused(tmp_path):
    folder = tmp_path / "run"
    carried_out(folder, "trailing")
    of_an_earlier_version(folder)
    export_from_folder(folder, "3", tmp_path / "mine")
    swapped(folder / "rewards.safetensors")
    with pytest.raises(RunError, match="are not those whose hashes the ledger has"):
        export_from_folder(folder, "3", tmp_path / "other")
    assert not list(tmp_path.glob("other*"))


def test_no_sample_is_in_the_files(tmp_path):
    secret = torch.full((2, 64), 0.123456789)
    _, program = export(nn.Sequential(nn.Linear(64, 3)), secret, tmp_path / "a", {})
    assert secret.numpy().tobytes()[:16] not in program.read_bytes()


@pytest.mark.parametrize(
    ("model", "shape"), [("cnn-mnist", (1, 28, 28)), ("cnn-cifar", (3, 32, 32)), ("resnet18", (3, 32, 32))]
)
def test_every_model_for_images_becomes_a_program(model, shape, tmp_path):
    settings = {"widths": (4, 4, 4, 4)} if model == "resnet18" else {}
    module, x = build(model, shape, 10, **settings).eval(), torch.randn(2, *shape)
    _, program = export(module, x, tmp_path / "a.pt2", {})
    more = torch.randn(5, *shape)
    assert torch.allclose(torch.export.load(program).module()(more), module(more), atol=1e-5)


def test_texts_become_a_program(tmp_path):
    module, x = build("textcnn", (9,), 2, vocabulary=20).eval(), torch.randint(0, 20, (2, 9))
    _, program = export(module, x, tmp_path / "a", {})
    assert torch.allclose(torch.export.load(program).module()(x), module(x), atol=1e-6)


def test_a_model_of_ones_own_is_exported_in_python(tmp_path):
    federation = cofair.federate("digits", "pow", clients=3)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.Tanh(), nn.Linear(5, 10))
    result = cofair.run(
        model, federation, "fedavg", rounds=2, steps=1, out=tmp_path / "run", contributions=[1.0, 2.0, 3.0]
    )
    _, program = result.export(1, tmp_path / "new" / "one")
    x = torch.randn(3, 1, 8, 8)
    assert torch.allclose(torch.export.load(program).module()(x), result.rewards[1](x), atol=1e-6)
    assert result.export("2", tmp_path / "two")[0] == tmp_path / "two.safetensors"
    with pytest.raises(UsageError, match="There are 3 clients, 0 to 2, so there is no client 3"):
        result.export(3, tmp_path / "three")
    with pytest.raises(UsageError, match=r"model or of data of one's own, .* result.export\(client, path\)"):
        export_from_folder(tmp_path / "run", "1", tmp_path / "x")


class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(64, 10)

    def forward(self, x):
        x = x.flatten(1)
        return self.head(x) if float(x.sum()) > 0 else self.head(-x)


def test_a_model_that_is_no_program_leaves_its_tensors(tmp_path):
    (tmp_path / "a.pt2").write_text("of an earlier model")
    with pytest.raises(RunError, match=r"cannot make a program of this model \(.*its tensors are in .*a.safetensors"):
        export(Branching(), torch.randn(2, 64), tmp_path / "a", {})
    assert "head.weight" in load_file(tmp_path / "a.safetensors")
    assert not (tmp_path / "a.pt2").exists()


def test_what_cannot_be_exported_is_said(finished, tmp_path):
    folder, _ = finished
    asked = {
        ("no folder", "3"): "Cannot read",
        (folder, "33"): "There is no client '33': choose one of 0, 1, 2",
    }
    for (where, client), sentence in asked.items():
        answer = CliRunner().invoke(app, ["export", str(where), "--client", client, str(tmp_path / "x")])
        assert isinstance(answer.exception, UsageError | RunError)
        assert sentence in str(answer.exception)
    (folder / "rewards.safetensors").rename(folder / "elsewhere")
    try:
        with pytest.raises(RunError, match="holds no models: 'cofair run' and 'cofair compare --keep-models'"):
            export_from_folder(folder, "3", tmp_path / "x")
    finally:
        (folder / "elsewhere").rename(folder / "rewards.safetensors")
