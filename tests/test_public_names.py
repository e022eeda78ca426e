"""What one can import from cofair: every name exists, is documented, and examples need nothing else."""

import ast
import inspect
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

import cofair
from cofair.config.experiment import TrainingSettings

ROOT = Path(__file__).parents[1]
NAMES = [name for name in cofair.__all__ if name != "__version__"]


@pytest.mark.parametrize("name", NAMES)
def test_every_public_name_is_documented(name):
    assert (inspect.getdoc(getattr(cofair, name)) or "").strip()


def test_the_names_that_editors_see_are_those_that_exist():
    tree = ast.parse(Path(cofair.__file__).read_text(encoding="utf-8"))
    checked = next(node for node in tree.body if isinstance(node, ast.If))
    known = {alias.name: node.module for node in checked.body for alias in node.names}
    assert known == cofair._HOMES | dict.fromkeys(cofair._MODULES, "cofair")
    assert set(NAMES) <= set(known)
    assert dir(cofair) == sorted(cofair.__all__)


@pytest.mark.parametrize("function", [cofair.run, cofair.compare], ids=["run", "compare"])
def test_every_parameter_has_a_type_and_a_line_of_documentation(function):
    documented = re.findall(r"^    (\w+): ", inspect.getdoc(function), re.MULTILINE)
    parameters = inspect.signature(function).parameters
    assert documented == list(parameters)
    assert all(parameter.annotation is not inspect.Parameter.empty for parameter in parameters.values())
    assert not any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())


def test_run_has_every_training_setting_with_its_default():
    parameters = inspect.signature(cofair.run).parameters
    assert {field.name: field.default for field in fields(TrainingSettings)} == {
        field.name: parameters[field.name].default for field in fields(TrainingSettings)
    }


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = cofair.nonsense


def test_importing_cofair_loads_neither_torch_nor_numpy():
    program = "import sys, cofair; print(sorted({'torch', 'numpy', 'pandas'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "[]\n"


PAGES = sorted([*ROOT.glob("docs/**/*.md"), ROOT / "README.md", *ROOT.glob("examples/*.ipynb")])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_import_from_cofair_alone(page):
    """From cofair itself, or from one of its public modules."""
    found = re.findall(r"(?:from|import) cofair\.(\w+)", page.read_text(encoding="utf-8"))
    assert set(found) <= {*cofair._MODULES, "flower"}


def test_the_example_imports_from_cofair_alone():
    tree = ast.parse((ROOT / "examples" / "my_method.py").read_text(encoding="utf-8"))
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {module for module in modules if module.startswith("cofair")} == {"cofair"}
