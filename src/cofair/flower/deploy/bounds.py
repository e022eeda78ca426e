"""What a participant may push to the SuperLink, checked before the SuperLink keeps any of it.

Flower checks who calls. It does not check in whose name a message is pushed, how many objects it announces, or how many
bytes follow; the ServerApp would fetch them all into its memory. The ServerApp of a run writes to a file how large an
upload may be (`allow`): until then only the few bytes of an answer to "who are you" are accepted. An answer is
announced once, and everything that is pushed counts towards that answer, in however many sessions it comes.
"""

import hashlib
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.proto.fleet_pb2 import PushMessagesRequest, PushMessagesResponse
from flwr.proto.message_pb2 import ObjectTree, PushObjectRequest
from google.protobuf.message import DecodeError

from cofair.flower.deploy.proxy import CALLS, LARGEST_REQUEST
from cofair.storage.folder import write_whole

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

FOLDER = "limits"  # in the organiser's folder: one file per run
SMALLEST = 2**16  # bytes: enough for an answer without an update
_FLEET = "/v1/fleet/"
_OBJECT_BYTES = 2**20  # an upload may announce one object per so many bytes, and a few more
_FEW_OBJECTS = 64
_ANSWERS = 100_000  # answers that are remembered; Flower takes answers only to messages that it has sent
_SESSIONS = 4  # sessions of pushing that an answer may have at a time: a node that lost its connection starts another
_HASH = re.compile(r"[0-9a-f]{64}")


def allow(organiser: Path, run: int, size: int) -> None:
    """Allow uploads of so many bytes each in a run."""
    (organiser / FOLDER).mkdir(mode=0o700, exist_ok=True)
    write_whole(organiser / FOLDER / str(run), str(max(size, SMALLEST)))


def largest(organiser: Path, run: int) -> int:
    """Return how many bytes an upload of a run may have."""
    try:
        return int((organiser / FOLDER / str(run)).read_text(encoding="ascii"))
    except (OSError, ValueError):
        return SMALLEST


class RefusedRequestError(Exception):
    """A request that is not forwarded; the text says why."""


@dataclass
class Answer:
    """What a node pushes in answer to one message."""

    node: int
    run: int
    tree: str  # hash of the objects that it announced
    pushed: dict[str, int] = field(default_factory=dict)  # bytes of each object; one that is sent twice counts once
    sessions: list[str] = field(default_factory=list)


