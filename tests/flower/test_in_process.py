"""The in-process grid leans on names of Flower that are not public: these tests tell when they change."""

import subprocess
import sys
from importlib.metadata import version

from flwr.app import Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from cofair.flower.in_process import InProcessGrid
from tests.flower.federations import experiment, grid_of


def test_flower_is_the_version_that_this_was_written_for():
    assert version("flwr").startswith(("1.41.", "1.42.")), "does cofair.flower fit the new Flower? then move this on"


def test_messages_have_an_identity_and_answers_find_their_question():
    grid = grid_of(experiment())
    assert isinstance(grid, InProcessGrid)
    assert TaskIdentity.run_id == grid.run.run_id
    message = Message(RecordDict(), 100, "query")
    (name,) = grid.push_messages([message])
    assert message.metadata.message_id == name
    (reply,) = grid.pull_messages([name])
    assert reply.metadata.reply_to_message_id == name
    assert reply.metadata.src_node_id == 100
    assert not grid.pull_messages([name])


def test_the_core_does_without_flower():
    code = "import sys; sys.modules['flwr'] = None; import cofair.cli.main, cofair.runs.run"
    subprocess.run([sys.executable, "-c", code], check=True)
