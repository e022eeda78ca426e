"""Keys, folders and processes of a real federation, without starting one."""

import importlib.util
import json
import signal
import socket
import ssl
import stat
import subprocess
import sys
import time
import tomllib
import zipfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from flwr.app import Context, RecordDict
from typer.testing import CliRunner

from cofair.cli.main import app as cli
from cofair.config.experiment import Experiment
from cofair.errors import RunError, UsageError
from cofair.flower.deploy import bounds, keys
from cofair.flower.deploy.app import experiment_in, hash_of, write_app
from cofair.flower.deploy.participant import Participant
from cofair.flower.deploy.processes import Processes, complaint
from cofair.flower.in_process import InProcessGrid
from tests.flower.federations import experiment, shares


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_certificate_is_for_its_hosts_and_signed_by_the_authority(tmp_path):
    keys.certificates(tmp_path, ["federation.example", "127.0.0.1"], days=10)
    authority, server = (x509.load_pem_x509_certificate((tmp_path / f"{n}.crt").read_bytes()) for n in ("ca", "server"))
    server.verify_directly_issued_by(authority)
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["federation.example"]
    assert [str(address) for address in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1"]
    left = server.not_valid_after_utc - datetime.now(UTC)
    assert timedelta(days=9) < left <= timedelta(days=10)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.crt", tmp_path / "server.key")


def test_keys_are_their_owners_alone_and_never_overwritten(tmp_path):
    keys.certificates(tmp_path, ["localhost"])
    keys.node_key(tmp_path)
    for name in ("ca.key", "server.key", "node.key"):
        assert mode(tmp_path / name) == 0o600, name
    private = serialization.load_ssh_private_key(keys.flower_private_key(tmp_path / "node.key"), None)
    public = serialization.load_ssh_public_key(keys.flower_key(keys.read_request(tmp_path / "node.csr")))
    assert private.public_key() == public
    with pytest.raises(UsageError, match="never overwritten"):
        keys.node_key(tmp_path)


def test_a_participants_certificate_is_for_its_key_and_name_and_for_calling_only(tmp_path):
    keys.certificates(tmp_path, ["localhost"])
    keys.node_key(tmp_path)
    request = keys.read_request(tmp_path / "node.csr")
    certificate = keys.issue_certificate(tmp_path, request, "north")
    keys.write_certificate(tmp_path / "node.crt", certificate)
    assert keys.certificate_fault(tmp_path) is None
    assert keys.fingerprint(certificate) == keys.fingerprint(request)
    assert certificate.subject.rfc4514_string() == "CN=north"
    [use] = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert use == x509.oid.ExtendedKeyUsageOID.CLIENT_AUTH
    assert not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca


@pytest.mark.parametrize("fault", ["expired", "another authority", "another key"])
def test_a_participant_is_told_what_is_wrong_with_its_certificate(tmp_path, fault):
    other = tmp_path / "other"
    other.mkdir()
    for folder in (tmp_path, other):
        keys.certificates(folder, ["localhost"])
        keys.node_key(folder)
    where = other if fault == "another authority" else tmp_path
    request = keys.read_request((other if fault == "another key" else tmp_path) / "node.csr")
    keys.write_certificate(
        tmp_path / "node.crt", keys.issue_certificate(where, request, "a", days=-1 if fault == "expired" else 1)
    )
    words = {"another authority": "not issued by the organiser"}.get(fault, fault)
    assert words in keys.certificate_fault(tmp_path)


def test_init_writes_a_folder_for_everybody_and_no_participants_key(tmp_path):
    folder = tmp_path / "federation"
    answer = CliRunner().invoke(
        cli, ["deploy", "init", str(folder), "--participants", "north,south,west", "--host", "fl.example"]
    )
    assert answer.exit_code == 0, answer.output
    chosen = Experiment.from_file(folder / "organiser" / "app" / "fairapp" / "experiment.toml")
    assert chosen.method.name == "fedrac"
    secrets = [path for path in folder.rglob("*") if path.is_file() and b"PRIVATE KEY" in path.read_bytes()]
    assert sorted(path.relative_to(folder).as_posix() for path in secrets) == [
        "organiser/keys/ca.key",
        "organiser/keys/server.key",
    ]
    for path in [folder, *folder.rglob("*")]:
        assert mode(path) == (0o700 if path.is_dir() or path.suffix == ".sh" else 0o600), path
    steps = (folder / "participant-north" / "STEPS.md").read_text()
    assert "`size`: how many samples it has" in steps
    assert "class_counts" not in steps
    app = (folder / "participant-north" / "app.fab").read_bytes()
    own = Participant(folder / "participant-north").settings
    assert (own.name, own.superlink, own.allow) == ("north", "fl.example:8443", ("size",))
    assert own.apps == (hash_of(app),)
    assert own.apps[0] in steps
    assert own.apps[0] in answer.output
    for script in [*folder.rglob("*.sh")]:
        subprocess.run(["sh", "-n", str(script)], check=True)
    for module in folder.rglob("*.py"):
        compile(module.read_text(), str(module), "exec")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--participants", "a,a"], "different names"),
        (["--participants", "a,../b"], "letters, digits"),
        (["--participants", 'a,b"; rm'], "letters, digits"),
        (["--host", "a b"], "neither a host name nor an address"),
        (["--experiment", "nowhere.toml"], "Cannot read the experiment"),
    ],
)
def test_init_refuses_what_would_not_work(tmp_path, options, sentence):
    answer = CliRunner().invoke(cli, ["deploy", "init", str(tmp_path / "new"), *options])
    assert isinstance(answer.exception, UsageError)
    assert sentence in str(answer.exception)
    assert not (tmp_path / "new").exists()


