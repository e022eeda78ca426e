"""What a participant may push to the SuperLink, checked before the SuperLink keeps anything of it.

Flower checks who calls. It does not check in whose name a message is pushed, how many objects it announces, or how many
bytes follow; the ServerApp would fetch them all into its memory. How large an upload of a run may be, its ServerApp
writes to a file (`allow`): until then only the few bytes of an answer to "who are you" are taken.
"""

import contextlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.message_pb2 import ObjectTree, PushObjectRequest
from google.protobuf.message import DecodeError

from cofair.flower.deploy.proxy import LARGEST_REQUEST
from cofair.runs.folder import write_whole

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

FOLDER = "limits"  # of the organiser's folder: a file for each run
SMALLEST = 2**16  # bytes: enough for an answer without an update
_OBJECT_BYTES = 2**20  # an upload announces at most one object for each, beside a few
_FEW_OBJECTS = 64
_SESSIONS = 10_000  # of pushing that are remembered


def allow(organiser: Path, run: int, size: int) -> None:
    """Let the uploads of a run be so many bytes each."""
    (organiser / FOLDER).mkdir(mode=0o700, exist_ok=True)
    write_whole(organiser / FOLDER / str(run), str(max(size, SMALLEST)))


def largest(organiser: Path, run: int) -> int:
    """Return how many bytes an upload of a run may have."""
    try:
        return int((organiser / FOLDER / str(run)).read_text(encoding="ascii"))
    except (OSError, ValueError):
        return SMALLEST


class Bounds:
    """A layer around the SuperLink's app that refuses what nobody may push."""

    def __init__(self, app: App, organiser: Path) -> None:
        """Wrap an app; the organiser's folder says what runs allow."""
        self._app, self._organiser = app, organiser
        self._pushed: OrderedDict[tuple[int, str], int] = OrderedDict()  # bytes of a node's session
        self._checks = {"/v1/fleet/push-messages": self._message, "/v1/fleet/push-object": self._object}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        check = self._checks.get(scope["path"]) if scope["type"] == "http" else None
        if check is None:
            await self._app(scope, receive, send)
            return
        body = await _body(receive)
        fault = "The request is too large." if body is None else check(body)
        if body is None or fault is not None:
            await _refuse(send, fault or "")
            return
        await self._app(scope, _again(body, receive), send)

    def _message(self, body: bytes) -> str | None:
        """Say what is wrong with a message that is pushed, or None."""
        request = PushMessagesRequest()
        with contextlib.suppress(DecodeError):
            request.ParseFromString(body)
        if len(request.messages_list) != 1 or len(request.message_object_trees) != 1:
            return "One message is pushed at a time."
        told = request.messages_list[0].metadata
        if told.src_node_id != request.node.node_id or told.dst_node_id != SUPERLINK_NODE_ID:
            return "A node speaks for itself, to the server."
        if not told.reply_to_message_id:
            return "A node only answers."
        most = _FEW_OBJECTS + largest(self._organiser, told.run_id) // _OBJECT_BYTES
        if _objects(request.message_object_trees[0], most) > most:
            return f"An upload of this run has at most {most} objects."
        return None

    def _object(self, body: bytes) -> str | None:
        """Say what is wrong with an object that is pushed, or None."""
        request = PushObjectRequest()
        try:
            request.ParseFromString(body)
        except DecodeError:
            return "This is no object."
        session = (request.node.node_id, request.session_id)
        pushed = self._pushed.pop(session, 0) + len(request.object_content)
        self._pushed[session] = pushed
        while len(self._pushed) > _SESSIONS:
            self._pushed.popitem(last=False)
        most = largest(self._organiser, request.run_id)
        return f"An upload of this run has at most {most} bytes." if pushed > most else None


def _objects(tree: ObjectTree, most: int) -> int:
    """Return how many objects a tree announces, counted no further than needed."""
    count, left = 0, [tree]
    while left and count <= most:
        count += 1
        left.extend(left.pop().children)
    return count


async def _body(receive: Receive) -> bytes | None:
    """Return the body of a request, or None where it is too large or breaks off."""
    parts, size = [], 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return None
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > LARGEST_REQUEST:
            return None
        if not message.get("more_body", False):
            return b"".join(parts)


def _again(body: bytes, receive: Receive) -> Receive:
    """Return a body that was read as if it were not."""
    told = False

    async def once() -> MutableMapping[str, Any]:
        nonlocal told
        if told:
            return await receive()
        told = True
        return {"type": "http.request", "body": body, "more_body": False}

    return once


async def _refuse(send: Send, sentence: str) -> None:
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": 413, "headers": headers})
    await send({"type": "http.response.body", "body": sentence.encode()})
