"""What is counted of an upload, with a SuperLink that takes everything: however it is cut up, it has its bounds."""

import asyncio
import hashlib

import pytest
from flwr.proto.fleet_pb2 import PushMessagesRequest, PushMessagesResponse
from flwr.proto.message_pb2 import Message, Metadata, ObjectTree, PushObjectRequest
from flwr.proto.node_pb2 import Node

from cofair.flower.deploy import bounds
from cofair.flower.deploy.bounds import Bounds

ME, RUN, MOST = 5, 1, 200_000


def name(content):
    return hashlib.sha256(content).hexdigest()


class SuperLink:
    """Takes what it is handed, and gives every message a session of its own."""

    def __init__(self, organiser):
        self.guarded, self.kept, self.sessions = Bounds(self.app, organiser), [], 0

    async def app(self, scope, receive, send):
        body = (await receive())["body"]
        answer = b""
        if scope["path"].endswith("push-messages"):
            self.sessions += 1
            answer = PushMessagesResponse(session_id=f"s{self.sessions}").SerializeToString()
        else:
            self.kept.append(len(body))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": answer})

    def call(self, path, request):
        """Return the status of an answer, and its body."""
        sent = []

        async def receive():
            return {"type": "http.request", "body": request.SerializeToString(), "more_body": False}

        async def send(message):
            sent.append(message)

        asyncio.run(self.guarded({"type": "http", "path": f"/v1/fleet/{path}"}, receive, send))
        return sent[0]["status"], sent[1]["body"]

    def announce(self, contents=(), to="m", node=ME, root=b"root"):
        tree = ObjectTree(object_id=name(root), children=[ObjectTree(object_id=name(one)) for one in contents])
        metadata = Metadata(run_id=RUN, src_node_id=node, dst_node_id=1, reply_to_message_id=to, message_id=name(root))
        request = PushMessagesRequest(
            node=Node(node_id=node), messages_list=[Message(metadata=metadata)], message_object_trees=[tree]
        )
        status, body = self.call("push-messages", request)
        answer = PushMessagesResponse()
        if status == 200:
            answer.ParseFromString(body)
        return status, answer.session_id

    def push(self, content, session, node=ME, run=RUN):
        request = PushObjectRequest(
            node=Node(node_id=node), run_id=run, session_id=session, object_id=name(content), object_content=content
        )
        return self.call("push-object", request)[0]


@pytest.fixture
def superlink(tmp_path):
    bounds.allow(tmp_path, RUN, MOST)
    return SuperLink(tmp_path)


PIECES = [bytes([k]) * 80_000 for k in range(5)]


def test_an_upload_may_not_be_larger_than_its_run_allows(superlink):
    _, session = superlink.announce(PIECES)
    assert [superlink.push(piece, session) for piece in PIECES] == [200, 200, 413, 413, 413]
    assert sum(superlink.kept) < MOST + 1000


def test_more_sessions_are_not_more_room(superlink):
    for k in range(20):
        _, session = superlink.announce(PIECES)
        superlink.push(PIECES[k % 5], session)
    assert sum(superlink.kept) < 12 * MOST  # pieces that count already may come again
    assert [superlink.push(piece, session) for piece in PIECES].count(200) == 2


def test_a_piece_that_is_sent_again_counts_once(superlink):
    _, session = superlink.announce(PIECES[:2])
    assert [superlink.push(PIECES[0], session) for _ in range(5)] == [200] * 5
    assert superlink.push(PIECES[1], session) == 200


def test_an_answer_is_announced_once(superlink):
    assert superlink.announce(PIECES[:1])[0] == 200
    assert superlink.announce(PIECES[:1])[0] == 200  # the connection broke
    assert superlink.announce(PIECES[1:2])[0] == 413  # otherwise
    assert superlink.announce(PIECES[1:2], to="another")[0] == 200


def test_a_session_is_its_own_nodes(superlink):
    _, session = superlink.announce(PIECES)
    assert superlink.push(PIECES[0], session, node=6) == 413
    assert superlink.push(PIECES[0], session, run=2) == 413
    assert superlink.push(PIECES[0], "") == 413
    assert superlink.push(PIECES[0], session) == 200


def test_a_run_that_allows_nothing_takes_answers_without_an_update(tmp_path):
    superlink = SuperLink(tmp_path)
    _, session = superlink.announce(PIECES)
    assert superlink.push(PIECES[0], session) == 413
    assert superlink.push(bytes(60_000), session) == 200


def test_other_calls_pass_and_others_paths_do_not(superlink):
    request = PushObjectRequest()
    assert superlink.call("pull-messages", request)[0] == 200
    for path in ("push-object\n", "register-node", "", "push-object/", "Push-Object"):
        assert superlink.call(path, request)[0] == 413
