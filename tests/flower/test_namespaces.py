"""The organiser and a participant on hosts of their own: network namespaces of this machine, and another user.

The attack that once worked is repeated step by step. What needs root, or a tool that is missing, is skipped.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cofair.flower.deploy.app import demonstration, write_app
from cofair.flower.deploy.demo import is_over, write_data
from cofair.flower.deploy.local_federation import LocalFederation
from cofair.flower.deploy.processes import program
from tests.flower.deployed import needs_nginx
from tests.flower.killing import until

SPACE, HERE, THERE = "cofair-test", "10.231.77.1", "10.231.77.2"  # addresses of a link that only this machine has
INSIDE = ["ip", "netns", "exec", SPACE]
pytestmark = [
    pytest.mark.long,
    needs_nginx,
    pytest.mark.skipif(os.getuid() != 0, reason="network namespaces and other users need root"),
    pytest.mark.skipif(shutil.which("ip") is None, reason="network namespaces need ip: apt-get install iproute2"),
]
REACH = """import socket, sys
for port in sys.argv[2:]:
    with socket.socket() as probe:
        probe.settimeout(1)
        if probe.connect_ex((sys.argv[1], int(port))) == 0:
            print(port)
"""
CLIENT = '''"""An app of an attacker: it leaves a mark, and would read what it likes."""
from pathlib import Path
from flwr.app import Message, RecordDict
from flwr.clientapp import ClientApp
Path("{mark}").write_text("I was here")
app = ClientApp()
@app.query()
def answer(message, context):
    return Message(RecordDict(), reply_to=message)
'''
SERVER = '''"""An app of an attacker: it asks every node to run the other half."""
from pathlib import Path
from flwr.app import Message, RecordDict
from flwr.serverapp import ServerApp
app = ServerApp()
@app.main()
def main(grid, context):
    Path("{mark}").write_text("I ran as the organiser")
    messages = [Message(RecordDict(), node, "query") for node in grid.get_node_ids()]
    list(grid.send_and_receive(messages, timeout=20))
'''


@pytest.fixture
def link():
    """Join two hosts by a cable."""

    def ip(*words, check=True):
        subprocess.run(["ip", *words], check=check, capture_output=True)

    ip("netns", "del", SPACE, check=False)
    try:
        ip("netns", "add", SPACE)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no network namespace can be made here: {error.stderr.decode().strip()}")
    try:
        ip("link", "add", "cofair0", "type", "veth", "peer", "name", "cofair1", "netns", SPACE)
        ip("addr", "add", f"{HERE}/30", "dev", "cofair0")
        ip("link", "set", "cofair0", "up")
        for words in (["addr", "add", f"{THERE}/30", "dev", "cofair1"], ["link", "set", "cofair1", "up"]):
            ip("-n", SPACE, *words)
        ip("-n", SPACE, "link", "set", "lo", "up")
        yield
    finally:
        ip("link", "del", "cofair0", check=False)
        ip("netns", "del", SPACE, check=False)


def listening():
    """Return the ports of this host on which something listens, on whichever address."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sorted({int(row[1].partition(":")[2], 16) for row in rows if row[3] == "0A"})


def flower(home, port, authority, *words, within=INSIDE, host=HERE):
    """Run Flower's own command as somebody who has nothing but a ca.crt, and return how it ended."""
    home.mkdir(exist_ok=True)
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "{host}:{port}"\n'
        f'root-certificates = "{authority}"\n'
    )
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "FLWR_HOME": str(home)}
    return subprocess.run(
        [*within, program("flwr"), *words], env={**os.environ, **quiet}, capture_output=True, text=True, timeout=90,
        check=False,
    )  # fmt: skip


