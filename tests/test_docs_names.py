"""What the pages name is there: files, modules, functions, and the tree of packages."""

import ast
import importlib
import re
from dataclasses import fields
from functools import cache

import pytest
from torch import nn

from cofair.config.experiment import Experiment
from tests.pages import ALL_PAGES, PAGES, ROOT, SOURCE, blocks, each, prose, read, spans

PATH = re.compile(r"(?<![\w/.*-])((?:[\w-]+/)*[\w-]+\.(?:py|ipynb))\b")
HOMES = (ROOT, SOURCE, ROOT / "tests" / "flower")  # a page on deployments names its tests by their last part
EXAMPLES = {"FILE.py"}
TABLES = {field.name for field in fields(Experiment)}  # `run.device` is a setting, not a function of run.py
NOT_OURS = {"result", "server", "uploads"}  # objects in sentences that share their name with a module
ENDINGS = {"crt", "csv", "fab", "html", "json", "jsonl", "md", "npz", "py", "safetensors", "toml"}


@each(ALL_PAGES, lambda page: PATH.search(read(page)))
def test_the_files_that_a_page_names_exist(page):
    named = set(PATH.findall(read(page))) - EXAMPLES
    missing = sorted(path for path in named if not any((home / path).exists() for home in HOMES))
    assert not missing, f"{page.name} names files that do not exist: {', '.join(missing)}"


@each(PAGES)
def test_the_folders_and_settings_files_that_a_page_names_exist(page):
    for span in spans(page):
        first = span.split("/")[0]
        inside = (SOURCE if (SOURCE / first).is_dir() else ROOT) if "/" in span else None
        if inside and (inside / first).is_dir() and re.fullmatch(r"[\w/*-]+(/|\.toml)", span):
            if first in ("runs", "results"):  # where the pages' own commands write
                continue
            assert list(inside.glob(span.rstrip("/"))), f"{page.name} names {span}"


@each(PAGES, lambda page: "benchmarks." in read(page))
def test_the_benchmarks_that_a_page_names_exist(page):
    for name in re.findall(r"python -m benchmarks\.(\w+)", " ".join(read(page).split())):
        assert (ROOT / "benchmarks" / f"{name}.py").exists(), f"{page.name} names benchmarks.{name}"


@each(PAGES, lambda page: re.search(r"\bcofair\.[a-z]", read(page)))
def test_the_modules_that_a_page_names_can_be_imported(page):
    for name in set(re.findall(r"\bcofair(?:\.[A-Za-z_]\w*)+", read(page))):
        assert found(name), f"{page.name} names {name}"
    for module, names in re.findall(r"^\s*from (cofair[\w.]*) import (.+)$", read(page), re.MULTILINE):
        for name in names.split(","):
            assert found(f"{module}.{name.strip()}"), f"{page.name} imports {name} from {module}"


def found(name):
    """Return whether a dotted name leads to a module or to something in one."""
    head, *rest = name.split(".")
    here = importlib.import_module(head)
    for part in rest:
        if not hasattr(here, part):
            try:
                importlib.import_module(f"{here.__name__}.{part}")
            except (ImportError, AttributeError):
                return False
        here = getattr(here, part)
    return True


@cache
def defined():
    """Return what each module and class defines, by the last part of its name, and what each class extends."""
    inside, bases = {}, {}
    for file in SOURCE.rglob("*.py"):
        tree = ast.parse(read(file))
        inside.setdefault(file.stem, set()).update(names_in(tree))
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                inside.setdefault(node.name, set()).update(names_in(node))
                bases[node.name] = [part.id for part in ast.walk(ast.Tuple(node.bases)) if isinstance(part, ast.Name)]
    return inside, bases


def names_in(node):
    for child in node.body:
        if isinstance(child, ast.FunctionDef | ast.ClassDef):
            yield child.name
        elif isinstance(child, ast.AnnAssign):
            yield ast.unparse(child.target)
        elif isinstance(child, ast.Assign):
            yield from map(ast.unparse, child.targets)


def has(owner, name):
    inside, bases = defined()
    return name in inside.get(owner, ()) or any(has(base, name) for base in bases.get(owner, ()))


