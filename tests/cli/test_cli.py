"""The command line as a person meets it: output, files, exit codes."""

import fcntl
import json
import os
import pty
import re
import select
import shlex
import signal
import struct
import subprocess
import sys
import termios
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from cofair.cli.interruptions import after_interruption
from cofair.cli.main import main
from cofair.data import datasets
from cofair.methods import registry

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
    monkeypatch.setattr(registry, "METHODS", dict(registry.METHODS))  # forget what a call loads

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
    assert "overwrite" in again.stderr


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
    assert answer["experiment"]["training"]["clip"] is None
    accuracies = [client["accuracy"] for client in answer["clients"]]
    assert max(accuracies) <= 1  # fractions everywhere in one document
    assert answer["methods"][0]["mean"] == pytest.approx(sum(accuracies) / 4)
    assert {row["name"] for row in json.loads(cofair("methods", "--json").stdout)} >= {"standalone", "fedavg"}
    assert any(row["name"] == "digits" for row in json.loads(cofair("data", "list", "--json").stdout))


def test_several_methods_have_settings_of_their_own_in_one_comparison(cofair):
    own = ["--set", "cgsv.beta=3", "--set", "fedsac.beta=5", "--set", "method.personalise_units=0"]
    done = cofair("compare", "--methods", "cgsv,fedsac,fedavg", *QUICK, *own, "--json")
    settings = json.loads(done.stdout)["settings"]
    assert (settings["cgsv"]["beta"], settings["fedsac"]["beta"]) == (3, 5)
    assert settings["fedavg"]["personalise_units"] == 0
    assert settings["cgsv"]["alpha"] == 0.95  # what is not given stays


def test_a_run_says_where_the_settings_of_its_method_stand(tmp_path, cofair):
    (tmp_path / "experiment.toml").write_text('[method]\nname = "cgsv"\n')
    done = cofair("run", str(tmp_path / "experiment.toml"), "--set", "cgsv.beta=3")
    assert done.returncode == 2
    assert "'cgsv' is a method" in done.stderr


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_comparison_keeps_its_models_where_it_is_asked(cofair, tmp_path, workers):
    out, words = tmp_path / "kept", ["compare", "--methods", "standalone,fedavg", *QUICK]
    assert cofair(*words, "--out", str(out), "--keep-models", "--workers", workers, "--json").returncode == 0
    exported = cofair("export", str(out / "fedavg-seed0"), "--client", "3", str(tmp_path / "mine"))
    assert (exported.returncode, (tmp_path / "mine.pt2").exists()) == (0, True)


def test_models_that_cannot_be_kept_are_a_sentence(cofair, tmp_path):
    words, out = ["compare", "--methods", "fedavg", *QUICK], str(tmp_path / "out")
    nowhere = cofair(*words, "--keep-models")
    assert (nowhere.returncode, "name a folder for the comparison" in nowhere.stderr) == (2, True)
    assert cofair(*words, "--out", out).returncode == 0
    late = cofair(*words, "--out", out, "--resume", "--keep-models")
    assert (late.returncode, "its models were not kept" in late.stderr) == (2, True)


def test_compare_measures_what_clients_hold_where_it_is_asked(cofair):
    plain, held = (cofair("compare", "--methods", "fedrac", *QUICK, *more, "--json") for more in ((), ("--held",)))
    without, found = (json.loads(done.stdout) for done in (plain, held))
    assert "held_fairness" not in without["methods"][0]
    assert "held" not in without["experiment"]["run"]
    assert found["experiment"]["run"]["held"]
    weakest = min(found["clients"], key=lambda client: client["contribution"])
    assert found["methods"][0]["held_weakest"] == pytest.approx(weakest["held"])
    assert weakest["held_as"] in ("delivered", "kept", "averaged", "ahead", "tuned")
    shown = cofair("compare", "--methods", "fedrac", *QUICK, "--held").stdout
    assert "held γ" in shown
    assert "held weakest %" in shown


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
        (["compare", "--set", "contract=1"], "table.key=value"),
        (["compare", "--set", "contrct.kappa=1"], "Unknown table or method 'contrct': did you mean 'contract'?"),
        (["compare", "--set", "contract.kapa=1"], "Unknown setting 'contract.kapa': did you mean 'kappa'?"),
        (["compare", "--methods", "cgsv", "--set", "contract.kappa=1"], "add it to --methods"),
        (["compare", "--set", "contract.kappa=big"], "contract.kappa must be a number, but is 'big'"),
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