class Bounds:
    """A layer around the SuperLink's app that refuses what participants may not push."""

    def __init__(self, app: App, organiser: Path) -> None:
        """Wrap an app; the organiser's folder says how large uploads may be."""
        self._app, self._organiser = app, organiser
        self._answers: OrderedDict[tuple[int, str], Answer] = OrderedDict()  # by node and the message answered
        self._sessions: dict[str, Answer] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request; of the Fleet API, only calls that participants need pass, by their exact names."""
        if scope["type"] != "http" or not scope["path"].startswith(_FLEET):
            await self._app(scope, receive, send)
            return
        call = scope["path"].removeprefix(_FLEET)
        try:
            if call not in CALLS or scope.get("root_path"):
                raise RefusedRequestError("There is no such call.")
            if call == "push-messages":
                body = await _body(receive)
                message, answer = self._announcement(body)
                await self._app(scope, _replay(body, receive), self._noting_session(send, message, answer))
            elif call == "push-object":
                body = await _body(receive)
                self._count(body)
                await self._app(scope, _replay(body, receive), send)
            else:
                await self._app(scope, receive, send)
        except RefusedRequestError as refusal:
            await _refuse(send, str(refusal))

    def _announcement(self, body: bytes) -> tuple[str, Answer]:
        """Return which message is answered, and the answer that is announced; or refuse it."""
        request = PushMessagesRequest()
        try:
            request.ParseFromString(body)
        except DecodeError:
            raise RefusedRequestError("This is no message.") from None
        if len(request.messages_list) != 1 or len(request.message_object_trees) != 1:
            raise RefusedRequestError("One message is pushed at a time.")
        message, tree = request.messages_list[0].metadata, request.message_object_trees[0]
        if message.src_node_id != request.node.node_id or message.dst_node_id != SUPERLINK_NODE_ID:
            raise RefusedRequestError("A node speaks for itself, to the server.")
        if not message.reply_to_message_id:
            raise RefusedRequestError("A node only answers.")
        if tree.object_id != message.message_id:
            raise RefusedRequestError("A message is announced with its own objects.")
        _check_objects(tree, _most_objects(largest(self._organiser, message.run_id)))
        objects = hashlib.sha256(tree.SerializeToString(deterministic=True)).hexdigest()
        answer = Answer(request.node.node_id, message.run_id, objects)
        known = self._answers.get((answer.node, message.reply_to_message_id))
        if known is not None and known.tree != answer.tree:
            raise RefusedRequestError("This message was answered otherwise before.")
        return message.reply_to_message_id, answer

    def _noting_session(self, send: Send, message: str, answer: Answer) -> Send:
        """Return a `send` that also notes which session of pushing the SuperLink gave a node."""
        parts: list[bytes] = []
        taken = False

        async def noted(part: MutableMapping[str, Any]) -> None:
            nonlocal taken
            if part["type"] == "http.response.start":
                taken = part["status"] == 200
            elif taken and part["type"] == "http.response.body":
                parts.append(part.get("body", b""))
                if not part.get("more_body", False):
                    self._note(message, answer, b"".join(parts))
            await send(part)

        return noted

    def _note(self, message: str, answer: Answer, body: bytes) -> None:
        response = PushMessagesResponse()
        response.ParseFromString(body)
        known = self._answers.setdefault((answer.node, message), answer)
        known.sessions.append(response.session_id)
        self._sessions[response.session_id] = known
        while len(known.sessions) > _SESSIONS:
            self._sessions.pop(known.sessions.pop(0), None)
        while len(self._answers) > _ANSWERS:
            for session in self._answers.popitem(last=False)[1].sessions:
                self._sessions.pop(session, None)

    def _count(self, body: bytes) -> None:
        """Count a pushed object, or refuse it."""
        request = PushObjectRequest()
        try:
            request.ParseFromString(body)
        except DecodeError:
            raise RefusedRequestError("This is no object.") from None
        answer = self._sessions.get(request.session_id)
        if answer is None or (answer.node, answer.run) != (request.node.node_id, request.run_id):
            raise RefusedRequestError("Nobody waits for this object.")
        most = largest(self._organiser, answer.run)
        sizes = {**answer.pushed, request.object_id: len(request.object_content)}
        if sum(sizes.values()) > most or len(sizes) > _most_objects(most):
            raise RefusedRequestError(f"An upload of this run has at most {most} bytes.")
        answer.pushed = sizes


def _most_objects(size: int) -> int:
    return _FEW_OBJECTS + size // _OBJECT_BYTES


def _check_objects(tree: ObjectTree, most: int) -> None:
    """Refuse a tree that announces more objects than an upload may have, or anything but objects."""
    count, left = 1, [tree]
    while left:
        node = left.pop()
        count += len(node.children)
        if count > most:
            raise RefusedRequestError(f"An upload of this run has at most {most} objects.")
        if not _HASH.fullmatch(node.object_id):
            raise RefusedRequestError("An object is named by its SHA-256.")
        left.extend(node.children)


async def _body(receive: Receive) -> bytes:
    """Return the body of a request; refuse one that is too large or breaks off."""
    parts, size = [], 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise RefusedRequestError("The request broke off.")
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > LARGEST_REQUEST:
            raise RefusedRequestError("The request is too large.")
        if not message.get("more_body", False):
            return b"".join(parts)


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that first returns a body that was already read."""
    replayed = False

    async def once() -> MutableMapping[str, Any]:
        nonlocal replayed
        if replayed:
            return await receive()
        replayed = True
        return {"type": "http.request", "body": body, "more_body": False}

    return once


async def _refuse(send: Send, sentence: str) -> None:
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": 413, "headers": headers})
    await send({"type": "http.response.body", "body": sentence.encode()})
