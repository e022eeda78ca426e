"""The pages of the project, and their parts: fenced blocks, code spans, prose."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "cofair"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
ALL_PAGES = [*PAGES, *(ROOT / name for name in ("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def name_of(page):
    return str(page.relative_to(ROOT))


def read(page):
    return page.read_text(encoding="utf-8")


def blocks(page, *languages):
    """Return the fenced blocks of a page in some languages: (language, text)."""
    return [(match[1], match[2]) for match in FENCE.finditer(read(page)) if match[1] in languages]


def prose(page):
    """Return a page without its fenced and indented code."""
    return "\n".join(line for line in FENCE.sub("", read(page)).split("\n") if not line.startswith("    "))


def spans(page):
    """Return the code within a page's sentences and tables, each on one line."""
    return [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", prose(page))]


def each(pages, has=lambda page: True):
    """Run a test for each page that has something."""
    return pytest.mark.parametrize("page", [page for page in pages if has(page)], ids=name_of)
