"""Can a participant act as the organiser, or as another participant? A real server is asked, call by call."""

import hashlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
from flwr.proto.control_pb2 import ListNodesRequest, ListNodesResponse, ListRunsRequest, ListRunsResponse
from flwr.proto.fleet_pb2 import PullMessagesRequest, PushMessagesRequest
from flwr.proto.message_pb2 import Message, Metadata, ObjectTree, PushObjectRequest
from flwr.proto.node_pb2 import Node

from cofair.errors import RunError, UsageError
from cofair.flower.deploy import bounds, keys, proxy
from cofair.flower.deploy.app import demonstration
from cofair.flower.deploy.local_federation import LocalFederation
from cofair.flower.deploy.ports import free_port, listens
from tests.flower.attacker import (
    Caller,
    activation,
    key_of,
    new_key,
    node_number,
    participant,
    paths,
    raw,
    self_signed,
    signed,
)
from tests.flower.deployed import needs_nginx

pytestmark = needs_nginx
CONTROL, RUNTIME = paths("control"), paths("runtime")
RUN = 77  # a run of which the server allows uploads of a hundred thousand bytes


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    """Start a server to which two participants are admitted."""
    with LocalFederation(tmp_path_factory.mktemp("guarded"), demonstration(1, 2, "fedrac", 0), ["a", "b"]) as made:
        made.start_superlink()
        for name in "ab":
            made.admit(name)
        with keys.private():
            bounds.allow(made.organiser.folder, RUN, 100_000)
        yield made


@pytest.fixture(scope="module")
def numbers(federation):
    """Return the number of each node."""
    return {n: node_number(participant(federation, n), key_of(federation.participant(n))) for n in "ab"}


def inner(federation):
    """Return a caller on the organiser's machine, where Flower itself can be reached."""
    return Caller(federation.organiser.settings.inner_port, federation.organiser.folder / "keys" / "ca.crt")


def token(federation):
    return (federation.organiser.folder / "keys" / "control.token").read_text()


def test_an_admitted_participant_can_call_what_it_needs(federation, numbers):
    assert len(set(numbers.values())) == 2
    assert all(numbers.values())


@pytest.mark.parametrize("path", [*CONTROL, *RUNTIME, "/v1/fleet/register-node", "/v1/fleet/unregister-node"])
def test_a_participant_reaches_neither_control_nor_runtime(federation, path):
    key = key_of(federation.participant("a"))
    assert participant(federation, "a")(path, **signed(key), authorization=f"Bearer {token(federation)}") == 404


@pytest.mark.parametrize("path", ["/", "/docs", "/openapi.json", "/health", "/v1/runtime/responses"])
def test_a_participant_reaches_nothing_else(federation, path):
    caller = participant(federation, "a")
    assert caller(path) == 404
    assert caller.client.get(f"{caller.address}{path}").status_code == 404


@pytest.mark.parametrize(
    "path",
    [
        "//v1/control/list-runs", "/v1/fleet/../control/list-runs", "/v1/fleet/%2e%2e/control/list-runs",
        "/v1/fleet/pull-messages/../../control/list-runs", "/v1/fleet/pull-messages%2f..%2f..%2fcontrol%2flist-runs",
        "/v1/fleet/./../control/list-runs", "/v1/control/list-runs#/v1/fleet/pull-messages",
        "https://localhost/v1/control/list-runs", "/v1/fleet/push-object%0A", "/v1/fleet/push-object%0a/",
        "/v1/fleet/push-object%00", "/v1/fleet/push-object;x", "/v1/fleet/PUSH-OBJECT", "/v1/fleet/push-object/",
    ],
)  # fmt: skip
def test_no_way_of_writing_a_path_leads_elsewhere(federation, path):
    key = key_of(federation.participant("a"))
    assert raw(participant(federation, "a"), path, **signed(key)) in (400, 404)


def test_a_path_that_flower_would_read_otherwise_is_refused_on_loopback_too(federation, numbers):
    key = key_of(federation.participant("a"))
    request = PushObjectRequest(node=Node(node_id=numbers["a"]), run_id=RUN, session_id="s", object_id="x")
    for path in ("/v1/fleet/push-object%0A", "/v1/fleet/register-node", "/v1/fleet/push-object%0D"):
        assert raw(inner(federation), path, request.SerializeToString(), **signed(key)) in (404, 413)


