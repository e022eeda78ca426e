"""An answer that is late is dropped, and does not put off the next one: with Flower's own state of a node."""

import threading
import time

import httpx
import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common.serde import message_to_proto
from flwr.proto.fleet_pb2 import PullMessagesRequest, PullMessagesResponse, PushMessagesRequest, PushMessagesResponse
from flwr.proto.node_pb2 import Node
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.retry import make_simple_http_retry_invoker
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode import start_client_internal
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.nodestate import NodeStateFactory

from cofair.flower.deploy import supernode
from tests.flower.federations import SOON  # also quiets Flower's log

assert SOON


class Wire(supernode.FederationClient):
    """A client whose server is a list: what is pulled, and what arrived."""

    def __init__(self):
        self.inbox, self.arrived = [], []

    def _unary_unary(self, *, path, request, **_):
        if path.endswith("pull-messages"):
            return PullMessagesResponse(messages_list=[message_to_proto(self.inbox.pop(0))] if self.inbox else [])
        [message] = request.messages_list
        self.arrived.append(message.metadata.reply_to_message_id)
        return PushMessagesResponse()


@pytest.fixture
def client():
    yield Wire()
    Wire.last_message, Wire.answered = None, True


class ANode:
    """Flower's own state of a node, and its function that pushes answers."""

    def __init__(self, client):
        factory = ObjectStoreFactory()
        self.store, self.client = factory.store(), client
        self.state = NodeStateFactory(factory).state()

    def asked(self, name):
        """Let a message come from the server, and return it."""
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
        message = Message(RecordDict({"config": ConfigRecord({"name": name})}), 5, "train", group_id=name)
        message.metadata.__dict__["_message_id"] = message.object_id
        self.client.inbox.append(message)
        self.client.PullMessages(PullMessagesRequest(node=Node(node_id=5)))
        return message

    def answered(self, message):
        """Let the app of the node answer a message."""
        reply = Message(RecordDict({"config": ConfigRecord({"status": "ok"})}), reply_to=message)
        reply.metadata.__dict__["_message_id"] = reply.object_id
        self.store.preregister(reply.metadata.run_id, get_object_tree(reply))
        for name, part in get_all_nested_objects(reply).items():
            self.store.put(name, part.deflate())
        self.state.store_message(reply)  # last of all: from now on it is pushed, perhaps by another thread

    def push(self, function):
        def send(message, tree, _):
            request = PushMessagesRequest(
                node=Node(node_id=5), messages_list=[message_to_proto(message)], message_object_trees=[tree]
            )
            self.client.PushMessages(request)
            return set(), "session"

        function(state=self.state, object_store=self.store, send=send, push_object=lambda *_: None)


def test_an_answer_to_an_earlier_message_is_dropped_and_the_present_one_arrives(client):
    node = ANode(client)
    late, now = node.asked("late"), node.asked("now")
    node.answered(late)
    threading.Thread(target=lambda: (time.sleep(1.0), node.answered(now)), daemon=True).start()
    node.push(supernode.push_until_answered(start_client_internal._push_messages, Wire))
    assert client.arrived == [now.metadata.message_id]


def test_flower_alone_would_be_an_answer_behind(client):
    """What is worked around is still there: when this fails, `push_until_answered` can go."""
    node = ANode(client)
    late, now = node.asked("late"), node.asked("now")
    node.answered(late)
    node.push(start_client_internal._push_messages)
    assert client.last_message == now.metadata.message_id
    assert client.arrived == []
    assert not client.answered  # it goes on to pull, with this one unanswered


@pytest.mark.parametrize("trouble", ["gone for a while", "refused", "given up"])
def test_whatever_becomes_of_an_answer_the_next_message_is_pulled(client, monkeypatch, trouble):
    """With Flower's own way of trying again around it, as a node has it."""
    node, invoker = ANode(client), make_simple_http_retry_invoker()
    message, call_server = node.asked("one"), client._unary_unary
    answers = {
        "gone for a while": [httpx.ConnectError("gone"), status(502), None],
        "refused": [status(413)],
        "given up": [httpx.ConnectError("certificate verify failed")],
    }[trouble]

    def troubled(**call):
        error = answers.pop(0)
        if error is not None:
            raise error
        return call_server(**call)

    monkeypatch.setattr(client, "_unary_unary", troubled)
    push = client.PushMessages
    monkeypatch.setattr(client, "PushMessages", lambda request: invoker.invoke(push, request))
    node.answered(message)
    node.push(supernode.push_until_answered(start_client_internal._push_messages, Wire))  # which comes to its end
    assert client.arrived == ([message.metadata.message_id] if trouble == "gone for a while" else [])


def test_a_handshake_that_takes_long_is_no_wrong_certificate(monkeypatch):
    """Flower gives up on errors that speak of TLS."""

    def slow(*_, **__):
        raise httpx.ConnectTimeout("_ssl.c:989: The handshake operation timed out")

    monkeypatch.setattr(FleetHttpClient, "_unary_unary", slow)
    with pytest.raises(httpx.ConnectTimeout, match=r"^the server did not answer in time$"):
        supernode.FederationClient._unary_unary(object.__new__(supernode.FederationClient))


def status(code):
    request = httpx.Request("POST", "https://server")
    return httpx.HTTPStatusError("refused", request=request, response=httpx.Response(code, request=request))
