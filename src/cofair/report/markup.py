"""HTML that escapes by itself: a text is a text wherever it comes from, only `Html` is markup."""

import html
import json
from collections.abc import Sequence
from typing import Any

_MANY = 12  # rows from which a table is folded


class Html(str):
    """Markup, as opposed to text."""

    __slots__ = ()


def escaped(value: object) -> Html:
    """Return a value as HTML: markup as it is, everything else as text."""
    return value if isinstance(value, Html) else Html(html.escape(str(value), quote=True))


def element(tag: str, *children: object, **attributes: object) -> Html:
    """Return an element; `class_`, `data_x` and `aria_label` become attributes, None and False leave one out."""
    opening = tag
    for name, value in attributes.items():
        if value is None or value is False:
            continue
        opening += " " + name.rstrip("_").replace("_", "-")
        if value is not True:
            opening += f'="{escaped(str(value))}"'
    if tag in ("meta", "input", "br"):
        return Html(f"<{opening}>")
    return Html(f"<{opening}>{joined(children)}</{tag}>")


def joined(parts: Any) -> Html:
    """Return children joined."""
    return Html("".join(escaped(part) for part in parts if part is not None))


def text_table(header: Sequence[str], rows: Sequence[Sequence[str]], what: str, class_: str | None = None) -> Html:
    """Return a table, folded where it is long."""
    head = element("thead", element("tr", *(element("th", name, scope="col") for name in header)))
    body = element("tbody", *(element("tr", *(element("td", cell) for cell in row)) for row in rows))
    box = element("div", element("table", head, body, class_=class_), class_="wide", tabindex=0, role="region",
                  aria_label=f"Table: {', '.join(header)}")  # fmt: skip
    return folded(f"Show all {len(rows)} {what}", box, len(rows))


def folded(summary: str, content: Html, rows: int) -> Html:
    """Return content with that many rows, folded if there are many."""
    return content if rows <= _MANY else element("details", element("summary", summary), content)


def data(value: Any, identifier: str) -> Html:
    """Return JSON for scripts of the page; nothing in it can end the element or begin another."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Html(f'<script type="application/json" id="{escaped(identifier)}">{text}</script>')