class Terminal:
    """A process with a terminal of so many columns on stdout, stderr or both."""

    def __init__(self, arguments, columns, streams=("stdout", "stderr")):
        self.master, terminal = pty.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
        where = {name: terminal if name in streams else subprocess.DEVNULL for name in ("stdout", "stderr")}
        kept = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "cofair", *arguments], **where, env=kept | {"TERM": "xterm", "OMP_NUM_THREADS": "1"},
            # a suite that a shell runs in the background inherits an ignored interrupt; a person's terminal does not
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
        )  # fmt: skip
        os.close(terminal)
        self.seen = ""

    def read(self, until=lambda seen: False, seconds=90):
        """Read until something is seen or the process ends; return what was seen so far, without colours."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not until(self.seen):
            if not select.select([self.master], [], [], 0.5)[0]:
                continue
            try:
                data = os.read(self.master, 65536)
            except OSError:  # the other end is closed
                break
            self.seen += re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", data.decode(errors="replace"))
        return self.seen

    def end(self):
        code = self.process.wait(timeout=30)
        os.close(self.master)
        return code


def test_a_terminal_sees_progress_and_an_interrupt_keeps_what_was_written(tmp_path):
    out = tmp_path / "run"
    arguments = ["compare", "--methods", "standalone,fedavg", "--rounds", "100000", "--out", str(out)]
    terminal = Terminal(arguments, 80, ["stderr"])
    terminal.read(lambda seen: re.search(r"fedavg.*γ.*left \d", seen))
    terminal.process.send_signal(signal.SIGINT)
    seen = terminal.read()
    assert terminal.end() == 130
    line = [line for line in re.split(r"[\r\n]+", seen) if re.search(r"fedavg.*γ.*left \d", line)][-1]
    assert re.fullmatch(
        r"fedavg, seed 0 +round \d+/100000  γ (–|-?\d+\.\d)  best \d+\.\d % +left \d+:\d\d:\d\d *", line
    )
    assert len(line) <= 80
    assert "1 of 2 done" in seen
    command = shlex.join(["cofair", *arguments, "--resume"])
    assert seen.strip().endswith(f"interrupted; what was finished is kept. To go on: {command}")
    assert "Traceback" not in seen
    assert (out / "fedavg-seed0" / "history.jsonl").read_text().count("\n") >= 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "my exp.toml", "--out=d"], "To go on: cofair run 'my exp.toml' --out=d --resume"),
        (["run", "e.toml", "--out", "d", "--resume", "--json"], "To go on: cofair run e.toml --out d --json --resume"),
        (["compare", "--overwrite", "--out", "d"], "To go on: cofair compare --out d --resume"),
        (["sweep", "s.toml", "--out", "d"], "To go on: cofair sweep s.toml --out d --resume"),
        (["reproduce", "fedsac-table1"], "To go on: cofair reproduce fedsac-table1"),
        (["compare"], "nothing was written, so nothing can be resumed: give a folder with --out DIR next time."),
        (["data", "get", "mnist"], "interrupted; what was finished is kept."),
        ([], "interrupted; what was finished is kept."),
    ],
)
def test_an_interrupted_command_says_how_it_goes_on(words, said):
    assert after_interruption(words).endswith(said)


def test_eighty_columns_are_enough_for_the_tables():
    command = ["compare", "--methods", "standalone,fedavg", "--seeds", "2", *QUICK]
    terminal = Terminal(command, 80, ["stdout"])
    seen = terminal.read()
    assert terminal.end() == 0
    lines = [line.rstrip() for line in seen.replace("\r", "").split("\n")]
    assert max(map(len, lines)) <= 80
    assert "…" not in seen
    number = r"-?\d+\.\d+ ± \d+\.\d+"
    for method in ("standalone", "fedavg"):
        own = next(line for line in lines if line.startswith(f" {method} "))
        assert len(re.findall(number, own)) == 5 or (method == "fedavg" and "undefined" in own)
    assert "Too narrow to show: mcg, cgs, download, seconds" in " ".join(seen.split())
    assert re.search(r"client +samples +brought +standalone +fedavg", seen)

    terminal = Terminal(["data", "list"], 80)
    seen = terminal.read()
    assert terminal.end() == 0
    assert all(f" {name} " in seen for name in datasets.names())
    assert "…" not in seen


def test_an_output_that_nobody_reads_any_more_is_no_error():
    for command in (["methods"], ["methods", "--json"]):
        read, write = os.pipe()
        os.close(read)
        done = subprocess.run(
            [sys.executable, "-m", "cofair", *command], stdout=write, stderr=subprocess.PIPE, text=True, timeout=60,
            check=False,
        )  # fmt: skip
        os.close(write)
        assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("command", [["methods"], ["methods", "--json"], ["--version"], ["--help"]])
def test_a_full_disk_is_a_sentence(command):
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "cofair", *command], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60,
            check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == "error: cannot write the output: No space left on device\n"


def test_a_model_larger_than_memory_is_a_sentence(cofair):
    done = cofair("compare", "--methods", "fedavg", "--set", "model.hidden=[99999999999999]")
    assert done.returncode == 1
    assert done.stderr == "error: this does not fit into memory: use a smaller model, fewer clients or less data\n"
