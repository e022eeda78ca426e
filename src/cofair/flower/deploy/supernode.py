"""A participant's SuperNode: Flower's own, with what the participant's side of the agreement needs.

- It shows the certificate that the organiser issued, and takes the organiser's server for nobody else's.
- It runs an app only if its hash stands in the participant's own settings.
- Each message gets its own answer: Flower pushes an answer only after a message was pulled, so that one late answer
  would leave a node a round behind for good. Here an answer to anything but the last message is dropped.
- Only a SuperExec that shares a secret with it gets tasks, and their tokens stand on no command line.
"""

import atexit
import hashlib
import json
import logging
import os
import secrets
import ssl
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
from flwr.proto.fab_pb2 import GetFabRequest, GetFabResponse
from flwr.proto.fleet_pb2 import PullMessagesRequest, PullMessagesResponse, PushMessagesRequest, PushMessagesResponse
from flwr.supercore.run import RunNotRunningException
from flwr.supernode import fleet_http_connection, start_client_internal
from flwr.supernode.cli.flower_supernode import flower_supernode
from flwr.supernode.fleet_http_client import FleetHttpClient

from cofair.errors import RunError
from cofair.flower.deploy import keys, superexec
from cofair.flower.deploy.kept import KeptProcess
from cofair.flower.deploy.organiser import QUIET
from cofair.flower.deploy.participant import FILE, Participant
from cofair.flower.deploy.ports import LOOPBACK, refuse_taken

LOG = logging.getLogger("flwr.cofair")
_REFUSED = {
    400: "its certificate has expired, or is not of this federation",
    401: "the organiser has not admitted this key, or has removed it",
}
_TRIED_AGAIN = (502, 503, 504)  # by Flower: the server is being restarted


class StaleReplyError(Exception):
    """An answer to a message that nobody waits for any more."""


class FederationClient(FleetHttpClient):
    """Calls the organiser's server as one participant; made by `client_of`."""

    participant: Participant
    waiting_for: str | None = None  # the message that was pulled last, until it is answered

    def __init__(self, base_url: str, **options: Any) -> None:
        """Connect with the participant's certificate."""
        folder = self.participant.folder
        context = ssl.create_default_context(cafile=str(folder / "ca.crt"))
        context.load_cert_chain(str(folder / "node.crt"), str(folder / "node.key"))
        super().__init__(base_url, **{**options, "verify": context})

    def _unary_unary(self, **call: Any) -> Any:
        try:
            return super()._unary_unary(**call)
        except httpx.HTTPStatusError as error:
            if (reason := _REFUSED.get(error.response.status_code)) is not None:
                LOG.error("The organiser's server refuses this participant: %s.", reason)
            raise

    def GetFab(self, request: GetFabRequest) -> GetFabResponse:  # noqa: N802
        """Fetch an app; one that the participant has not agreed to is dropped before anything looks into it."""
        response = super().GetFab(request)
        found = hashlib.sha256(response.fab.content).hexdigest()
        if found not in self.participant.settings.apps or response.fab.hash_str != found:
            LOG.error(
                "Refused to run the app %s: it is none of those in settings.toml (%s).",
                found, ", ".join(self.participant.settings.apps),
            )  # fmt: skip
            raise RunNotRunningException  # Flower then ignores the message that came with it
        return response

    def PullMessages(self, request: PullMessagesRequest) -> PullMessagesResponse:  # noqa: N802
        """Pull a message, which then waits for its answer."""
        response = super().PullMessages(request)
        if response.messages_list:
            type(self).waiting_for = response.messages_list[0].metadata.message_id
        return response

    def PushMessages(self, request: PushMessagesRequest) -> PushMessagesResponse:  # noqa: N802
        """Push the answer to the message that was pulled last, and no other."""
        [message] = request.messages_list
        if message.metadata.reply_to_message_id != self.waiting_for:
            raise StaleReplyError("it answers an earlier message, for which nobody waits any more")
        try:
            response = super().PushMessages(request)
        except httpx.TransportError:
            raise  # Flower tries again
        except httpx.HTTPStatusError as error:
            if error.response.status_code not in _TRIED_AGAIN:
                type(self).waiting_for = None
            raise
        type(self).waiting_for = None
        return response


def client_of(own: Participant) -> type[FederationClient]:
    """Return the client of a participant, a class as Flower wants one."""
    return type("ParticipantsClient", (FederationClient,), {"participant": own})


def answering(push: Callable[..., None], client: type[FederationClient]) -> Callable[..., None]:
    """Return Flower's pushing of answers, which goes on until the message that was pulled last is answered."""

    def pushed(**options: Any) -> None:
        push(**options)  # waits for an answer: perhaps an earlier one's, which is then dropped
        while client.waiting_for is not None:
            push(**options)

    return pushed


def run(folder: Path) -> None:
    """Run the SuperNode of a participant's folder until it is told to end."""
    own = Participant(folder)
    own.check()
    refuse_taken(own.settings.port, LOOPBACK, f"{FILE} (port)")
    os.umask(0o077)
    os.chdir(own.folder)
    home = own.folder / "home"
    home.mkdir(mode=0o700, exist_ok=True)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    os.environ |= {**QUIET, "FLWR_HOME": str(home), "PATH": path}
    client = client_of(own)
    _put(fleet_http_connection, "FleetHttpClient", client)
    _put(start_client_internal, "_push_messages", answering(start_client_internal._push_messages, client))
    secret = home / "superexec.secret"
    secret.unlink(missing_ok=True)
    keys.write_secret(secret, secrets.token_hex(32).encode())
    address = f"{LOOPBACK}:{own.settings.port}"
    started = KeptProcess(
        superexec.command(
            "flwr-clientapp", "--insecure", "--runtime-api-address", address,
            "--superexec-auth-secret-file", str(secret), "--parent-pid", str(os.getpid()),
        )
    )  # fmt: skip
    atexit.register(started.stop)
    # Flower reads the key in a form of its own: in a file without a name, so that there is no second copy of it
    private = tempfile.TemporaryFile()  # noqa: SIM115  # open as long as the process runs
    private.write(keys.flower_private_key(own.folder / "node.key"))
    private.flush()
    sys.argv = [
        "flower-supernode", "--root-certificates", str(own.folder / "ca.crt"), "--superlink", own.settings.superlink,
        "--auth-supernode-private-key", f"/dev/fd/{private.fileno()}", "--host", LOOPBACK,
        "--port", str(own.settings.port), "--isolation", "process", "--superexec-auth-secret-file", str(secret),
        "--node-config", _node_config(own),
    ]  # fmt: skip
    for app in own.settings.apps:
        print(f"Only this app may run here: {app}", flush=True)
    flower_supernode()


def _node_config(own: Participant) -> str:
    parts = {"name": own.settings.name, "data": str(own.data), "allow": " ".join(own.settings.allow)}
    return " ".join(f"{key}={json.dumps(value)}" for key, value in parts.items())


def _put(module: Any, name: str, value: Any) -> None:
    """Put something of ours into Flower, or refuse to start where this version of Flower has no place for it."""
    if not hasattr(module, name):
        raise RunError("This version of Flower cannot be told which app may run: pip install 'cofair[flower]'.")
    setattr(module, name, value)