@each(PAGES)
def test_the_functions_that_a_page_names_exist(page):
    """`module.function` and `Class.method`, wherever a sentence or a table has one."""
    for span in spans(page):
        match = re.match(r"([A-Za-z_]\w*)\.([A-Za-z_]\w*)(?:\(|$)", span)
        if match and match[1] in defined()[0] and match[1] not in TABLES | NOT_OURS and match[2] not in ENDINGS:
            assert has(match[1], match[2]), f"{page.name} names {span}"


@each([ROOT / "docs" / name for name in ("architecture.md", "your_own_method.md")])
def test_the_classes_that_a_page_for_developers_names_exist(page):
    for name in {span for span in spans(page) if re.fullmatch(r"(?:[A-Z][a-z]+){1,3}", span)}:
        assert name in defined()[0] or hasattr(nn, name), f"{page.name} names {name}"


METHOD_PAGES = [page for page in PAGES if page.parent.name == "methods"]


@each(METHOD_PAGES, lambda page: "where in `" in read(page))
def test_the_table_of_a_method_names_what_is_in_its_file(page):
    """Below `where in FILE` the second column has functions of that file, or of what it builds on."""
    _, file, rows = re.split(r"where in `([\w/.]+)` \|\n\| --- \| --- \|\n", read(page), maxsplit=1)
    text = read(SOURCE / file) + "".join(map(read, (SOURCE / "methods").rglob("*.py")))
    for row in rows.split("\n\n")[0].split("\n"):
        for name in re.findall(r"`([a-z_]+)`", row.split("|")[2]):
            assert re.search(rf"\b{name}\b", text), f"{page.name} names {name}"


def modules(folder=SOURCE):
    """Return the packages and modules of the source, as paths without endings."""
    files = [file for file in folder.rglob("*.py") if not file.stem.startswith("__")]
    packages = [file.parent for file in folder.rglob("__init__.py") if file.parent != folder]
    return {str(file.relative_to(folder).with_suffix("")) for file in files} | {
        f"{package.relative_to(folder)}/" for package in packages
    }


def drawn(tree):
    """Read a tree of lines `package/  module, module, …`: two spaces deeper is inside, a line without / continues."""
    names, path = set(), []
    for line in tree.splitlines():
        match = re.match(r"( *)([\w/]+)/ *(.*)$", line)
        if match:
            depth, package, line = len(match[1]) // 2, match[2], match[3]
            path = [*path[: depth - 1], package] if depth else []
            names |= {"/".join(path) + "/"} if depth else set()
        names |= {"/".join([*path, name.strip()]) for name in line.split(",") if name.strip()}
    return names


def test_the_tree_on_the_architecture_page_is_that_of_the_source():
    page = ROOT / "docs" / "architecture.md"
    trees = [text for _, text in blocks(page, "") if text.startswith("src/cofair/")]
    assert len(trees) == 1, "docs/architecture.md needs one fenced block that begins with src/cofair/"
    shown, there = drawn(trees[0]), modules()
    wrong = [f"add {name}" for name in sorted(there - shown)] + [f"remove {name}" for name in sorted(shown - there)]
    if wrong:
        pytest.fail("the tree on docs/architecture.md: " + "; ".join(wrong), pytrace=False)


def test_the_architecture_page_says_what_each_package_holds():
    said = set(re.findall(r"^\| `(\w+)` \|", prose(ROOT / "docs" / "architecture.md"), re.MULTILINE))
    packages = {file.parent.name for file in SOURCE.glob("*/__init__.py")}
    assert packages <= said, f"say what these hold: {', '.join(sorted(packages - said))}"


def test_the_hops_of_a_comparison_exist_and_are_at_most_25():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    block = page.partition("## How a comparison flows")[2].partition("```text\n")[2].partition("```")[0]
    hops = [line.split()[1:3] for line in block.splitlines()]
    assert 10 < len(hops) <= 25
    for file, name in hops:
        found = importlib.import_module("cofair." + file.replace("/", ".").removesuffix(".__init__"))
        for part in name.split("."):
            found = getattr(found, part)
        assert callable(found), (file, name)
