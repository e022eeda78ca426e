"""The app folder that `flwr run` sends to every participant: an experiment and the two apps around it."""

import hashlib
import tomllib
import zipfile
from io import BytesIO
from pathlib import Path

from flwr.cli.build import build_fab_from_disk

from cofair.config.experiment import Experiment
from cofair.errors import UsageError
from cofair.storage.folder import write_whole

_PROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "fairapp"
version = "1.0.0"
description = "A federation in which every participant receives a model as good as what it brought"
license = { text = "Apache-2.0" }
# empty on purpose: everybody has installed cofair and its dependencies beforehand, in the same versions
dependencies = []

[tool.hatch.build.targets.wheel]
packages = ["fairapp"]

[tool.flwr.app]
publisher = "cofair"

[tool.flwr.app.components]
serverapp = "fairapp.server_app:app"
clientapp = "fairapp.client_app:app"

[tool.flwr.app.config]
# sent to every participant: the name of a file beside this folder that holds what only the server knows
settings = "server"
"""

_SERVER = '''\
"""The organiser's side.

Its data is in the .npz file that server.toml names (x_test, y_test, x_validation, y_validation). Any function of the
context that returns ((inputs, labels), (inputs, labels)) can replace files.organiser.
"""

from pathlib import Path

from cofair.flower import files, server_app

MODEL = None  # the experiment's own; or a function that makes your nn.Module, the same one in client_app.py
app = server_app(Path(__file__).with_name("experiment.toml"), MODEL, files.organiser)
'''

_CLIENT = '''\
"""A participant's side.

Its data is in the .npz file that its settings.toml names (x and y). Any function of the context that returns (inputs,
labels) or a data loader can replace files.participant; context.node_config has its name, data and allow.
"""

from pathlib import Path

from cofair.flower import client_app, files

MODEL = None  # the experiment's own; or a function that makes your nn.Module, the same one in server_app.py
app = client_app(Path(__file__).with_name("experiment.toml"), MODEL, files.participant)
'''


def demonstration(rounds: int, clients: int | None, method: str, seed: int) -> Experiment:
    """Return the experiment of the demonstration: the embedded data, unequally distributed over so many clients."""
    return Experiment.from_dict({
        "federation": {"data": "digits", "scene": "pow"} | ({} if clients is None else {"clients": clients}),
        "training": {"rounds": rounds},
        "contribution": {"on": "validation"},
        "run": {"seed": seed, "device": "cpu", "evaluate_every": 1},
        "method": {"name": method},
    })  # fmt: skip


def write_app(folder: Path, experiment: Experiment) -> None:
    """Write the app folder of an experiment."""
    if folder.exists():
        raise UsageError(f"{folder} exists already: name another folder.")
    package = folder / "fairapp"
    package.mkdir(parents=True)
    write_whole(folder / "pyproject.toml", _PROJECT)
    write_whole(package / "__init__.py", '"""A federation on Flower."""\n')
    write_whole(package / "experiment.toml", experiment.to_toml())
    write_whole(package / "server_app.py", _SERVER)
    write_whole(package / "client_app.py", _CLIENT)


def pack_app(folder: Path) -> bytes:
    """Return an app folder as the one file that Flower sends to everybody; participants agree to its hash."""
    try:
        return build_fab_from_disk(folder)
    except Exception as error:  # Flower has many ways to say what is wrong with the folder
        raise UsageError(f"{folder} cannot be packed as an app: {error}") from None


def hash_of(app: bytes) -> str:
    """Return the hash that identifies an app to participants."""
    return hashlib.sha256(app).hexdigest()


def experiment_in(app: bytes) -> Experiment:
    """Return the experiment that a packed app holds."""
    try:
        with zipfile.ZipFile(BytesIO(app)) as files:
            [name] = [name for name in files.namelist() if name.endswith("/experiment.toml")]
            return Experiment.from_dict(tomllib.loads(files.read(name).decode()))
    except (ValueError, zipfile.BadZipFile):
        raise UsageError("The app must hold exactly one experiment.toml, and a valid one.") from None
