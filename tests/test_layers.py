"""Packages import only what stands to their left in the order of layers; the architecture page shows the same order."""

import ast
from collections import Counter
from pathlib import Path

import pytest

import cofair

ROOT = Path(cofair.__file__).parent
LAYERS = (
    "errors", "settings", "randomness", "quality", "metrics", "models", "data", "neurons", "engine", "scoring",
    "contributions", "methods", "rounds", "config", "results", "storage", "tracking", "runs", "report", "reproduce",
    "flower", "cli",
)  # fmt: skip
FRONT = ("__init__", "__main__")  # what users import: above all layers
# methods of a result that write what is built on it: they go through the front door, as a user would
BY_THE_FRONT_DOOR = {("results/result.py", "write_report"), ("results/result.py", "export_reward")}


def imports(source):
    """Return (line, package) of every import of cofair, wherever it stands in a file."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "cofair":
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names if alias.name.startswith("cofair.")]
        else:
            continue
        yield from ((node.lineno, name.split(".")[1]) for name in names if name.split(".")[1] in LAYERS)


def front_doors(source):
    """Return (line, package, name) of every public name that is used as cofair.name."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "cofair":
            home = cofair._HOMES.get(node.attr)
            if home is not None:
                yield node.lineno, home.split(".")[1], node.attr


def breaches(package, source, file=""):
    own = LAYERS.index(package)
    used = [(line, other) for line, other, name in front_doors(source) if (file, name) not in BY_THE_FRONT_DOOR]
    return [(line, other) for line, other in [*imports(source), *used] if LAYERS.index(other) > own]


def files():
    for path in sorted(ROOT.rglob("*.py")):
        package = path.relative_to(ROOT).with_suffix("").parts[0]
        if package not in FRONT:
            yield path, package


def test_every_package_is_a_layer():
    assert {package for _, package in files()} == set(LAYERS)


def test_no_package_imports_one_to_its_right():
    found = [
        f"{path.relative_to(ROOT)}:{line} imports {other}, which is to the right of {package}"
        for path, package in files()
        for line, other in breaches(package, path.read_text(encoding="utf-8"), path.relative_to(ROOT).as_posix())
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "line",
    [
        "from cofair.runs.run import Run", "from cofair.runs import run", "import cofair.runs.run",
        "def f():\n    from cofair.report import page", "from cofair import runs",
        "import cofair\ncofair.write_report([])",
    ],
)  # fmt: skip
def test_a_breach_is_found_wherever_it_stands(line):
    assert breaches("engine", line)


def test_what_is_allowed_passes():
    assert not breaches("engine", "from cofair.models.parameters import Layout\nimport cofair\nimport torch")


def test_no_two_files_have_the_same_name():
    twice = [name for name, count in Counter(path.name for path in ROOT.rglob("*.py")).items() if count > 1]
    assert twice == ["__init__.py"]
