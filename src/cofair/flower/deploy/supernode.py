"""A participant's SuperNode: Flower's own, with what the participant's side of the agreement needs.

- It presents the certificate that the organiser issued, and trusts no server but the organiser's.
- It runs an app only if the app's hash is in the participant's own settings.
- Each message gets its own answer: Flower pushes an answer only after a message was pulled, so one late answer would
  leave a node a round behind for good. Here an answer to anything but the last message is dropped.
- Only a SuperExec that shares a secret with it gets tasks, and their tokens are never on a command line.
"""

import hashlib
import json
import logging
import os
import shutil
import ssl
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import httpx
from flwr.cli.config_utils import get_fab_metadata
from flwr.proto.fab_pb2 import GetFabRequest, GetFabResponse
from flwr.proto.fleet_pb2 import PullMessagesRequest, PullMessagesResponse, PushMessagesRequest, PushMessagesResponse
from flwr.proto.run_pb2 import GetRunRequest, GetRunResponse
from flwr.supercore.run import RunNotRunningException
from flwr.supernode import fleet_http_connection, start_client_internal
from flwr.supernode.cli.flower_supernode import flower_supernode
from flwr.supernode.fleet_http_client import FleetHttpClient

from cofair.errors import RunError
from cofair.flower.deploy import keys, superexec
from cofair.flower.deploy.environment import environment, print_safely
from cofair.flower.deploy.participant import FILE, Participant
from cofair.flower.deploy.ports import LOOPBACK, refuse_taken
from cofair.flower.deploy.watchdog import SupervisedProcess
from cofair.flower.printable_text import printable

LOG = logging.getLogger("flwr.cofair")
_REFUSED = {
    400: "perhaps its certificate has expired, or belongs to another federation",
    401: "the organiser has not admitted this key, or has removed it",
}


class StaleReplyError(Exception):
    """An answer to a message that is no longer waiting for one."""


class FederationClient(FleetHttpClient):
    """Calls the organiser's server as one participant; made by `client_of`."""

    participant: Participant
    last_message: str | None = None  # the message that was pulled last
    answered: bool = True  # whether an answer to it was pushed, successfully or not

    def __init__(self, base_url: str, **options: Any) -> None:
        """Connect with the participant's certificate."""
        folder = self.participant.folder
        context = ssl.create_default_context(cafile=str(folder / "ca.crt"))
        context.load_cert_chain(str(folder / "node.crt"), str(folder / "node.key"))
        super().__init__(base_url, **{**options, "verify": context})
        self._client.follow_redirects = False  # the server must not redirect this machine's calls elsewhere
        self._runs: dict[int, tuple[str, str, str]] = {}  # of each run: the app's name, version and hash

    def _unary_unary(self, **call: Any) -> Any:
        try:
            return super()._unary_unary(**call)
        except httpx.TimeoutException as error:
            # Flower takes any error that mentions TLS, even a slow handshake, for a wrong certificate and gives up
            raise type(error)("the server did not answer in time") from None
        except httpx.HTTPStatusError as error:
            if (reason := _REFUSED.get(error.response.status_code)) is not None:
                LOG.error("The organiser's server refuses this participant: %s.", reason)
            raise

    def GetRun(self, request: GetRunRequest) -> GetRunResponse:  # noqa: N802
        """Fetch a run; ignore one whose app the participant has not agreed to."""
        response = super().GetRun(request)
        run = response.run
        if run.fab_hash not in self.participant.settings.apps:
            self._refuse(run.fab_hash)
        self._runs[run.run_id] = (run.fab_id, run.fab_version, run.fab_hash)
        return response

    def GetFab(self, request: GetFabRequest) -> GetFabResponse:  # noqa: N802
        """Fetch an app; one that the participant has not agreed to is dropped before anything reads it.

        Flower loads an app from the folder that the run's name and version point to: they must be the app's own.
        """
        response = super().GetFab(request)
        found = hashlib.sha256(response.fab.content).hexdigest()
        if found not in self.participant.settings.apps or response.fab.hash_str != found:
            self._refuse(found)
        if self._runs.get(request.run_id) != (*get_fab_metadata(response.fab.content), found):
            self._refuse(f"{found}, under another name")
        return response

    def _refuse(self, app: str) -> NoReturn:
        agreed = ", ".join(self.participant.settings.apps)
        LOG.error("Refused to run the app %s: it is not among those in settings.toml (%s).", printable(app), agreed)
        raise RunNotRunningException  # Flower then ignores the message that came with it

    def PullMessages(self, request: PullMessagesRequest) -> PullMessagesResponse:  # noqa: N802
        """Pull a message, which then waits for an answer."""
        response = super().PullMessages(request)
        if response.messages_list:
            type(self).last_message, type(self).answered = response.messages_list[0].metadata.message_id, False
        return response

    def PushMessages(self, request: PushMessagesRequest) -> PushMessagesResponse:  # noqa: N802
        """Push an answer to the message that was pulled last, and to no other."""
        [message] = request.messages_list
        if message.metadata.reply_to_message_id != self.last_message:
            raise StaleReplyError("it answers an earlier message, which is no longer waiting for an answer")
        type(self).answered = True  # if pushing fails, Flower tries again where that helps, and otherwise drops it
        return super().PushMessages(request)


