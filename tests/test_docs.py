"""The pages are true: their Python runs, their settings are read, their commands and links exist."""

import contextlib
import io
import re
import shlex
import tomllib

import typer

from cofair import methods
from cofair.cli.command_inputs import of_methods
from cofair.cli.main import app
from cofair.config.experiment import Experiment, override
from cofair.config.grid import read_grid
from cofair.data import datasets
from cofair.data.scenes import SCENES
from cofair.data.tables import is_table
from cofair.reproduce.paper_tables import chosen, names, table
from tests.pages import ALL_PAGES, FENCE, PAGES, ROOT, blocks, each, prose, read, spans

WIDTH = 120


@each(PAGES, lambda page: blocks(page, "python"))
def test_the_python_of_a_page_runs_and_prints_what_it_says(page, tmp_path, monkeypatch):
    """Blocks share one namespace; a block `text` right after one of Python is what that prints."""
    monkeypatch.chdir(tmp_path)
    namespace, printed = {}, ""
    for number, (language, text) in enumerate(blocks(page, "python", "text"), start=1):
        if language == "text":
            assert printed == text, f"block {number} of {page.name}"
            continue
        with contextlib.redirect_stdout(io.StringIO()) as output:
            exec(compile(text, f"{page.name}, block {number}", "exec"), namespace)
        printed = output.getvalue()


@each(PAGES, lambda page: blocks(page, "toml"))
def test_the_settings_of_a_page_are_read(page):
    for _, text in blocks(page, "toml"):
        tables = tomllib.loads(text)
        assert read_grid(tables) if "grid" in tables else Experiment.from_dict(tables)


def commands(page):
    """Return the lines of a page's code blocks that call cofair, without comments."""
    text = read(page).replace("\\\n", " ")
    code = "\n".join(block for language, block in FENCE.findall(text) if language != "python")
    code += "\n" + "\n".join(line for line in FENCE.sub("", text).split("\n") if line.startswith("    "))
    return [shlex.split(line, comments=True)[1:] for line in map(str.strip, code.split("\n")) if calls(line)]


def calls(line):
    return re.match(r"cofair [a-z-]", line) is not None


def inline(page):
    """Return the calls of cofair within sentences; they may leave out arguments."""
    return [span.split()[1:] for span in spans(page) if calls(span)]


def command_of(words):
    """Return the command that words name, and the words left over."""
    command, left = typer.main.get_command(app), list(words)
    while left and left[0] in getattr(command, "commands", {}):
        command = command.commands[left.pop(0)]
    whole = not getattr(command, "commands", {}) or not left or left[0].startswith("-")
    assert whole, f"no such command: {' '.join(words)}"
    return command, left


def parsed(words):
    """Parse a call without running it."""
    command, left = command_of(words)
    return command.make_context(command.name, left).params


@each(PAGES, commands)
def test_the_commands_of_a_page_exist_and_take_their_options(page):
    for words in commands(page):
        given = parsed(words)
        if given.get("data"):
            assert is_table(given["data"]) or given["data"] in datasets.names(), words
        if given.get("scene"):
            assert given["scene"] in SCENES, words
        if words[0] == "reproduce" and given["name"] in names():  # methods and cells as the published table has them
            part = [given[name].split(",") if given.get(name) else () for name in ("cells", "methods")]
            assert chosen(table(given["name"]), *part).cells, words
        elif given.get("methods", "all") not in ("all", None) and not given.get("load"):
            assert all(methods.get(name) for name in given["methods"].split(",")), words
        if words[:2] == ["data", "get"]:
            assert given["name"] in (*datasets.names(), "NAME"), words
        compared = methods.names() if given.get("methods") == "all" else (given.get("methods") or "").split(",")
        own = of_methods(given.get("change"), compared) if words[0] == "compare" else (given.get("change") or (), {})
        tables = override({}, own[0])
        for name, settings in own[1].items():
            assert methods.make(name, settings), words
        if "name" not in tables.get("method", {}):
            tables.pop("method", None)  # settings of a method that the line does not name
        assert read_grid(tables)


@each(PAGES, inline)
def test_commands_in_sentences_exist_and_have_their_options(page):
    for words in inline(page):
        command, left = command_of(words)
        options = {name for parameter in command.params for name in parameter.opts}
        named = {word.split("=")[0].strip("[]") for word in left if re.match(r"\[?--?[a-z]", word)}
        assert named <= options | {"--help", "-h"}, words


@each(ALL_PAGES)
def test_the_links_of_a_page_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", FENCE.sub("", read(page))):
        if target.startswith(("http://", "https://")):
            continue
        path, _, part = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{page.name} links to {target}"
        assert not part or part in anchors(file), f"{page.name} links to {target}"


def anchors(page):
    """Return the anchors of a page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.+)$", FENCE.sub("", read(page)), re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles]


@each(ALL_PAGES)
def test_prose_is_not_wider_than_a_screen(page):
    """Tables and code may be wider, and so may a line that is one long word, such as a link."""
    wide = [line for line in prose(page).split("\n") if len(line) > WIDTH and not line.lstrip().startswith(("|", "!["))]
    assert not [line for line in wide if max(map(len, line.split())) < WIDTH], f"wrap these lines of {page.name}"


def test_the_index_names_every_page_for_users():
    index = read(ROOT / "docs" / "README.md")
    for page in (ROOT / "docs").glob("*.md"):
        assert page.name == "README.md" or f"({page.name})" in index, page.name