def test_asks_says_what_is_asked(tmp_path):
    (tmp_path / "e.toml").write_text('[method]\nname = "q-ffl"\n')
    answer = CliRunner().invoke(cli, ["deploy", "asks", str(tmp_path / "e.toml")])
    assert answer.output.splitlines()[0] == "size: how many samples it has"
    assert answer.output.splitlines()[1].startswith("loss_before: the mean loss")


def test_what_participants_are_told_names_no_path_and_no_number_of_others(tmp_path):
    """Flower sends a run's settings to everybody; the packed app is all that a participant has of the server's side."""
    folder = tmp_path / "federation"
    CliRunner().invoke(cli, ["deploy", "init", str(folder), "--participants", "north,south,west"])
    app = folder / "organiser" / "app"
    assert tomllib.loads((app / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"] == {
        "settings": "server"
    }
    with zipfile.ZipFile(folder / "participant-north" / "app.fab") as files:
        everything = b"".join(files.read(name) for name in files.namelist())
    for secret in (str(tmp_path), "south", "server.npz", "control.token"):
        assert secret.encode() not in everything
    assert experiment_in((folder / "participant-north" / "app.fab").read_bytes()).federation.clients == 10  # default


def test_an_app_that_changes_is_another_app(tmp_path):
    folder = tmp_path / "federation"
    CliRunner().invoke(cli, ["deploy", "init", str(folder), "--participants", "north,south"])
    before = Participant(folder / "participant-south").settings.apps
    again = CliRunner().invoke(cli, ["deploy", "pack", str(folder)])
    assert before[0] in again.output
    module = folder / "organiser" / "app" / "fairapp" / "client_app.py"
    module.write_text(module.read_text() + "# changed\n")
    changed = CliRunner().invoke(cli, ["deploy", "pack", str(folder)])
    after = Participant(folder / "participant-south").settings.apps
    assert after != before
    assert after[0] in changed.output
    assert after[0] in (folder / "participant-south" / "STEPS.md").read_text()


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ('apps = ["x"]', "64 hexadecimal digits"),
        ("apps = []", "names no app"),
        ('allow = ["samples"]', "allow names 'samples'"),
        ('name = "../b"', "letters, digits"),
        ("port = 0", "at least 1"),
        ("prot = 1", "Unknown setting"),
        ("port = ", "Cannot read"),
    ],
)
def test_settings_of_a_participant_are_read_strictly(tmp_path, line, sentence):
    folder = tmp_path / "federation"
    CliRunner().invoke(cli, ["deploy", "init", str(folder), "--participants", "north,south"])
    own = folder / "participant-north"
    key = line.split(" ")[0]
    text = (own / "settings.toml").read_text().splitlines()
    kept = [old for old in text if not old.startswith(f"{key} = ")]
    (own / "settings.toml").write_text("\n".join([*kept, line]))
    (own / "data.npz").touch()
    keys.node_key(own)
    request = keys.read_request(own / "node.csr")
    keys.write_certificate(own / "node.crt", keys.issue_certificate(folder / "organiser" / "keys", request, "north"))
    answer = CliRunner().invoke(cli, ["deploy", "node", str(own)])
    assert isinstance(answer.exception, UsageError)
    assert sentence in str(answer.exception)


def test_without_nginx_the_demonstration_says_what_is_missing(monkeypatch):
    monkeypatch.setattr("cofair.flower.deploy.proxy.shutil.which", lambda *_, **__: None)
    answer = CliRunner().invoke(cli, ["deploy", "demo"])
    assert isinstance(answer.exception, UsageError)
    assert "apt-get install nginx-light" in str(answer.exception)


def test_a_port_that_is_taken_is_a_sentence(tmp_path):
    folder = tmp_path / "federation"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        CliRunner().invoke(cli, ["deploy", "init", str(folder), "--participants", "a,b", "--port", str(port)])
        answer = CliRunner().invoke(cli, ["deploy", "superlink", str(folder / "organiser")])
        assert isinstance(answer.exception, UsageError)
        assert f"Port {port}" in str(answer.exception)
        assert "organiser.toml (port)" in str(answer.exception)


