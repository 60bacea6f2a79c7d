"""The screen: tabs of tables that are read again every two seconds, from samples and bounded searches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, ClassVar

import psycopg
from rich.text import Text
from textual import on, work
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.css.query import NoMatches
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Header, Input, Label, Static, TabbedContent, TabPane

from pgqueue.db import observe, operate
from pgqueue.db.call import Call, perform
from pgqueue.errors import PgQueueError
from pgqueue.logs import one_line, printable
from pgqueue.search import parse

Row = Sequence[object]

# Jobs that are listed.
_MOST = 100

_COLUMNS = {
    "overview": ("severity", "topic", "subject", "evidence", "do"),
    "queues": ("queue", "lag s", "due", "scheduled", "executing", "failed", "blocked", "dead", "paused"),
    "jobs": ("id", "task", "queue", "state", "attempts", "worker", "key", "last error"),
    "workers": ("worker", "alive", "host", "queues", "executing", "lapsed", "last heartbeat"),
    "schedules": ("name", "when", "task", "next", "last outcome", "paused", "error"),
    "limits": ("kind", "of", "executing", "at most", "starts", "waiting"),
}


class Ask(ModalScreen[bool]):
    """Asks before an action that cannot be undone."""

    BINDINGS: ClassVar[list[Any]] = [
        Binding("y", "dismiss(True)", "yes"),
        Binding("n,escape", "dismiss(False)", "no"),
    ]

    def __init__(self, question: str) -> None:
        super().__init__()
        self._question = question

    def compose(self) -> ComposeResult:
        yield Vertical(Label(Text(f"{self._question}\n\ny: yes   n: no")), id="ask")


class Top(App[None]):
    """Connects once, reads every `seconds`, and acts with the role's rights. `dsn`: a DSN."""

    TITLE = "pgqueue top"
    CSS = """
    DataTable { height: 1fr; }
    #said { height: auto; max-height: 6; padding: 0 1; }
    #filter { display: none; }
    #filter.shown { display: block; }
    Ask { align: center middle; }
    #ask { width: auto; max-width: 80; height: auto; border: thick $error; padding: 1 2; background: $surface; }
    """
    BINDINGS: ClassVar[list[Any]] = [
        Binding("slash", "filter", "filter", key_display="/"),
        Binding("e", "explain", "explain"),
        Binding("r", "act('run')", "run now"),
        Binding("t", "act('retry')", "retry"),
        Binding("c", "act('cancel')", "cancel"),
        Binding("p", "pause", "pause/resume"),
        Binding("K", "act('kill')", "kill"),
        Binding("D", "act('delete')", "delete"),
        Binding("q", "quit", "quit"),
    ]

    def __init__(self, dsn: str, seconds: float = 2.0, line: str = "") -> None:
        super().__init__()
        self._dsn = dsn
        self._seconds = seconds
        self._line = line
        self._connection: psycopg.Connection[Any] | None = None
        # As read: a cell may be cut.
        self._shown: dict[str, list[Row]] = {}

    def compose(self) -> ComposeResult:
        yield Header()
        yield Static(id="numbers")
        with TabbedContent(id="tabs"):
            for name in _COLUMNS:
                with TabPane(name.capitalize(), id=name):
                    yield DataTable[Text](id=f"{name}-table", cursor_type="row", zebra_stripes=True)
        yield Input(self._line, placeholder="queue:mail state:failed,dead age:>1h", id="filter")
        yield Static(id="said")
        yield Footer()

    def on_mount(self) -> None:
        """Make the columns, and begin to read."""
        for name, columns in _COLUMNS.items():
            self._table(name).add_columns(*columns)
        self.set_interval(self._seconds, self.refresh_now)
        self.refresh_now()

    def on_unmount(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()

    @on(TabbedContent.TabActivated)
    def refresh_now(self) -> None:
        """Read the tab that is shown."""
        self._read(self._tab(), self._line)

    @on(Input.Submitted, "#filter")
    def search(self, event: Input.Submitted) -> None:
        """Use the filter that was typed."""
        try:
            parse(event.value)
        except PgQueueError as error:
            self._say(str(error))
            return
        self._line = event.value
        self.query_one("#filter").remove_class("shown")
        self.query_one("#tabs", TabbedContent).active = "jobs"
        self._table("jobs").focus()
        self.refresh_now()

    def action_filter(self) -> None:
        """Type a filter."""
        found = self.query_one("#filter", Input)
        found.add_class("shown")
        found.focus()

    def action_explain(self) -> None:
        """Explain why the job under the cursor is not running."""
        if (job_id := self._job()) is not None:
            self._do(operate.explain(job_id), lambda found: f"job {job_id}: {found['reason']}; {found['detail']}")

    def action_pause(self) -> None:
        """Pause the queue or schedule under the cursor, or resume it."""
        tab, row = self._row()
        if tab == "queues" and row:
            call = operate.resume_queue(row[0]) if row[-1] else operate.pause_queue(row[0])
            self._do(call, lambda _: f"queue {row[0]}: {'resumed' if row[-1] else 'paused'}")
        elif tab == "schedules" and row:
            call = operate.resume_schedule(row[0]) if row[5] else operate.pause_schedule(row[0])
            self._do(call, lambda _: f"schedule {row[0]}: {'resumed' if row[5] else 'paused'}")

    def action_act(self, action: str) -> None:
        """Act on the job under the cursor; ask first if that cannot be undone."""
        job_id = self._job()
        if job_id is None:
            return
        call = operate.bulk(action, {"job_ids": [job_id]}, 1)

        def act(is_sure: bool | None) -> None:
            if is_sure:
                self._do(call, lambda chunk: f"{action}: {chunk.changed} job changed")

        if action in ("kill", "delete"):
            self.push_screen(Ask(f"{action} job {job_id}?"), act)
        else:
            act(True)

    @work(thread=True, exclusive=True, group="read")
    def _read(self, tab: str, line: str) -> None:
        try:
            stats = self._perform(observe.stats())
            rows = list(_rows(tab, line, stats, self._perform))
        except (psycopg.Error, PgQueueError) as error:
            self._connection = None
            self._tell(self._say, f"the database cannot be read: {one_line(error)}")
            return
        self._tell(self._show, tab, stats, rows)

    @work(thread=True, group="act")
    def _do(self, call: Call[Any], say: Callable[[Any], str]) -> None:
        try:
            with psycopg.connect(self._dsn, autocommit=True, fallback_application_name="pgqueue top") as connection:
                said = say(perform(connection, call))
        except (psycopg.Error, PgQueueError) as error:
            said = one_line(error)
        self._tell(self._say, said)
        self._tell(self.refresh_now)

    def _tell(self, show: Callable[..., None], *values: Any) -> None:
        # The screen may be gone when a statement ends.
        with suppress(NoMatches, RuntimeError):
            self.call_from_thread(show, *values)

    def _perform(self, call: Call[Any]) -> Any:
        if self._connection is None or self._connection.closed:
            self._connection = psycopg.connect(self._dsn, autocommit=True, fallback_application_name="pgqueue top")
            self._connection.execute("set statement_timeout = '5s'")
        return perform(self._connection, call)

    def _show(self, tab: str, stats: dict[str, Any], rows: list[Row]) -> None:
        total = stats["total"]
        numbers = {"lag s": total["lag"], "due": total.get("due", 0)}
        numbers.update({name: total[name] for name in ("executing", "failed", "blocked", "dead")})
        numbers.update(workers=len(stats["workers"]), counted=str(stats["sampled_at"])[11:19])
        self._static("numbers").update(Text("   ".join(f"{name} {value}" for name, value in numbers.items())))
        table = self._table(tab)
        self._shown[tab] = rows
        at = table.cursor_row
        table.clear()
        for row in rows:
            # Never as markup: names come from users.
            table.add_row(*(Text(_short(each)) for each in row))
        if rows:
            table.move_cursor(row=min(at, len(rows) - 1))

    def _say(self, text: str) -> None:
        self._static("said").update(Text(printable(text)))

    # On the first screen: a question may stand before it.

    def _static(self, name: str) -> Static:
        return self.screen_stack[0].query_one(f"#{name}", Static)

    def _table(self, name: str) -> DataTable[Text]:
        return self.screen_stack[0].query_one(f"#{name}-table", DataTable)

    def _tab(self) -> str:
        return self.screen_stack[0].query_one("#tabs", TabbedContent).active or "overview"

    def _row(self) -> tuple[str, list[str]]:
        tab = self._tab()
        rows, at = self._shown.get(tab, []), self._table(tab).cursor_row
        return tab, ["" if each is None else str(each) for each in rows[at]] if at < len(rows) else []

    def _job(self) -> int | None:
        tab, row = self._row()
        return int(row[0]) if tab == "jobs" and row else None


def _rows(tab: str, line: str, stats: dict[str, Any], ask: Callable[[Call[Any]], Any]) -> Iterable[Row]:
    match tab:
        case "queues":
            for each in sorted(stats["queues"], key=lambda queue: -queue["lag"]):
                numbers = [each[name] for name in ("lag", "due", "scheduled", "executing", "failed", "blocked", "dead")]
                yield (each["queue"], *numbers, (each["paused_at"] or "")[:19])
        case "jobs":
            for each in ask(observe.jobs(ask(observe.search(parse(line), None, _MOST)).ids)):
                error = ": ".join(filter(None, (each["error_class"], each["error"])))
                names = ("id", "task", "queue", "state", "attempts", "reserved_by", "key")
                yield (*(each[name] for name in names), error)
        case "workers":
            for each in ask(observe.workers()):
                info = each["info"] if isinstance(each["info"], dict) else {}
                served = ", ".join(each["queues"] or ["all"])
                yield (
                    each["worker"],
                    "yes" if each["is_alive"] else "NO",
                    info.get("host"),
                    served,
                    each["executing"],
                    each["lapsed"],
                    (each["last_heartbeat_at"] or "never")[:19],
                )
        case "schedules":
            for each in ask(observe.schedules()):
                when = each["expression"] or f"every {each['every']}"
                paused = (each["paused_at"] or "")[:19]
                yield (each["name"], when, each["task"], each["next_at"], each["last_outcome"], paused, each["error"])
        case "limits":
            for each in stats["limits"]:
                starts = f"{each['rate']} per {each['per']}" if each["rate"] else None
                yield (each["kind"], each["target"], each["executing"], each["max_executing"], starts, each["parked"])
        case _:
            for each in ask(observe.doctor()):
                yield tuple(each[name] for name in ("severity", "topic", "subject", "evidence", "remedy"))


def _short(value: object) -> str:
    text = printable(" ".join(str("" if value is None else value).split()))
    return text if len(text) <= 80 else text[:79] + "…"
