"""What `cofair deploy init` writes is a federation: its pages are followed word for word."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cofair.flower.deploy import keys
from cofair.flower.deploy.app import demonstration
from cofair.flower.deploy.ports import free_port, listens
from cofair.flower.deploy.processes import Processes, program
from tests.flower.deployed import needs_nginx
from tests.flower.killing import until

pytestmark = [pytest.mark.long, needs_nginx]


def steps(folder, beginning):
    """Return the commands of a folder's page that begin so, to be run there."""
    found = re.findall(r"(?:^|`)((?:sh|venv/bin/cofair) [^`\n]+)", (folder / "STEPS.md").read_text(), re.MULTILINE)
    return [["/bin/sh", "-c", f"cd '{folder}' && {command}"] for command in found if command.startswith(beginning)]


def complaint_of(command):
    """Return the complaint of a command that cannot start."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    return done.stderr


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
    inner = organiser / "organiser.toml"
    inner.write_text(inner.read_text().replace("0.0.0.0", "127.0.0.1"))  # here nobody else is to be let in
    with Processes(tmp_path, {}) as processes:
        processes.finish("pack", *steps(organiser, "venv/bin/cofair deploy pack"), 60)
        processes.start("superlink", *steps(organiser, "sh superlink.sh"))
        until(lambda: listens(port) and listens(port + 1), 60, "the server")
        admissions = steps(organiser, "venv/bin/cofair deploy admit")
        for own, [shell, dash, admit] in zip(participants, admissions, strict=True):
            name = own.name.removeprefix("participant-")
            settings = own / "settings.toml"
            settings.write_text(settings.read_text().replace("port = 9094", f"port = {free_port()}"))
            [start] = steps(own, "sh start.sh")
            assert "no node.key in" in complaint_of(start)
            made = processes.finish("key", *steps(own, "venv/bin/cofair deploy key"), 60)
            assert "no node.crt in" in complaint_of(start)
            admitted = processes.finish("admit", [shell, dash, admit.replace("PATH/OF/ITS", f"'{own}'")], 60)
            assert re.search(r"Fingerprint of . *: (.{39})", made)[1] in admitted
            (own / "node.crt").write_bytes((organiser / "participants" / f"{name}.crt").read_bytes())
            assert "data.npz" in complaint_of(start)
            np.savez(own / "data.npz", x=x[:20], y=y[:20])
            processes.start(own.name, start)
        processes.finish("run", *steps(organiser, "sh flwr.sh run"), 400)
        processes.finish("report", *steps(organiser, "venv/bin/cofair report"), 60)
        assert processes.finish("list", *steps(organiser, "sh flwr.sh supernode list"), 60).count("online") == 2
    summary = json.loads((organiser / "run" / "summary.json").read_text())
    assert [client["name"] for client in summary["clients"]] == ["a", "b"]
    assert (organiser / "run" / "report.html").exists()
    for path in folder.rglob("*"):  # but for what this test has written itself, in folders that nobody else can enter
        mine = path.suffix in (".npz", ".crt") or path.name == "report.html"
        if "venv" not in path.relative_to(folder).parts and not path.is_symlink() and not mine:
            allowed = 0o700 if path.is_dir() or path.stat().st_mode & 0o100 else 0o600
            assert path.stat().st_mode & 0o777 & ~allowed == 0, path

    for name in ("ca.key", "ca.crt", "server.key", "server.crt"):
        (organiser / "keys" / name).unlink()
    keys.certificates(organiser / "keys", ["localhost", "127.0.0.1"], days=-1)
    own = participants[0]
    (own / "ca.crt").write_bytes((organiser / "keys" / "ca.crt").read_bytes())
    keys.write_certificate(
        own / "node.crt", keys.issue_certificate(organiser / "keys", keys.read_request(own / "node.csr"), "a")
    )
    with Processes(tmp_path, {}) as processes:
        processes.start("expired", *steps(organiser, "sh superlink.sh"))
        until(lambda: listens(port), 60, "the server")
        processes.start("node-expired", *steps(own, "sh start.sh"))
        log = tmp_path / "node-expired.log"
        until(lambda: "certificate has expired" in log.read_text(), 60, "refusing the certificate")
