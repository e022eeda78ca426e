"""Ledgers on the page: whether they are intact, their heads, and a client's own line to check later."""

from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path

from cofair.errors import CofairError, RunError
from cofair.report.markup import Html, element, joined
from cofair.report.reported_runs import ReportedMethod
from cofair.storage.agreement import Audit
from cofair.storage.audit import ClientLine, client_lines

CELLS = (
    "seed", "round", "samples", "contribution", "accuracy", "reputation", "neurons", "download", "reward", "head",
)  # fmt: skip
_LATER = ("samples", "download")  # statements of earlier versions are without them
MOST = 10_000_000  # bytes of a statement; one is as large as the plots' library


def doubts(methods: Sequence[ReportedMethod]) -> list[str]:
    """Name the runs whose ledger is broken, or whose folder contradicts its ledger."""
    return [
        f"{method.label}, seed {run.outcome.seed}: {run.audit.fault}"
        for method in methods for run in method.runs if run.audit is not None and run.audit.fault is not None
    ]  # fmt: skip


def warning(methods: Sequence[ReportedMethod]) -> Html | None:
    """Warn at the top of the page about what cannot be trusted; None if there is nothing."""
    found = doubts(methods)
    if not found:
        return None
    trust = element("p", "Do not trust this page: a ledger is broken, or contradicts the page.")
    return element(
        "div", trust, element("ul", *(element("li", doubt) for doubt in found)), class_="doubt", role="alert"
    )


def section(methods: Sequence[ReportedMethod]) -> Html | None:
    """Say for every run whether its ledger is intact, and name its head; None if no run has one."""
    rows = []
    for method in methods:
        for run in method.runs:
            if run.audit is not None:
                verdict, head = _verdict(run.audit)
                own = element("td", element("code", head, class_="hash") if head else "–")
                rows.append([element("td", method.label), element("td", run.outcome.seed), element("td", verdict), own])
    if not rows:
        return None
    note = (
        "The ledger says who brought what and was handed what in every tested round, each entry with the hash of the "
        "one before. All that this page shows was compared with it, except for times, machines and traffic, which it "
        "does not have. Anyone who can write to the folder can rewrite all of it. Anyone who keeps a head elsewhere "
        "can prove later that something before it was changed or cut off: "
    )
    command = element("code", "cofair ledger verify DIR --head HASH")
    return joined([element("p", note, command, "."), _table(["method", "seed", "ledger", "head"], rows)])


def statement(method: ReportedMethod, client: str) -> Html | None:
    """Return what the ledger says of a client at the end, to the last digit; None where no run has a ledger."""
    rows, faults = [], []
    for run in method.runs:
        if run.audit is None:
            continue
        if run.audit.fault is not None:
            faults.append(element("p", run.audit.fault))
            continue
        try:
            lines = client_lines(run.audit.entries, client)
        except CofairError as error:
            faults.append(element("p", str(error)))
            continue
        if not lines:
            faults.append(element("p", "The ledger has no tested round of this client yet."))
            continue
        cells = [
            element("td", text, data_ledger=name) for name, text in ledger_cells(run.outcome.seed, lines[-1]).items()
        ]
        rows.append(cells)
    if not rows and not faults:
        return None
    note = element(
        "p", "Keep this page. To compare it with the ledger later, even if someone has rewritten that: ",
        element("code", "cofair ledger check DIR THIS_PAGE.html"), ".",
    )  # fmt: skip
    return joined([note, *faults, _table(CELLS, rows, client) if rows else None])


def ledger_cells(seed: object, line: ClientLine) -> dict[str, str]:
    """Return a client's line as a statement shows it."""
    values = [
        seed, line.round, line.samples, line.contribution, line.accuracy, line.reputation, line.neurons, line.download,
        line.reward, line.head,
    ]  # fmt: skip
    return {name: "–" if value is None else str(value) for name, value in zip(CELLS, values, strict=True)}


def read_statement(path: Path) -> tuple[str, list[dict[str, str]]]:
    """Return the client of a statement and what it quotes from the ledger, one row per run."""
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
    whole = [row for row in found.rows if set(CELLS) - set(_LATER) <= set(row) <= set(CELLS)]
    if found.client is None or not whole or len(whole) < len(found.rows):
        raise RunError(f"{path} is no statement with lines of a ledger, as 'cofair report --client' writes it.")
    return found.client, whole


class _Statement(HTMLParser):
    """Reads what people see in the table, not what is hidden next to it."""

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


def _verdict(audit: Audit) -> tuple[str, str]:
    """Say whether a ledger is intact and agrees with the page; return its head, if so."""
    if audit.fault is not None:
        return audit.fault, ""
    remarks = "".join(f"; {remark}" for remark in audit.remarks)
    entries = audit.entries
    return f"{len(entries)} entries, nothing altered; says what this page says{remarks}", str(entries[-1]["hash"])


def _table(header: Sequence[str], rows: Sequence[Sequence[Html]], client: str | None = None) -> Html:
    head = element("thead", element("tr", *(element("th", name, scope="col") for name in header)))
    body = element("tbody", *(element("tr", *cells) for cells in rows))
    table = element("table", head, body, data_client=client)
    return element("div", table, class_="wide", tabindex=0, role="region", aria_label=f"Table: {', '.join(header)}")