def test_a_call_that_only_looks_like_one_of_a_node_is_refused(federation):
    caller = participant(federation, "a")
    assert caller.client.get(f"{caller.address}/v1/fleet/pull-messages").status_code in (401, 403)


def test_a_call_that_carries_no_object_is_small(federation):
    key = key_of(federation.participant("a"))
    for call in set(proxy.CALLS) - {"push-object"}:
        assert participant(federation, "a")(f"/v1/fleet/{call}", bytes(2**19), **signed(key)) == 413


@pytest.mark.parametrize("who", ["nobody", "another authority", "itself", "expired", "server"])
def test_without_a_certificate_of_this_federation_nothing_is_let_in(federation, tmp_path, who):
    own = federation.participant("a")
    given = {"certificate": None, "key": None}
    if who == "another authority":
        keys.certificates(tmp_path, ["localhost"])
        certificate = keys.issue_certificate(tmp_path, keys.read_request(own / "node.csr"), "a")
        keys.write_certificate(tmp_path / "a.crt", certificate)
        given = {"certificate": tmp_path / "a.crt", "key": own / "node.key"}
    if who == "itself":
        given = {"certificate": self_signed(tmp_path, key_of(own)), "key": own / "node.key"}
    if who == "expired":
        organiser = federation.organiser.folder / "keys"
        certificate = keys.issue_certificate(organiser, keys.read_request(own / "node.csr"), "a", days=-1)
        keys.write_certificate(tmp_path / "a.crt", certificate)
        given = {"certificate": tmp_path / "a.crt", "key": own / "node.key"}
    if who == "server":  # a certificate of the same authority, for another use
        organiser = federation.organiser.folder / "keys"
        given = {"certificate": organiser / "server.crt", "key": organiser / "server.key"}
    key = key_of(own)
    request = activation(key)
    status = Caller(federation.port, own / "ca.crt", **given)("/v1/fleet/activate-node", request, **signed(key))
    assert status in (400, 401)
    assert Caller(federation.port, own / "ca.crt", **given)("/v1/control/list-runs") in (400, 404)


def test_a_certificate_speaks_for_its_own_key_only(federation, numbers):
    a, b = (key_of(federation.participant(name)) for name in "ab")
    caller, pull = participant(federation, "a"), "/v1/fleet/pull-messages"
    request = PullMessagesRequest(node=Node(node_id=numbers["b"]))
    assert caller(pull, request, **signed(b)) == 401  # with b's key: the certificate is a's
    assert caller(pull, request, **signed(a, b.public_key())) == 401  # claims b's key, signs with its own
    assert caller(pull, request, **signed(a)) == 401  # as itself, asks for b's messages
    assert caller(pull, request) == 401  # signs nothing
    assert caller(pull, PullMessagesRequest(node=Node(node_id=numbers["a"])), **signed(a)) == 200


def test_a_key_that_was_never_admitted_is_refused_even_with_anothers_certificate(federation):
    stranger = new_key()
    request = activation(stranger)
    assert participant(federation, "a")("/v1/fleet/activate-node", request, **signed(stranger)) == 401


def test_a_participant_cannot_pose_as_the_server(federation, tmp_path):
    own, port = federation.participant("b"), free_port()
    code = f"""import socket, ssl
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain({str(own / "node.crt")!r}, {str(own / "node.key")!r})
with socket.create_server(("127.0.0.1", {port})) as server:
    try:
        context.wrap_socket(server.accept()[0], server_side=True)
    except OSError:
        pass"""
    process = subprocess.Popen([sys.executable, "-c", code])
    until = time.monotonic() + 20
    while not _bound(port):
        assert time.monotonic() < until
        time.sleep(0.05)
    with pytest.raises(httpx.ConnectError, match="certificate verify failed"):
        Caller(port, federation.participant("a") / "ca.crt").response("/v1/fleet/activate-node")
    process.wait(timeout=20)


def _bound(port):
    return f":{port:04X} 00000000:0000 0A" in Path("/proc/net/tcp").read_text()


@pytest.mark.parametrize("path", [path for path in CONTROL if "auth-tokens" not in path and "login" not in path])
def test_control_takes_only_the_organisers_credential(federation, path):
    caller = inner(federation)
    assert caller(path) == 401
    assert caller(path, authorization="Bearer wrong") == 401
    assert caller(path, authorization="Bearer") == 401


def test_nobody_is_given_a_credential_over_the_network(federation):
    caller = inner(federation)
    for path in ("/v1/control/get-auth-tokens", "/v1/control/refresh-auth-tokens"):
        answer = caller.response(path)
        assert answer.status_code >= 400
        assert token(federation) not in answer.text


