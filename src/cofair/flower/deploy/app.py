"""The app folder that `flwr run` sends to everybody: an experiment and the two apps around it."""

from pathlib import Path

from cofair.errors import UsageError
from cofair.runs.experiment import Experiment
from cofair.runs.folder import write_whole

_PROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "fairapp"
version = "1.0.0"
description = "A federation in which every participant receives a model as good as what it brought"
license = {{ text = "Apache-2.0" }}
# empty on purpose: cofair and its dependencies are installed beforehand, by everybody, in the same versions
dependencies = []

[tool.hatch.build.targets.wheel]
packages = ["fairapp"]

[tool.flwr.app]
publisher = "cofair"

[tool.flwr.app.components]
serverapp = "fairapp.server_app:app"
clientapp = "fairapp.client_app:app"

[tool.flwr.app.config]
# participants to start with, without how many not to start, and how long the server waits (seconds)
clients = {clients}
minimum = {clients}
join-seconds = 300
round-seconds = 600
poll-seconds = 1.0
# the run folder on the server's machine; resume = true goes on with the run in it
out = ""
resume = false
# the server's test and validation set, a file on its machine; without one the experiment's own data is used
data = ""
# changes to experiment.toml for one run, such as "training.rounds=10 run.seed=2"
overrides = ""
"""

_SERVER = '''\
"""The organiser's side.

Its data is in the .npz file that the run's setting `data` names (x_test, y_test, x_validation, y_validation). In place
of files.organiser any function of the context will do that returns ((inputs, labels), (inputs, labels)).
"""

from pathlib import Path

from cofair.flower import files, server_app

MODEL = None  # the experiment's own; or a function that makes your nn.Module, the same one in client_app.py
app = server_app(Path(__file__).with_name("experiment.toml"), MODEL, files.organiser)
'''

_CLIENT = '''\
"""A participant's side.

Its data is in the .npz file that its --node-config names (x and y). In place of files.participant any function of the
context will do that returns (inputs, labels) or a data loader; context.node_config holds what --node-config says.
"""

from pathlib import Path

from cofair.flower import client_app, files

MODEL = None  # the experiment's own; or a function that makes your nn.Module, the same one in server_app.py
app = client_app(Path(__file__).with_name("experiment.toml"), MODEL, files.participant)
'''


def write_app(folder: Path, experiment: Experiment, clients: int) -> None:
    """Write the app folder of an experiment."""
    if folder.exists():
        raise UsageError(f"{folder} exists already: name another folder.")
    package = folder / "fairapp"
    package.mkdir(parents=True)
    write_whole(folder / "pyproject.toml", _PROJECT.format(clients=clients))
    write_whole(package / "__init__.py", '"""A federation on Flower."""\n')
    write_whole(package / "experiment.toml", experiment.to_toml())
    write_whole(package / "server_app.py", _SERVER)
    write_whole(package / "client_app.py", _CLIENT)
