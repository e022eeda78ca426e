"""What `cofair deploy init` writes is a federation: its pages are followed word for word."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cofair.flower.deploy import keys
from cofair.flower.deploy.demo import experiment as demonstration
from cofair.flower.deploy.local import free_port, listens
from cofair.flower.deploy.processes import Processes, program
from tests.flower.killing import until

pytestmark = pytest.mark.long


def steps(folder, beginning):
    """Return the commands of a folder's page that begin so, to be run there."""
    found = re.findall(r"(?:^|`)((?:sh|venv/bin/cofair) [^`\n]+)", (folder / "STEPS.md").read_text(), re.MULTILINE)
    return [["/bin/sh", "-c", f"cd '{folder}' && {command}"] for command in found if command.startswith(beginning)]


def test_who_follows_the_pages_has_a_federation_and_an_expired_certificate_is_refused(tmp_path):
    folder, port = tmp_path / "f", free_port()
    (tmp_path / "e.toml").write_text(demonstration(1, 2, "cgsv", 0).to_toml())
    command = [program("cofair"), "deploy", "init", str(folder), "--participants", "a,b", "--port", str(port)]
    subprocess.run([*command, "--experiment", str(tmp_path / "e.toml")], check=True)
    organiser, participants = folder / "organiser", [folder / "participant-a", folder / "participant-b"]
    for place in (organiser, *participants):  # stands in for the first step of each page, which installs
        (place / "venv").symlink_to(Path(sys.executable).parent.parent)
    x, y = np.random.default_rng(0).normal(size=(40, 1, 8, 8)).astype("float32"), np.arange(40) % 10
    np.savez(organiser / "server.npz", x_test=x, y_test=y, x_validation=x, y_validation=y)
    with Processes(tmp_path, {"LISTEN": "127.0.0.1"}) as processes:
        processes.start("superlink", *steps(organiser, "sh superlink.sh"))
        until(lambda: listens(port), 60, "the SuperLink")
        for own in participants:
            name = own.name.removeprefix("participant-")
            settings = own / "settings.sh"
            settings.write_text(settings.read_text().replace("PORT=9094", f"PORT={free_port()}"))
            [start] = steps(own, "sh start.sh")
            assert "no node.key here" in subprocess.run(start, capture_output=True, text=True, check=False).stderr
            processes.finish("key", *steps(own, "venv/bin/cofair deploy key"), 60)
            (organiser / "public-keys" / f"{name}.pub").write_bytes((own / "node.key.pub").read_bytes())
            assert "data.npz" in subprocess.run(start, capture_output=True, text=True, check=False).stderr
            np.savez(own / "data.npz", x=x[:20], y=y[:20])
        for register in steps(organiser, "sh flwr.sh supernode register"):
            processes.finish("register", register, 60)
        for own in participants:
            processes.start(own.name, *steps(own, "sh start.sh"))
        processes.finish("run", *steps(organiser, "sh flwr.sh run"), 400)
        processes.finish("report", *steps(organiser, "venv/bin/cofair report"), 60)
        assert processes.finish("list", *steps(organiser, "sh flwr.sh supernode list"), 60).count("online") == 2
    summary = json.loads((organiser / "run" / "summary.json").read_text())
    assert [client["name"] for client in summary["clients"]] == ["a", "b"]
    assert (organiser / "run" / "report.html").exists()

    for name in ("ca.key", "ca.crt", "server.key", "server.crt"):
        (organiser / "keys" / name).unlink()
    keys.certificates(organiser / "keys", ["localhost", "127.0.0.1"], days=-1)
    own = participants[0]
    (own / "ca.crt").write_bytes((organiser / "keys" / "ca.crt").read_bytes())
    with Processes(tmp_path, {"LISTEN": "127.0.0.1"}) as processes:
        processes.start("expired", *steps(organiser, "sh superlink.sh"))
        until(lambda: listens(port), 60, "the SuperLink")
        processes.start("node-expired", *steps(own, "sh start.sh"))
        log = tmp_path / "node-expired.log"
        until(lambda: "certificate has expired" in log.read_text(), 60, "refusing the certificate")
