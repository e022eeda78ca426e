"""A participant that runs Flower's node with changes of its own, as anybody can on a machine of theirs.

    python evil_node.py FOLDER KIND

It answers honestly until it has joined, and then: `silent` announces answers that it never pushes, `huge` pushes a
gigabyte, `unreadable` pushes what is no message, `endless` pushes a byte a second.
"""

import hashlib
import sys
import time
from pathlib import Path

from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.message_pb2 import ObjectTree, PushObjectRequest
from flwr.supernode.fleet_http_client import FleetHttpClient

from cofair.flower.deploy import supernode

KIND = sys.argv[2]
HONEST = supernode.FederationClient
PIECE = 5 * 2**20


def tree_of(root, contents):
    return ObjectTree(object_id=root, children=[ObjectTree(object_id=name_of(content)) for content in contents])


def name_of(content):
    return hashlib.sha256(content).hexdigest()


class Evil(HONEST):
    """Cheats in answers to trainings, which are those with a group: the round."""

    def PushMessages(self, request):
        [message] = request.messages_list
        if not message.metadata.group_id:
            return super().PushMessages(request)
        print(f"answering {KIND}", flush=True)
        if KIND == "silent":
            FleetHttpClient.PushMessages(self, request)
        if KIND in ("huge", "unreadable"):
            pieces = [bytes([k]) * PIECE for k in range(200)] if KIND == "huge" else [b"nonsense"]
            self.push(request, pieces)
        if KIND == "endless":
            time.sleep(600)
        type(self).answered = True
        raise RuntimeError("it has answered in its own way")

    def push(self, request, pieces):
        root = b"Message 3\x00[]"
        message = request.messages_list[0]
        message.metadata.message_id = name_of(root)
        announcement = PushMessagesRequest(
            node=request.node, messages_list=[message], message_object_trees=[tree_of(name_of(root), pieces)]
        )
        try:
            session = FleetHttpClient.PushMessages(self, announcement).session_id
        except Exception as error:
            print(f"refused as a whole: {error}", flush=True)
            few = pieces[:50]  # then less at a time
            announcement.message_object_trees[0].CopyFrom(tree_of(name_of(root), few))
            session = FleetHttpClient.PushMessages(self, announcement).session_id
            pieces = few
        for content in [root, *pieces]:
            try:
                self.PushObject(
                    PushObjectRequest(
                        node=request.node, run_id=message.metadata.run_id, session_id=session,
                        object_id=name_of(content), object_content=content,
                    )
                )  # fmt: skip
            except Exception as error:
                print(f"refused a piece: {error}", flush=True)


supernode.FederationClient = Evil
supernode.run(Path(sys.argv[1]))