def test_the_organisers_credential_opens_control_on_its_own_machine(federation):
    caller = inner(federation)
    assert caller("/v1/control/list-nodes", ListNodesRequest(), authorization=f"Bearer {token(federation)}") == 200


@pytest.mark.parametrize("path", RUNTIME)
def test_who_is_on_the_organisers_machine_gets_no_task(federation, path):
    status = inner(federation)(path, RUNTIME[path]())
    assert status in (401, 403, 422)


def test_flower_listens_on_loopback_only(federation):
    listening = [line.split()[3] for line in _sockets() if "LISTEN" in line]
    port = federation.organiser.settings.inner_port
    assert [address for address in listening if address.endswith(f":{port}")] == [f"127.0.0.1:{port}"]


def _sockets():
    if shutil.which("ss") is None:
        pytest.skip("ss is not installed (iproute2)")
    return subprocess.run(["ss", "-ltn"], capture_output=True, text=True, check=True).stdout.splitlines()


ROOT, PART = hashlib.sha256(b"message").hexdigest(), hashlib.sha256(b"part").hexdigest()


def pushed(node, **changes):
    metadata = {"run_id": RUN, "src_node_id": node, "dst_node_id": 1, "reply_to_message_id": "m", "message_id": ROOT}
    tree = changes.pop("tree", ObjectTree(object_id=ROOT))
    message = Message(metadata=Metadata(**{**metadata, **changes}))
    return PushMessagesRequest(node=Node(node_id=node), messages_list=[message], message_object_trees=[tree])


def wide(objects):
    return ObjectTree(object_id=ROOT, children=[ObjectTree(object_id=PART)] * objects)


def deep(objects):
    tree = ObjectTree(object_id=PART)
    for _ in range(objects):
        tree = ObjectTree(object_id=PART, children=[tree])
    return ObjectTree(object_id=ROOT, children=[tree])


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"src_node_id": "b"}, "speaks for itself"),
        ({"dst_node_id": "b"}, "to the server"),
        ({"reply_to_message_id": ""}, "only answers"),
        ({"tree": wide(2000)}, "objects"),
        ({"tree": deep(90)}, "objects"),
        ({"tree": ObjectTree(object_id=PART)}, "its own objects"),
        ({"tree": ObjectTree(object_id=ROOT, children=[ObjectTree(object_id="x")])}, "SHA-256"),
    ],
    ids=["another's name", "to another", "unasked", "many objects", "nested objects", "another's tree", "no hash"],
)
def test_what_a_node_may_not_push_is_refused_before_it_is_kept(federation, numbers, changes, sentence):
    key = key_of(federation.participant("a"))
    known = {name: numbers["b"] if value == "b" else value for name, value in changes.items()}
    answer = participant(federation, "a").response(
        "/v1/fleet/push-messages", pushed(numbers["a"], **known), **signed(key)
    )
    assert answer.status_code == 413
    assert sentence in answer.text


def test_an_object_that_nobody_waits_for_is_refused(federation, numbers):
    key, caller = key_of(federation.participant("a")), participant(federation, "a")
    for session in ("", "s", "x" * 1000):
        request = PushObjectRequest(
            node=Node(node_id=numbers["a"]), run_id=RUN, session_id=session, object_id=PART, object_content=b"part"
        )
        assert caller("/v1/fleet/push-object", request, **signed(key)) == 413
    assert caller("/v1/fleet/push-object", bytes(proxy.LARGEST_REQUEST + 1), **signed(key)) == 413  # by the proxy
    for body in (b"\xff" * 1000, b""):
        assert caller("/v1/fleet/push-messages", body, **signed(key)) == 413


