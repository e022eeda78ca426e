"""Ledgers on the page: whether they hold, their heads, and a client's own line to check later."""

from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path

from cofair.errors import CofairError, RunError
from cofair.report.markup import Html, element, joined
from cofair.report.read import Entry, Run
from cofair.runs.audit import LEDGER, ClientLine, audited, client_lines, disagreement

CELLS = ("seed", "round", "contribution", "accuracy", "reputation", "neurons", "reward", "head")
MOST = 10_000_000  # bytes of a statement; one is as large as the plots' library


def section(entries: Sequence[Entry]) -> Html | None:
    """Say of every run whether its ledger holds, and name its head; None where no run has one."""
    rows = []
    for entry in entries:
        for run in entry.runs:
            if _has_ledger(run):
                verdict, head = _verdict(run)
                own = element("td", element("code", head, class_="hash") if head else "–")
                rows.append([element("td", entry.label), element("td", run.outcome.seed), element("td", verdict), own])
    if not rows:
        return None
    note = (
        "The ledger says who brought what and was handed what in every tested round, each entry with the hash of the "
        "one before. Whoever keeps a head can prove later that something before it was changed or cut off: "
    )
    command = element("code", "cofair ledger verify DIR --head HASH")
    return joined([element("p", note, command, "."), _table(["method", "seed", "ledger", "head"], rows)])


def statement(entry: Entry, client: str) -> Html | None:
    """Return what the ledger says of a client at the end, to the last digit; None where no run has a ledger."""
    rows, faults = [], []
    for run in entry.runs:
        if not _has_ledger(run) or run.folder is None:
            continue
        try:
            lines = client_lines(audited(run.folder), client)
        except CofairError as error:
            faults.append(element("p", str(error)))
            continue
        if not lines:
            faults.append(element("p", "The ledger has no tested round of this client yet."))
            continue
        cells = [element("td", text, data_ledger=name) for name, text in told(run.outcome.seed, lines[-1]).items()]
        rows.append(cells)
    if not rows and not faults:
        return None
    note = element(
        "p", "Keep this page. It is compared with the ledger, whoever may have rewritten that since, by ",
        element("code", "cofair ledger check DIR THIS_PAGE.html"), ".",
    )  # fmt: skip
    return joined([note, *faults, _table(CELLS, rows, client) if rows else None])


def told(seed: object, line: ClientLine) -> dict[str, str]:
    """Return a client's line as it stands in a statement."""
    values = [seed, line.round, line.contribution, line.accuracy, line.reputation, line.neurons, line.reward, line.head]
    return {name: "–" if value is None else str(value) for name, value in zip(CELLS, values, strict=True)}


def read_statement(path: Path) -> tuple[str, list[dict[str, str]]]:
    """Return the client of a statement and what it says that the ledger says, one row a run."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            text = file.read(MOST + 1)
    except OSError as error:
        raise RunError(f"Cannot read the statement {path}: {error.strerror}.") from None
    found = _Statement()
    try:
        found.feed(text[:MOST])
        found.close()
    except (AssertionError, ValueError):
        found.rows.clear()
    whole = [row for row in found.rows if set(row) == set(CELLS)]
    if found.client is None or not whole or len(whole) < len(found.rows):
        raise RunError(f"{path} is no statement with lines of a ledger, as 'cofair report --client' writes it.")
    return found.client, whole


class _Statement(HTMLParser):
    """Reads what people see in the table, not what lies hidden beside it."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.client: str | None = None
        self.rows: list[dict[str, str]] = []
        self._cell: str | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        own = dict(attrs)
        if tag == "table" and own.get("data-client") is not None:
            self.client = own["data-client"]
        self._cell = own.get("data-ledger") if tag == "td" else None
        if self._cell == CELLS[0]:
            self.rows.append({})
        if self._cell is not None and self.rows:
            self.rows[-1][self._cell] = ""

    def handle_endtag(self, tag: str) -> None:
        self._cell = None

    def handle_data(self, data: str) -> None:
        if self._cell is not None and self.rows:
            self.rows[-1][self._cell] += data


def _has_ledger(run: Run) -> bool:
    return run.folder is not None and (run.folder / LEDGER).exists()


def _verdict(run: Run) -> tuple[str, str]:
    """Say whether a run's ledger holds and agrees with the history that the page shows; its head, if it does."""
    assert run.folder is not None
    try:
        entries = audited(run.folder)
    except CofairError as error:
        return str(error), ""
    differs = disagreement(entries, run.outcome.history)
    if differs is not None:
        return f"It is whole, but {differs}.", ""
    return f"{len(entries)} entries, nothing altered; says what this page says", str(entries[-1]["hash"])


def _table(header: Sequence[str], rows: Sequence[Sequence[Html]], client: str | None = None) -> Html:
    head = element("thead", element("tr", *(element("th", name, scope="col") for name in header)))
    body = element("tbody", *(element("tr", *cells) for cells in rows))
    table = element("table", head, body, data_client=client)
    return element("div", table, class_="wide", tabindex=0, role="region", aria_label=f"Table: {', '.join(header)}")
