"""The command line as a person meets it: output, files, exit codes."""

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from dataclasses import dataclass

import pytest

from cofair.cli import main

QUICK = [
    "--rounds", "12", "--clients", "4", "--set", "training.steps=2", "--set", "contribution.epochs=2",
    "--set", "model.hidden=[16]",
]  # fmt: skip


@dataclass
class Done:
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def cofair(capsys, monkeypatch):
    """Call the command line's entry point in this process, which has torch loaded already."""

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["cofair", *arguments])
        code = 0
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
        captured = capsys.readouterr()
        return Done(code, captured.out, captured.err)

    return call


def test_compare_as_a_process_prints_one_table_and_writes_the_results(tmp_path, cofair):
    out = tmp_path / "results"
    command = ["compare", "--methods", "standalone,fedavg", "--seeds", "2", *QUICK, "--out", str(out)]
    done = subprocess.run(
        [sys.executable, "-m", "cofair", *command], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""  # no progress bar where there is no terminal
    for word in ("fairness γ", "standalone", "fedavg", "±", "What each client brought and got"):
        assert word in done.stdout
    assert (out / "summary.csv").exists()
    assert (out / "fedavg-seed0" / "summary.json").exists()

    again = cofair("compare", "--methods", "standalone", *QUICK, "--out", str(out))
    assert again.returncode == 2
    assert again.stderr.startswith("error: ")
    assert "--overwrite" in again.stderr


def test_one_seed_shows_an_interval_over_clients_and_undefined_is_explained(cofair):
    done = cofair(
        "compare", "--methods", "standalone,fedavg", *QUICK, "--clients", "8", "--set", "method.personalise_units=0"
    )
    assert done.returncode == 0, done.stderr
    assert "bootstrap interval over clients" in done.stdout
    assert "[100, 100]" in done.stdout
    assert "undefined: all rewards (or all contributions) are equal" in done.stdout


def test_json_is_for_machines(cofair):
    done = cofair("compare", "--methods", "fedavg", *QUICK, "--json")
    answer = json.loads(done.stdout)
    assert answer["methods"][0]["method"] == "fedavg"
    assert len(answer["clients"]) == 4
    assert answer["experiment"]["training"]["rounds"] == 12
    assert {row["name"] for row in json.loads(cofair("methods", "--json").stdout)} >= {"standalone", "fedavg"}
    assert any(row["name"] == "digits" for row in json.loads(cofair("data", "list", "--json").stdout))


def test_run_takes_an_experiment_file_and_overrides(tmp_path, cofair):
    file = tmp_path / "experiment.toml"
    file.write_text('[training]\nrounds = 300\nsteps = 2\n[federation]\nclients = 3\n[method]\nname = "fedavg"\n')
    out = tmp_path / "run"
    done = cofair("run", str(file), "--set", "training.rounds=11", "--set", "contribution.epochs=2", "--out", str(out))
    assert done.returncode == 0, done.stderr
    assert "fedavg" in done.stdout
    assert "rounds = 11" in (out / "experiment.toml").read_text()
    assert len((out / "history.jsonl").read_text().splitlines()) == 10
    machine = cofair("run", str(out / "experiment.toml"), "--json")
    assert json.loads(machine.stdout)["cells"]["last"]["max"] > 0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["compare", "--methods", "fedavgg"], "Unknown method 'fedavgg': did you mean 'fedavg'?"),
        (["compare", "--data", "digit"], "'digits'"),
        (["compare", "--scene", "power"], "Unknown scene 'power'"),
        (["compare", "--rule", "first"], "Unknown rule 'first'"),
        (["compare", "--set", "training.lrr=1"], "Unknown setting 'training.lrr': did you mean 'lr'?"),
        (["compare", "--set", "lr"], "table.key=value"),
        (["compare", "--clients", "0"], "federation.clients must be at least 1, but is 0"),
        (["compare", "--device", "tpu"], "run.device = 'tpu' is not a choice"),
        (["compare", "--data", "tiny-imagenet"], "cofair data get tiny-imagenet"),
        (["run", "nothing.toml"], "Cannot read the experiment nothing.toml"),
        (["data", "get", "imagenet"], "imagenet"),
        (["data", "path", "mnst"], "mnist"),
    ],
)
def test_a_mistake_is_a_sentence_and_exit_code_2(arguments, sentence, tmp_path, cofair, monkeypatch):
    monkeypatch.setenv("COFAIR_HOME", str(tmp_path))
    done = cofair(*arguments)
    assert done.returncode == 2, done.stderr
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.count("\n") == 1


def test_an_unknown_option_is_wrong_usage_too(cofair):
    done = cofair("compare", "--nonsense")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_methods_and_data_list_tell_what_there_is(cofair):
    assert "personalise_units" in cofair("methods").stdout
    assert "cifar10" in cofair("data", "list").stdout
    assert cofair("--version").stdout.startswith("cofair ")
    bare = cofair()
    assert "compare" in bare.stdout + bare.stderr


def test_a_terminal_sees_progress_and_an_interrupt_keeps_what_was_written(tmp_path):
    out = tmp_path / "run"
    master, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "cofair", "compare", "--methods", "fedavg", "--rounds", "100000", "--out", str(out)],
        stdout=subprocess.DEVNULL, stderr=terminal, env=os.environ | {"TERM": "xterm", "COLUMNS": "160"},
    )  # fmt: skip
    os.close(terminal)
    seen, deadline = "", time.monotonic() + 90
    while time.monotonic() < deadline and not ("γ" in seen and "round" in seen and "fedavg" in seen):
        if select.select([master], [], [], 1)[0]:
            seen += os.read(master, 65536).decode(errors="replace")
    process.send_signal(signal.SIGINT)
    while time.monotonic() < deadline:
        try:
            if select.select([master], [], [], 0.2)[0]:
                seen += os.read(master, 65536).decode(errors="replace")
        except OSError:  # the other end is closed
            break
        if process.poll() is not None:
            break
    assert process.wait(timeout=30) == 130
    os.close(master)
    assert "best" in seen
    assert "left" in seen
    assert "Traceback" not in seen
    assert (out / "fedavg-seed0" / "history.jsonl").read_text().count("\n") >= 1
