"""A grid whose nodes live in this process: for tests and for trying out an app, without network or processes.

It uses names of Flower that are not public (`TaskIdentity`, the identity of a message) and change between versions:
`tests/flower/test_in_process.py` fails when they do.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

_RUN = 1
App = ClientApp | Callable[[Message, Context], Message | None]


@dataclass
class Node:
    """A node: its app, its memory, and whether it is online."""

    app: App
    context: Context
    online: bool = True


@dataclass
class InProcessGrid(Grid):
    """Calls each node's app as soon as a message is sent to it; an offline node never answers."""

    nodes: dict[int, Node]
    seen: list[Message] = field(default_factory=list)  # every message, in order, if `watch` is set
    watch: bool = False
    _answers: dict[str, Message] = field(default_factory=dict)
    _count: int = 0

    @classmethod
    def of(
        cls, app: App, configs: Sequence[Mapping[str, Any]], run_config: Mapping[str, Any] | None = None
    ) -> "InProcessGrid":
        """Return a grid with one node per node config."""
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = _RUN, 1, 1
        return cls({
            k: Node(app, Context(_RUN, k, dict(config), RecordDict(), dict(run_config or {})))
            for k, config in enumerate(configs, start=100)
        })  # fmt: skip

    def set_run(self, run: Run) -> None:
        """Do nothing: there is one run."""

    @property
    def run(self) -> Run:
        """Return the one run."""
        return Run.create_empty(_RUN)

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """Return a message."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """Return the nodes that are online."""
        return [number for number, node in self.nodes.items() if node.online]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Let every node handle its message."""
        return [self._handled(message) for message in messages]

    def _handled(self, message: Message) -> str:
        self._count += 1
        message.metadata.__dict__["_message_id"] = name = str(self._count)
        node = self.nodes[message.metadata.dst_node_id]
        reply = node.app(message, node.context) if node.online else None  # an app may leave it unanswered
        if reply is not None:
            self._answers[name] = reply
            if self.watch:
                self.seen += [message, reply]
        return name

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the answers to messages."""
        return [self._answers.pop(name) for name in message_ids if name in self._answers]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Let every node handle its message and return the answers."""
        return self.pull_messages(self.push_messages(messages))
