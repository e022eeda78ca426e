"""What the source never does, beyond what the linter's rules of safety (S) look for."""

import ast
from pathlib import Path

import pytest

import cofair

SOURCES = sorted(Path(cofair.__file__).parent.rglob("*.py"))
RUNS_CODE = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}
UNPACKS = {"extract", "extractall", "unpack_archive"}  # members are read as streams: no path comes from an archive
EVALUATES = {"eval", "exec", "compile", "__import__"}


def wrongs(source):
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] in RUNS_CODE)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in RUNS_CODE:
            yield node.module
        elif isinstance(node, ast.Call):
            called = node.func
            if isinstance(called, ast.Name) and called.id in EVALUATES:
                yield called.id
            if isinstance(called, ast.Attribute):
                if called.attr in UNPACKS:
                    yield called.attr
                if isinstance(called.value, ast.Name) and (called.value.id, called.attr) == ("torch", "load"):
                    yield "torch.load"
        elif isinstance(node, ast.keyword) and node.arg in ("shell", "allow_pickle") and not is_false(node.value):
            yield node.arg


def is_false(node):
    return isinstance(node, ast.Constant) and node.value is False


def test_the_source_reads_no_pickle_evaluates_nothing_and_unpacks_nothing():
    assert len(SOURCES) > 100
    found = {str(path): list(wrongs(path.read_text(encoding="utf-8"))) for path in SOURCES}
    assert {path: names for path, names in found.items() if names} == {}


@pytest.mark.parametrize(
    "line",
    [
        "import pickle", "from dill import loads", "import a, shelve as b", "eval(x)", "exec(x)", "tar.extractall(to)",
        "np.load(f, allow_pickle=True)", "np.load(f, allow_pickle=x)", "run('ls', shell=True)", "torch.load(f)",
    ],
)  # fmt: skip
def test_the_search_finds_what_it_looks_for(line):
    assert list(wrongs(line))


def test_what_is_right_is_let_through():
    assert not list(wrongs("np.load(f, allow_pickle=False)\nmodel.eval()\nrun(['ls'])\nsafetensors.torch.load(f)"))