def test_a_participant_on_a_host_of_its_own_takes_part_and_can_do_nothing_else(tmp_path, link):
    chosen, out = demonstration(1, 2, "fedavg", 0), tmp_path / "run"
    others = listening()  # what was there before has nothing to do with it
    marks = {side: tmp_path / f"mark-{side}" for side in ("server", "client")}
    app = tmp_path / "attack"
    write_app(app, chosen)
    (app / "fairapp" / "client_app.py").write_text(CLIENT.format(mark=marks["client"]))
    (app / "fairapp" / "server_app.py").write_text(SERVER.format(mark=marks["server"]))
    with LocalFederation(tmp_path, chosen, ["0", "1"], host=HERE) as federation:
        federation.start_superlink()
        write_data(federation, chosen)
        federation.write_server_settings(clients=2, data="server.npz", out=str(out))
        for name in "01":
            federation.admit(name)
        federation.start_node("0", INSIDE)
        federation.start_node("1")
        federation.run()
        commands = set()

        def over():
            shown = subprocess.run(["ps", "axww", "-o", "args"], capture_output=True, text=True, check=True).stdout
            commands.update(line for line in shown.splitlines() if "flwr-" in line)
            return is_over(out)

        until(over, 200, "a run between two hosts")
        assert any("flwr-clientapp" in line and "--token-file" in line for line in commands)
        assert not any("--token " in line for line in commands)  # a token on a command line is everybody's
        entries = [json.loads(line) for line in (out / "ledger.jsonl").read_text().splitlines()]
        assert entries[-1]["took_part"] == [True, True]

        # of all ports that were opened on the organiser's host, the participant's reaches the proxy's
        open_here = [port for port in listening() if port not in others]
        assert {federation.port, federation.organiser.settings.inner_port} <= set(open_here)
        reach = [*INSIDE, sys.executable, "-c", REACH, HERE, *map(str, open_here)]
        found = subprocess.run(reach, capture_output=True, text=True, check=True, timeout=100).stdout
        assert [int(port) for port in found.split()] == [federation.port]

        # Flower's own command, with the participant's ca.crt: to start a run, to register and remove, to list, to read
        authority, key = federation.participant("0") / "ca.crt", tmp_path / "key.pub"
        key.write_bytes((federation.organiser.folder / "participants" / "0.pub").read_bytes())
        node = (federation.organiser.folder / "participants" / "1.node").read_text()
        run = subprocess.run(
            ["sh", str(federation.organiser.folder / "flwr.sh"), "list", "here", "--format", "json"],
            env={**os.environ, **federation.organiser.environment}, capture_output=True, text=True, check=True,
        )  # fmt: skip
        number = json.loads(run.stdout)["runs"][0]["run-id"]
        for port in (federation.port, federation.organiser.settings.inner_port):
            for words in (
                ["run", str(app), "here"], ["supernode", "register", str(key), "here"],
                ["supernode", "unregister", node, "here"], ["supernode", "list", "here"], ["list", "here"],
                ["log", str(number), "here", "--show"], ["stop", str(number), "here"],
            ):  # fmt: skip
                done = flower(tmp_path / "home", port, authority, *words)
                assert done.returncode != 0, (words, done.stdout)
                assert "fairapp" not in done.stdout
                assert node not in done.stdout

        # the same from the organiser's own machine: the port is there, the credential is not
        inner = federation.organiser.settings.inner_port
        for words in (["run", str(app), "here"], ["supernode", "list", "here"], ["list", "here"]):
            done = flower(tmp_path / "home", inner, authority, *words, within=[], host="127.0.0.1")
            assert done.returncode != 0, (words, done.stdout)
            assert node not in done.stdout
        assert not marks["server"].exists()
        assert not marks["client"].exists()

        # even the organiser, or who has its credential, runs no other app on a participant's machine
        federation.run(app)
        logs = [federation.processes.logs / f"node-{name}.log" for name in "01"]
        until(lambda: all("Refused to run the app" in log.read_text() for log in logs), 60, "refusing")
        assert marks["server"].exists()  # it is the organiser's own machine
        time.sleep(5)
        assert not marks["client"].exists()


def test_another_user_of_the_organisers_machine_reads_nothing_and_starts_nothing(tmp_path):
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    shared = Path("/tmp/cofair-test-of-users")
    shutil.rmtree(shared, ignore_errors=True)
    shared.mkdir(mode=0o755)
    try:
        with LocalFederation(shared, demonstration(1, 2, "fedavg", 0), ["0", "1"]) as federation:
            federation.start_superlink()
            organiser, inner = federation.organiser.folder, federation.organiser.settings.inner_port
            for name in ("keys/control.token", "keys/ca.key", "server.toml"):
                done = as_nobody("cat", str(organiser / name))
                assert done.returncode != 0
                assert "Permission denied" in done.stderr
            calls = ("control/list-runs", "control/start-run", "control/register-node", "runtime/acquire-task")
            for path, status in ((call, 401) for call in (*calls, "fleet/pull-messages", "fleet/activate-node")):
                done = as_nobody(
                    "curl", "-sk", "-o", "/dev/null", "-w", "%{http_code}", "-X", "POST", "-H",
                    "content-type: application/protobuf", f"https://127.0.0.1:{inner}/v1/{path}",
                )  # fmt: skip
                assert done.stdout == str(status), path
            shown = as_nobody("ps", "axww", "-o", "args").stdout
            assert (organiser / "keys" / "control.token").read_text() not in shown
    finally:
        shutil.rmtree(shared)


def as_nobody(*command):
    return subprocess.run(command, user="nobody", group="nogroup", capture_output=True, text=True, check=False)
