"""What a participant's SuperNode makes of a server that lies: other apps, other names for them, other addresses."""

import hashlib
import http.server
import logging
import ssl
import threading

import httpx
import pytest
from flwr.proto.fab_pb2 import Fab, GetFabRequest, GetFabResponse
from flwr.proto.fleet_pb2 import PullMessagesRequest
from flwr.proto.run_pb2 import GetRunRequest, GetRunResponse, Run
from flwr.supercore.run import RunNotRunningException

from cofair.errors import UsageError
from cofair.flower.deploy import keys, supernode
from cofair.flower.deploy.app import demonstration, hash_of, pack_app, write_app
from cofair.flower.deploy.environment import PrintableFilter, environment
from cofair.flower.deploy.folders import write_folders
from cofair.flower.deploy.participant import Participant


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    folder = tmp_path_factory.mktemp("app") / "app"
    write_app(folder, demonstration(1, None, "fedavg", 0))
    return pack_app(folder)


class Agreed:
    """A participant that has agreed to one app."""

    def __init__(self, *apps):
        self.settings = type("Settings", (), {"apps": apps})


def client(own, run, fab):
    """Return the client of a participant whose server says this of a run and sends this app."""

    class Told(supernode.FederationClient):
        participant = own

        def __init__(self):
            self._runs = {}

        def _unary_unary(self, *, path, **_):
            return GetRunResponse(run=run) if path.endswith("get-run") else GetFabResponse(fab=fab)

    return Told()


def fetch(caller):
    caller.GetRun(GetRunRequest(run_id=1))
    return caller.GetFab(GetFabRequest(run_id=1)).fab.content


def a_run(app, **changes):
    return Run(**{"run_id": 1, "fab_id": "cofair/fairapp", "fab_version": "1.0.0", "fab_hash": hash_of(app), **changes})


def test_the_app_that_was_agreed_on_is_run(app):
    caller = client(Agreed(hash_of(app)), a_run(app), Fab(hash_str=hash_of(app), content=app))
    assert fetch(caller) == app


@pytest.mark.parametrize(
    ("run", "sent"),
    [
        ({}, {"content": b"another"}),
        ({"fab_hash": "0" * 64}, {}),
        ({}, {"hash_str": "0" * 64}),
        ({"fab_id": "/", "fab_version": "/../../docs"}, {}),
        ({"fab_version": "2.0.0"}, {}),
        ({"fab_id": "somebody/fairapp"}, {}),
        ({"run_id": 2}, {}),
    ],
    ids=["another app", "another hash", "a hash that lies", "a path", "another version", "another name", "another run"],
)
def test_anything_else_is_refused_before_it_is_looked_into(app, run, sent):
    fab = Fab(**{"hash_str": hash_of(app), "content": app, **sent})
    with pytest.raises(RunNotRunningException):  # which makes Flower ignore the message
        fetch(client(Agreed(hash_of(app)), a_run(app, **run), fab))


def test_an_app_whose_hash_collides_in_its_beginning_only_is_another(app):
    lookalike = hash_of(app)[:8] + hashlib.sha256(b"else").hexdigest()[8:]
    with pytest.raises(RunNotRunningException):
        fetch(client(Agreed(lookalike), a_run(app), Fab(hash_str=hash_of(app), content=app)))


@pytest.fixture
def folders(tmp_path):
    """Return the folders of an organiser and of a participant with its certificate."""
    write_folders(tmp_path / "f", None, ["a", "b"], "localhost", 8443)
    own, authority = tmp_path / "f" / "participant-a", tmp_path / "f" / "organiser" / "keys"
    keys.node_key(own)
    keys.write_certificate(
        own / "node.crt", keys.issue_certificate(authority, keys.read_request(own / "node.csr"), "a")
    )
    return authority, own


def test_a_server_cannot_send_calls_elsewhere(folders):
    authority, own = folders
    asked = []

    class Elsewhere(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            asked.append(self.path)
            self.send_response(307)
            self.send_header("Location", "/inside")
            self.end_headers()

        def log_message(self, *_):
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Elsewhere)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority / "server.crt", authority / "server.key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        calls = supernode.client_of(Participant(own))(f"https://127.0.0.1:{server.server_port}")
        with pytest.raises(httpx.HTTPStatusError, match="307"):
            calls.PullMessages(PullMessagesRequest())
    finally:
        server.shutdown()
        server.server_close()
    assert asked == ["/v1/fleet/pull-messages"]


def test_a_folder_that_was_sent_becomes_its_owners_alone(folders, monkeypatch):
    _, own = folders
    own.chmod(0o775)
    keys.restrict_to_owner(own)
    assert own.stat().st_mode & 0o777 == 0o700
    monkeypatch.setattr("os.getuid", lambda: own.stat().st_uid + 1)
    with pytest.raises(UsageError, match="belongs to another user"):
        keys.restrict_to_owner(own)


def test_loopback_goes_through_no_proxy(tmp_path, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "intranet.example")
    known = environment(tmp_path)
    assert known["NO_PROXY"] == known["no_proxy"] == "127.0.0.1,localhost,intranet.example"
    for name in ("HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://proxy.example:3128")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, known[name])
    transport = httpx.Client()._transport_for_url(httpx.URL("https://127.0.0.1:9094"))
    assert "proxy" not in type(transport._pool).__name__.lower()


def test_what_others_say_is_printed_without_control_characters(caplog):
    logger = logging.getLogger("flwr.test-of-printing")
    logger.addFilter(PrintableFilter())
    logger.warning("Requesting FAB for %s", "\x1b]0;owned\x07\nINFO :  a forged line" + "x" * 10_000)
    [printed] = caplog.messages
    assert "\x1b" not in printed
    assert "\x07" not in printed
    assert all(line.startswith("    ") for line in printed.splitlines()[1:])
    assert max(map(len, printed.splitlines())) < 2100