def test_the_app_that_is_written_runs_in_process(tmp_path, monkeypatch):
    write_app(tmp_path / "app", experiment("cgsv", last=2))

    def module(name):
        spec = importlib.util.spec_from_file_location(name, tmp_path / "app" / "fairapp" / f"{name}.py")
        loaded = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(loaded)
        return loaded.app

    clients, validation, test = shares()
    for k in range(2):
        np.savez(tmp_path / f"{k}.npz", x=clients[k][0].numpy(), y=clients[k][1].numpy())
    served = {"x_test": test[0], "y_test": test[1], "x_validation": validation[0], "y_validation": validation[1]}
    np.savez(tmp_path / "server.npz", **{name: value.numpy() for name, value in served.items()})
    (tmp_path / "second.toml").write_text('data = "server.npz"\nout = "run"\nclients = 2\n')
    monkeypatch.setenv("COFAIR_ORGANISER", str(tmp_path))
    config = {"settings": "second"}
    grid = InProcessGrid.of(
        module("client_app"), [{"name": f"n{k}", "data": str(tmp_path / f"{k}.npz")} for k in range(2)], config
    )
    module("server_app")(grid, Context(1, 1, {}, RecordDict(), config))
    assert bounds.largest(tmp_path, 1) > bounds.SMALLEST
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert [client["name"] for client in summary["clients"]] == ["n0", "n1"]
    assert [client["samples"] for client in summary["clients"]] == [8, 30]


SLEEPS = "import time; time.sleep(60)"
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('on', flush=True); time.sleep(60)"
PARENT = f"""import subprocess, sys, time
subprocess.Popen([sys.executable, '-c', {SLEEPS!r}], start_new_session=True)
time.sleep(60)"""


def alive(number):
    """Tell whether a process goes on; one that has ended and that nobody has asked about does not."""
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("code", [SLEEPS, STUBBORN, PARENT], ids=["asleep", "stubborn", "with a child elsewhere"])
def test_no_process_is_left(tmp_path, code, monkeypatch):
    monkeypatch.setattr("cofair.flower.deploy.processes.PATIENCE", 1.0)
    with Processes(tmp_path, {}) as processes:
        processes.start("one", [sys.executable, "-c", code])
        wanted = 2 if code == PARENT else 1
        until = time.monotonic() + 10
        while len(processes.left()) < wanted and time.monotonic() < until:
            time.sleep(0.05)
        if code == STUBBORN:
            while not (tmp_path / "one.log").read_text() and time.monotonic() < until:
                time.sleep(0.05)
        numbers = processes.left()
        assert len(numbers) == wanted
    assert not processes.left()
    assert not any(alive(number) for number in numbers)


def test_commands_beside_python_are_found_without_activating_its_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    found = "import shutil; print(shutil.which('flower-superexec'))"
    with Processes(tmp_path, {}) as processes:
        printed = processes.finish("it", [sys.executable, "-c", found], 20)
    assert printed.strip() == str(Path(sys.executable).parent / "flower-superexec")


def test_a_process_that_ends_early_or_fails_is_told(tmp_path):
    with Processes(tmp_path, {}) as processes:
        processes.start("node", [sys.executable, "-c", "print('no such key'); raise SystemExit(3)"]).wait(timeout=20)
        with pytest.raises(RunError, match=r"node ended early \(exit code 3\): no such key"):
            processes.check()
        with pytest.raises(RunError, match="it failed: sorry"):
            processes.finish("it", [sys.executable, "-c", "print('sorry'); raise SystemExit(1)"], 20)
        with pytest.raises(RunError, match=r"did not end within 0\.5 s"):
            processes.finish("it", [sys.executable, "-c", SLEEPS], 0.5)


@pytest.mark.parametrize(
    ("log", "line"),
    [
        ("", "it printed nothing"),
        ("one\ntwo\n\n", "two"),
        (
            "\x1b[91mERROR \x1b[0m:     Exit Code: 305\n[code: 2004] Failed to activate SuperNode.\n"
            "\x1b[92mINFO \x1b[0m:      SuperExec terminated gracefully.\n",
            "[code: 2004] Failed to activate SuperNode.",
        ),
        (
            "cofair.errors.UsageError: Unknown setting 'method.x'\n\x1b[91mERROR \x1b[0m:     Exit Code: 201\n\n"
            "An unhandled exception occurred in the ServerApp.\n",
            "cofair.errors.UsageError: Unknown setting 'method.x'",
        ),
    ],
    ids=["nothing", "no failure", "a node", "an app"],
)
def test_of_a_log_the_reason_is_told_and_not_the_goodbye(log, line):
    assert complaint(log) == line


def test_signals_are_as_before_after_stopping(tmp_path):
    before = signal.getsignal(signal.SIGINT)
    with Processes(tmp_path, {}):
        pass
    assert signal.getsignal(signal.SIGINT) is before