@pytest.mark.parametrize(
    "command",
    [
        ["run", "APP", "here"],
        ["list", "here"],
        ["supernode", "list", "here"],
        ["supernode", "register", "KEY", "here"],
        ["supernode", "unregister", "NODE", "here"],
        ["stop", "1", "here"],
        ["log", "1", "here", "--show"],
    ],
    ids=lambda command: " ".join(command[:2]),
)
@pytest.mark.parametrize("door", ["proxy", "loopback"])
def test_flowers_own_command_does_nothing_for_a_participant(federation, numbers, tmp_path, command, door):
    """The attack that once worked: Flower's command, and nothing but the ca.crt of a participant."""
    (tmp_path / "home").mkdir()
    own = federation.participant("a")
    port = federation.port if door == "proxy" else federation.organiser.settings.inner_port
    (tmp_path / "home" / "config.toml").write_text(
        f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "127.0.0.1:{port}"\n'
        f'root-certificates = "{own / "ca.crt"}"\n'
    )
    (tmp_path / "k.pub").write_bytes(keys.flower_key(keys.read_request(own / "node.csr")))
    known = {
        "APP": str(federation.organiser.folder / "app"), "KEY": str(tmp_path / "k.pub"), "NODE": str(numbers["b"])
    }  # fmt: skip
    environment = {**os.environ, **federation.organiser.environment, "FLWR_HOME": str(tmp_path / "home")}
    before = _state(federation)
    done = subprocess.run(
        ["flwr", *(known.get(word, word) for word in command)], env=environment, capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode != 0, done.stdout
    assert _state(federation) == before


def _state(federation):
    """Return what the organiser sees: which nodes there are, and which runs."""
    caller, known = inner(federation), {"authorization": f"Bearer {token(federation)}"}
    nodes, runs = ListNodesResponse(), ListRunsResponse()
    nodes.ParseFromString(caller.response("/v1/control/list-nodes", ListNodesRequest(), **known).content)
    runs.ParseFromString(caller.response("/v1/control/list-runs", ListRunsRequest(), **known).content)
    assert len(nodes.nodes_info) == 2
    return sorted((node.node_id, node.status) for node in nodes.nodes_info), sorted(runs.run_dict)


def test_secrets_are_their_owners_alone_and_stand_on_no_command_line(federation):
    for path in federation.folder.joinpath("federation").rglob("*"):
        allowed = 0o700 if path.is_dir() or path.suffix == ".sh" else 0o600
        assert path.stat().st_mode & 0o777 & ~allowed == 0, path
    secrets = [token(federation), (federation.organiser.folder / "keys" / "superexec.secret").read_text()]
    shown = subprocess.run(["ps", "axww", "-o", "args"], capture_output=True, text=True, check=True).stdout
    assert not any(secret in shown for secret in secrets)


def test_a_name_and_a_key_are_admitted_once(federation, tmp_path):
    a, b = (federation.participant(name) / "node.csr" for name in "ab")
    with pytest.raises(UsageError, match="another key"):
        federation.organiser.admit("a", b)
    with pytest.raises(UsageError, match="key of participant 'a'"):
        federation.organiser.admit("c", a)
    (tmp_path / "bad.csr").write_text("nonsense")
    with pytest.raises(UsageError, match="holds no certificate request"):
        federation.organiser.admit("c", tmp_path / "bad.csr")
    with pytest.raises(UsageError, match="letters, digits"):
        federation.organiser.admit('c" "d', a)


def test_a_certificate_is_renewed_and_the_old_one_let_in_no_more(federation, numbers):
    key, request = key_of(federation.participant("a")), PullMessagesRequest(node=Node(node_id=numbers["a"]))
    with keys.private():
        federation.organiser.admit("a", federation.participant("a") / "node.csr")
    certificate = federation.organiser.folder / "participants" / "a.crt"
    until = time.monotonic() + 20
    while participant(federation, "a")("/v1/fleet/pull-messages", request, **signed(key)) != 401:
        assert time.monotonic() < until
        time.sleep(0.1)
    renewed = participant(federation, "a", certificate=certificate)
    assert renewed("/v1/fleet/pull-messages", request, **signed(key)) == 200
    (federation.participant("a") / "node.crt").write_bytes(certificate.read_bytes())


def test_whoever_is_removed_is_let_in_no_more(federation, numbers):
    key, request = key_of(federation.participant("b")), PullMessagesRequest(node=Node(node_id=numbers["b"]))
    assert participant(federation, "b")("/v1/fleet/pull-messages", request, **signed(key)) == 200
    federation.organiser.remove("b")
    until = time.monotonic() + 20
    while participant(federation, "b")("/v1/fleet/pull-messages", request, **signed(key)) != 401:
        assert time.monotonic() < until
        time.sleep(0.2)
    assert federation.organiser.admitted == ["a"]
    assert listens(federation.port)
    with pytest.raises(RunError, match="needs a new one"):  # Flower takes no key twice
        federation.organiser.admit("b", federation.participant("b") / "node.csr")
    assert federation.organiser.admitted == ["a"]
