"""Real federations on loopback: they take minutes."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from cofair.command.deploy import demo
from cofair.flower.deploy import keys
from cofair.flower.deploy.app import write_app
from cofair.flower.deploy.demo import experiment as demonstration
from cofair.flower.deploy.local import LocalFederation, free_port, listens
from cofair.flower.deploy.processes import MARK, Processes, program
from cofair.runs.history import read_history
from cofair.runs.loop import rounds
from cofair.runs.prepare import prepare

pytestmark = pytest.mark.long
DEMO = [sys.executable, "-m", "cofair", "deploy", "demo"]


def ours():
    """Return the processes of deployments, whoever started them."""
    found = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                environment = (Path(entry.path) / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if any(part.startswith(MARK.encode() + b"=") for part in environment):
                found.append(int(entry.name))
    return found


def until(condition, seconds, what):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"{what} took more than {seconds} s"
        time.sleep(0.3)


def test_the_demonstration_equals_its_simulation_and_leaves_nothing_behind(tmp_path, capsys):
    before = set(ours())
    demo(rounds=2, clients=2, method="fedrac", seed=1, seconds=500, out=tmp_path / "kept")
    told = capsys.readouterr().out
    assert "Largest difference between the two, over all rounds: 0" in told
    assert not set(ours()) - before
    assert (tmp_path / "kept" / "report.html").exists()
    assert not list((tmp_path / "kept").rglob("*.key"))


@pytest.mark.parametrize("ask", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "kill"])
@pytest.mark.parametrize("when", ["starting the SuperLink", "SuperNode 0 registered", "the app is sent"])
def test_an_interruption_stops_every_process(ask, when):
    before = set(ours())
    process = subprocess.Popen(
        [*DEMO, "--clients", "2"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=os.environ
    )
    for line in process.stdout:
        if when in line:
            break
    time.sleep(1)
    process.send_signal(ask)
    assert process.wait(timeout=60) == 130
    process.stdout.close()
    assert not set(ours()) - before


def test_a_federation_survives_killed_processes_and_refuses_strangers(tmp_path):
    chosen = demonstration(6, 2, "fedrac", 0).with_run(checkpoint_every=1)
    with LocalFederation(tmp_path) as federation:
        federation.start_superlink()
        write_app(tmp_path / "app", chosen, 2)
        config = ["round-seconds=90", f"out={json.dumps(str(tmp_path / 'run'))}"]
        for name in "01":
            federation.register(name)
            federation.start_node(name, f"partition-id={name} num-partitions=2")

        # a key that nobody registered is refused
        keys.node_key(tmp_path / "keys", "stranger")
        federation.start_node("stranger", "partition-id=0 num-partitions=2")
        stranger = federation.processes._running.pop("node-stranger")
        assert stranger.wait(timeout=120) != 0

        # the ServerApp is killed: a new run goes on from the checkpoint
        federation.run(tmp_path / "app", config)
        history = tmp_path / "run" / "history.jsonl"
        until(lambda: history.exists() and len(read_history(history)) >= 2, 300, "two rounds")
        for number in processes_named(federation, "flwr-serverapp"):
            os.kill(number, signal.SIGKILL)
        stood = len(read_history(history))
        federation.run(tmp_path / "app", [*config, "resume=true"])
        until(lambda: len(read_history(history)) > stood, 300, "going on")

        # the SuperLink is killed, with everything under it
        for number in [*processes_named(federation, "flower-superlink"), *processes_named(federation, "serverapp")]:
            os.kill(number, signal.SIGKILL)
        federation.processes._running.pop("superlink").wait(timeout=20)
        until(lambda: not listens(federation.port), 30, "letting go of the port")
        federation.start_superlink()
        federation.run(tmp_path / "app", [*config, "resume=true"])
        until((tmp_path / "run" / "summary.json").exists, 400, "the end")
    entries = [json.loads(line) for line in (tmp_path / "run" / "ledger.jsonl").read_text().splitlines()]
    took_part = {entry["round"]: entry["took_part"] for entry in entries[1:]}
    simulated = [record for record, _ in rounds(chosen.method, with_those(prepare(chosen), took_part))]
    measured = read_history(history)
    assert len(measured) == 6
    assert [r.accuracies for r in measured] == [pytest.approx(r.accuracies) for r in simulated]
    assert [r.reputation for r in measured] == [pytest.approx(r.reputation) for r in simulated]
    assert len(json.loads((tmp_path / "run" / "run.json").read_text())["resumed"]) >= 1


def with_those(prepared, took_part):
    """Return a simulation in which those answer who answered: a killed process may cost its round a client."""

    class Some:
        def train(self, rewards, states, t):
            there = torch.tensor(took_part[t], dtype=torch.bool)
            return prepared.engine.train(replace(rewards, participants=there), states, t)

    return replace(prepared, engine=Some())


def processes_named(federation, name):
    found = []
    for number in federation.processes.left():
        try:
            command = Path(f"/proc/{number}/cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if name in command:
            found.append(number)
    return found


def test_the_folders_of_init_are_a_federation_and_an_expired_certificate_is_refused(tmp_path):
    folder, port = tmp_path / "f", free_port()
    command = [program("cofair"), "deploy", "init", str(folder), "--participants", "a,b", "--port", str(port)]
    (tmp_path / "e.toml").write_text(demonstration(1, 2, "cgsv", 0).to_toml())
    subprocess.run([*command, "--experiment", str(tmp_path / "e.toml")], check=True)
    x, y = np.random.default_rng(0).normal(size=(40, 1, 8, 8)).astype("float32"), np.arange(40) % 10
    server = {"x_test": x, "y_test": y, "x_validation": x, "y_validation": y}
    np.savez(folder / "organiser" / "server.npz", **server)
    organiser = folder / "organiser"
    environment = {"LISTEN": "127.0.0.1", "PATH": f"{Path(program('flwr')).parent}:{os.environ['PATH']}"}
    with Processes(tmp_path, environment) as processes:
        processes.start("superlink", ["/bin/sh", str(organiser / "superlink.sh")])
        until(lambda: listens(port), 60, "the SuperLink")
        for name in "ab":
            own = folder / f"participant-{name}"
            np.savez(own / "data.npz", x=x[:20], y=y[:20])
            processes.finish("key", [program("cofair"), "deploy", "key", str(own / "node.key")], 60)
            (organiser / "public-keys" / f"{name}.pub").write_bytes((own / "node.key.pub").read_bytes())
            register = ["supernode", "register", f"public-keys/{name}.pub", "here", "--name", name]
            processes.finish("register", ["/bin/sh", str(organiser / "flwr.sh"), *register], 60)
            settings = own / "settings.sh"
            settings.write_text(settings.read_text().replace("PORT=9094", f"PORT={free_port()}"))
            processes.start(f"node-{name}", ["/bin/sh", str(own / "start.sh")])
        out, data = json.dumps(str(tmp_path / "run")), json.dumps(str(organiser / "server.npz"))
        run = ["run", "app", "here", "--run-config", f"out={out}", "--run-config", f"data={data}"]
        processes.finish("run", ["/bin/sh", str(organiser / "flwr.sh"), *run], 60)
        until((tmp_path / "run" / "summary.json").exists, 300, "the run")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert [client["name"] for client in summary["clients"]] == ["a", "b"]

    for name in ("ca.key", "ca.crt", "server.key", "server.crt"):
        (organiser / "keys" / name).unlink()
    keys.certificates(organiser / "keys", ["localhost", "127.0.0.1"], days=-1)
    own = folder / "participant-a"
    (own / "ca.crt").write_bytes((organiser / "keys" / "ca.crt").read_bytes())
    with Processes(tmp_path, environment) as processes:
        processes.start("expired", ["/bin/sh", str(organiser / "superlink.sh")])
        until(lambda: listens(port), 60, "the SuperLink")
        processes.start("node-expired", ["/bin/sh", str(own / "start.sh")])
        log = tmp_path / "node-expired.log"
        until(lambda: "certificate has expired" in log.read_text(), 60, "refusing the certificate")