def client_of(own: Participant) -> type[FederationClient]:
    """Return the client of a participant, as the class that Flower needs."""
    return type("ParticipantsClient", (FederationClient,), {"participant": own})


def push_until_answered(push: Callable[..., None], client: type[FederationClient]) -> Callable[..., None]:
    """Return Flower's pushing of answers, repeated until the message that was pulled last is answered."""

    def pushed(**options: Any) -> None:
        push(**options)  # waits for an answer, perhaps to an earlier message, which is then dropped
        while not client.answered:
            push(**options)

    return pushed


def run(folder: Path) -> None:
    """Run the SuperNode of a participant's folder until it is asked to end."""
    own = Participant(folder)
    own.check()
    refuse_taken(own.settings.port, LOOPBACK, f"{FILE} (port)")
    keys.restrict_to_owner(own.folder)
    os.umask(0o077)
    os.chdir(own.folder)
    home, runtime = own.folder / "home", own.folder / "home" / "runtime"
    for made in (home / "apps", runtime):  # Flower never repairs a half-installed app; keys are for one start
        shutil.rmtree(made, ignore_errors=True)
    runtime.mkdir(mode=0o700, parents=True)
    os.environ |= environment(home)
    print_safely()
    client = client_of(own)
    _put(fleet_http_connection, "FleetHttpClient", client)
    _put(start_client_internal, "_push_messages", push_until_answered(start_client_internal._push_messages, client))
    # apps and the SuperNode authenticate each other on loopback by a certificate, a secret, and the token of a task
    keys.certificates(runtime, [LOOPBACK])
    keys.random_secret(runtime / "superexec.secret")
    shared = ["--superexec-auth-secret-file", str(runtime / "superexec.secret")]
    started = SupervisedProcess(
        superexec.command(
            "flwr-clientapp", "--root-certificates", str(runtime / "ca.crt"),
            "--runtime-api-address", f"{LOOPBACK}:{own.settings.port}", *shared, "--parent-pid", str(os.getpid()),
        )
    )  # fmt: skip
    # Flower reads the key in a form of its own: from a file without a name, so that there is no second copy of it
    private = tempfile.TemporaryFile()  # noqa: SIM115  # open as long as the process runs
    private.write(keys.flower_private_key(own.folder / "node.key"))
    private.seek(0)
    sys.argv = [
        "flower-supernode", "--root-certificates", str(own.folder / "ca.crt"), "--superlink", own.settings.superlink,
        "--auth-supernode-private-key", f"/dev/fd/{private.fileno()}", "--host", LOOPBACK,
        "--port", str(own.settings.port), "--isolation", "process", *shared,
        "--ssl-certfile", str(runtime / "server.crt"), "--ssl-keyfile", str(runtime / "server.key"),
        "--ssl-ca-certfile", str(runtime / "ca.crt"), "--node-config", _node_config(own),
    ]  # fmt: skip
    for app in own.settings.apps:
        print(f"Only this app may run here: {app}", flush=True)
    try:
        flower_supernode()
    finally:
        started.stop()
    os._exit(1)  # Flower gave up and left a thread that would keep this process alive; its supervisor restarts it


def _node_config(own: Participant) -> str:
    parts = {"name": own.settings.name, "data": str(own.data), "allow": " ".join(own.settings.allow)}
    return " ".join(f"{key}={json.dumps(value)}" for key, value in parts.items())


def _put(module: Any, name: str, value: Any) -> None:
    """Replace a part of Flower by ours; refuse to start if this version of Flower has no such part."""
    if not hasattr(module, name):
        raise RunError("This version of Flower cannot limit which app may run: run pip install 'cofair[flower]'.")
    setattr(module, name, value)
