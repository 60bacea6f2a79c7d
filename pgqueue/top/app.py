"""The screen: tabs of tables that are read again every two seconds, from samples and bounded searches."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar, TypeVar

import psycopg
from rich.text import Text
from textual import on, work
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.css.query import NoMatches
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Header, Input, Label, Static, TabbedContent, TabPane

from pgqueue import verdict
from pgqueue._filters import ORDERS, parse
from pgqueue.db import limits, observe, operate
from pgqueue.db.call import Call, perform
from pgqueue.errors import PgQueueError
from pgqueue.logs import one_line, printable
from pgqueue.top.rows import COLUMNS, STATES, Row, alive_of, identity, overview, rows_of, seconds, short

T = TypeVar("T")

# Lines of evidence and command below the tables, of 24: five are left for rows. A command may take more.
_REMEDY = 9

# What became of one job, by how many were changed.
_DONE = ("not changed: it is in another state, or locked", "changed")

# From good to bad.
_LEVELS = ("ok", "late", "critical")


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
    """Connects once to each database, reads every `seconds`, and does what the role may.

    `dsns`: DSNs by the names to show; of several databases each row begins with its name. One that cannot be read is
    reported, and the others are shown.
    """

    TITLE = "pgqueue top"
    CSS = """
    TabbedContent, TabPane, DataTable { height: 1fr; }
    TabPane { padding: 0; }
    #said, #remedy { height: auto; max-height: 6; padding: 0 1; }
    #remedy { max-height: 14; }
    #verdict { height: auto; max-height: 2; padding: 0 1; text-style: bold; }
    #verdict.late { color: $warning; }
    #verdict.critical { color: $error; }
    #remedy, #verdict { display: none; }
    #remedy.shown, #verdict.shown { display: block; }
    #filter { display: none; }
    #filter.shown { display: block; }
    Ask { align: center middle; }
    #ask { width: auto; max-width: 80; height: auto; border: thick $error; padding: 1 2; background: $surface; }
    """
    BINDINGS: ClassVar[list[Any]] = [
        Binding("slash", "filter", "filter", key_display="/"),
        Binding("o", "order", "order"),
        Binding("e", "explain", "explain"),
        Binding("r", "act('run')", "run now"),
        Binding("t", "act('retry')", "retry"),
        Binding("c", "act('cancel')", "cancel"),
        Binding("p", "pause", "pause/resume"),
        Binding("S", "stop", "stop worker"),
        Binding("K", "act('kill')", "kill"),
        Binding("D", "act('delete')", "delete"),
        Binding("q", "quit", "quit"),
    ]

    def __init__(self, dsns: Mapping[str, str], seconds: float = 2.0, line: str = "") -> None:
        super().__init__()
        self._dsns = dict(dsns)
        self._first = next(iter(self._dsns))
        self._seconds = seconds
        self._line = line
        self._order = ORDERS[0]
        self._connections: dict[str, psycopg.Connection[Any]] = {}
        self._answers: dict[tuple[str, str], tuple[float, Any]] = {}
        # As read: a cell may be cut. With the name of the database.
        self._shown: dict[str, list[tuple[str, Row]]] = {}
        # By tab, what was under the cursor and is listed no more, and the row where the cursor stands instead.
        self._gone: dict[str, tuple[str, int]] = {}

    def compose(self) -> ComposeResult:
        yield Header()
        yield Static(id="numbers")
        yield Static(id="verdict")
        with TabbedContent(id="tabs"):
            for name in COLUMNS:
                with TabPane(name.capitalize(), id=name):
                    yield DataTable[Text](id=f"{name}-table", cursor_type="row", zebra_stripes=True)
        yield Input(self._line, placeholder="queue:mail state:failed,dead age:>1h", id="filter")
        yield Static(id="remedy")
        yield Static(id="said")
        yield Footer()

    def on_mount(self) -> None:
        """Make the columns, and begin to read."""
        for name, columns in COLUMNS.items():
            self._table(name).add_columns(*(("database",) if len(self._dsns) > 1 else ()), *columns)
        self.set_interval(self._seconds, self.refresh_now)
        self.refresh_now()

    def on_unmount(self) -> None:
        """Close the connections."""
        # A copy: a thread may be adding one.
        for connection in list(self._connections.values()):
            connection.close()

    @on(TabbedContent.TabActivated)
    def refresh_now(self) -> None:
        """Read the tab that is shown."""
        # The clock goes on when the screen has ended.
        if self.screen_stack:
            self._read(self._tab(), self._line, self._order)

    @on(Input.Submitted, "#filter")
    def search(self, event: Input.Submitted) -> None:
        """Use the filter that was typed."""
        try:
            parse(event.value)
        except PgQueueError as error:
            self._say(str(error))
            return
        self._line = event.value
        self._shown.pop("jobs", None)
        self.query_one("#filter").remove_class("shown")
        self.query_one("#tabs", TabbedContent).active = "jobs"
        self._table("jobs").focus()
        self.refresh_now()

    @on(DataTable.RowHighlighted, "#overview-table")
    def show_remedy(self) -> None:
        """Show the evidence and the command of the row under the cursor whole: a cell may be cut."""
        # A message may come when the screen has ended.
        if not self.screen_stack:
            return
        tab, _, row = self._row()
        remedy = self._static("remedy")
        remedy.set_class(tab == "overview" and bool(row), "shown")
        if tab == "overview" and row:
            *_, cause, evidence, do = row
            # A finding has no counts.
            of = row[2] if row[3] else cause
            told, ways = printable(f"{of}: {evidence or cause}"), printable(f"do: {do}" if do else "")
            wide = max(self.size.width - 2, 20)
            # The command is whole, and the evidence has the lines that are left.
            left = max(_REMEDY - len(Text(ways).wrap(self.console, wide)) * bool(ways), 2)
            lines = [line.plain.rstrip() for line in Text(told).wrap(self.console, wide)]
            if len(lines) > left:
                lines[left - 1 :] = [f"{lines[left - 1][: wide - 2]} …"]
            remedy.update(Text("\n".join(filter(None, (*lines, ways)))))

    def on_resize(self) -> None:
        """Wrap it anew."""
        # The first one comes before there is a screen.
        with suppress(NoMatches, IndexError):
            self.show_remedy()

    @on(TabbedContent.TabActivated)
    def hide_remedy(self) -> None:
        """Leave the remedy and the verdict to the first tab."""
        self.show_remedy()
        self._static("verdict").set_class(self._tab() == "overview", "shown")

    def action_filter(self) -> None:
        """Type a filter."""
        found = self.query_one("#filter", Input)
        found.add_class("shown")
        found.focus()

    def action_order(self) -> None:
        """List the jobs in the next order: newest first, due first, oldest first."""
        self._shown.pop("jobs", None)
        self._order = ORDERS[(ORDERS.index(self._order) + 1) % len(ORDERS)]
        only = ": waiting and failed ones" if self._order == "due" else ""
        self._say(f"jobs: {self._order} first{only}")
        self.query_one("#tabs", TabbedContent).active = "jobs"
        self.refresh_now()

    def action_explain(self) -> None:
        """Say why the job under the cursor is not running."""
        tab, database, row = self._row()
        if tab == "jobs" and row:
            job_id = int(row[0])
            self._do(
                database, operate.explain(job_id), lambda found: f"job {job_id}: {found['reason']}; {found['detail']}"
            )

    def action_pause(self) -> None:
        """Pause the queue, schedule, worker, task or limit_key under the cursor, or resume it."""
        tab, database, row = self._chosen()
        if tab == "queues" and row:
            call = limits.resume_queue(row[0]) if row[-1] else limits.pause_queue(row[0])
            self._do(database, call, lambda _: f"queue {row[0]}: {'resumed' if row[-1] else 'paused'}")
        elif tab == "schedules" and row:
            call = operate.resume_schedule(row[0]) if row[5] else operate.pause_schedule(row[0])
            self._do(database, call, lambda _: f"schedule {row[0]}: {'resumed' if row[5] else 'paused'}")
        elif tab == "limits" and row and row[0] != "key":
            kind, target, source = row[0], row[1], row[-1].split(" ")[0]
            call = limits.resume(kind, target, source) if source else limits.pause(kind, target, None, None)
            self._do(database, call, lambda _: f"{kind} {target}: {'resumed' if source else 'paused'}")
        elif tab == "workers" and row:
            call = operate.resume_worker(row[0]) if row[2] == "quiet" else operate.quiet_worker(row[0])
            asked = "resume" if row[2] == "quiet" else "be quiet"
            self._do(database, call, lambda done: f"worker {row[0]}: {_asked(done, asked)}")

    def action_stop(self) -> None:
        """Stop the worker under the cursor; ask first."""
        tab, database, row = self._chosen()
        if tab != "workers" or not row:
            return

        def stop(is_sure: bool | None) -> None:
            if is_sure:
                call = operate.stop_worker(row[0])
                self._do(database, call, lambda done: f"worker {row[0]}: {_asked(done, 'stop')}")

        self.push_screen(Ask(f"stop worker {row[0]}? What supervises it may start another."), stop)

    def action_act(self, action: str) -> None:
        """Act on the job under the cursor; ask first where that cannot be undone."""
        tab, database, row = self._chosen()
        if tab != "jobs" or not row:
            return
        job_id, task = int(row[0]), row[1]
        call = operate.bulk(action, {"job_ids": [job_id]}, 1)

        def act(is_sure: bool | None) -> None:
            if is_sure:
                self._do(database, call, lambda chunk: f"{action} job {job_id}: {_DONE[chunk.changed]}")

        if action in ("cancel", "kill", "delete"):
            self.push_screen(Ask(f"{action} job {job_id} of {printable(task)}?"), act)
        else:
            act(True)

    @work(thread=True, exclusive=True, group="read")
    def _read(self, tab: str, line: str, order: str) -> None:
        stats: list[dict[str, Any]] = []
        rows: list[tuple[str, Row]] = []
        reached = verdict.Verdict("ok")
        trouble: list[str] = []
        for name in self._dsns:
            ask = partial(self._perform, name)
            try:
                stats.append(ask(observe.stats()))
                if tab == "overview":
                    queues = [each for each in stats[-1]["queues"] if not each["queue"].startswith("@")]
                    causes = self._shared(name, 10.0, observe.why_late)
                    late = verdict.still_late(causes, queues)
                    findings = self._shared(name, 60.0, observe.doctor)
                    rows += [(name, row) for row in overview(queues, late, findings)]
                    found = verdict.reach(late, findings, queues, len(verdict.living(stats[-1])))
                    # The worst of several databases.
                    reached = max(reached, found, key=lambda each: (_LEVELS.index(each.level), each.lag))
                else:
                    rows += [(name, row) for row in rows_of(tab, line, order, stats[-1], ask)]
            except (psycopg.Error, PgQueueError) as error:
                self._connections.pop(name, None)
                trouble.append(f"{name} cannot be read: {one_line(error)}")
                if len(self._dsns) == 1:
                    self._tell(self._say, f"the database cannot be read: {one_line(error)}")
        if stats:
            if tab == "overview":
                self._tell(self._show_verdict, reached)
            self._tell(self._show, tab, stats, rows, trouble)
        elif len(self._dsns) > 1:
            self._tell(self._say, "; ".join(trouble))

    @work(thread=True, group="act")
    def _do(self, database: str, call: Call[Any], say: Callable[[Any], str]) -> None:
        try:
            with self._connect(database) as connection:
                said = say(perform(connection, call))
        except (psycopg.Error, PgQueueError) as error:
            said = one_line(error)
        self._answers.clear()
        self._tell(self._say, said)
        self._tell(self.refresh_now)

    def _tell(self, show: Callable[..., None], *values: Any) -> None:
        # The screen may be gone when a statement ends.
        with suppress(NoMatches, IndexError, RuntimeError):
            self.call_from_thread(show, *values)

    def _perform(self, database: str, call: Call[Any]) -> Any:
        connection = self._connections.get(database)
        if connection is None or connection.closed:
            connection = self._connections[database] = self._connect(database)
            connection.execute("set statement_timeout = '5s'")
        return perform(connection, call)

    def _shared(self, database: str, seconds: float, call: Callable[[], Call[T]]) -> T:
        """Read what costs more less often, as the pages do."""
        found = self._answers.get((database, call.__name__))
        if found is None or time.monotonic() >= found[0] + seconds:
            found = self._answers[database, call.__name__] = (time.monotonic(), self._perform(database, call()))
        answer: T = found[1]
        return answer

    def _connect(self, database: str) -> psycopg.Connection[Any]:
        # The other databases must not wait long for one that does not answer.
        wait: dict[str, Any] = {"connect_timeout": 5} if len(self._dsns) > 1 else {}
        return psycopg.connect(self._dsns[database], autocommit=True, fallback_application_name="pgqueue top", **wait)

    def _show_verdict(self, reached: verdict.Verdict) -> None:
        late = f"{reached.queue} is {seconds(reached.lag)} late: " if reached.queue else ""
        if self._tab() != "overview":
            return
        shown = self._static("verdict")
        shown.update(Text(printable(f"{late}{reached.words}." if reached.words else "Everything is on time.")))
        shown.set_classes(f"shown {reached.level}")

    def _show(self, tab: str, stats: list[dict[str, Any]], rows: list[tuple[str, Row]], trouble: list[str]) -> None:
        totals = [each["total"] for each in stats]
        whole: dict[str, Any] = {
            # What stands for one of them stands for all.
            **{
                name: next((each[name] for each in totals if each.get(name)), None)
                for name in ("counted_at", "ready_counted_at", "counted_to")
            },
            **{name: sum(total.get(name, 0) for total in totals) for name in STATES},
        }
        numbers = {"lag s": max(total["lag"] for total in totals)}
        numbers.update({name: observe.counted(whole, name) for name in STATES})
        numbers.update(
            workers=alive_of(stats),
            counted=str(stats[0]["sampled_at"] or stats[0]["at"])[11:19],
        )
        if whole["counted_at"]:
            numbers["~ since"] = str(whole["counted_at"])[11:19]
        if len(self._dsns) > 1:
            numbers["databases"] = f"{len(stats)} of {len(self._dsns)}"
        shown = "   ".join(f"{name} {value}" for name, value in numbers.items())
        # Not in the line of the answers to keys.
        self._static("numbers").update(Text("\n".join([shown, *map(printable, trouble)])))
        table = self._table(tab)
        before, at = self._shown.get(tab, []), table.cursor_row
        held = _about(tab, before[at]) if at < len(before) else None
        self._shown[tab] = rows
        table.clear()
        for name, row in rows:
            # Never as markup: names come from users.
            place = (name,) if len(self._dsns) > 1 else ()
            table.add_row(*(Text(short(each)) for each in (*place, *row)))
        # What is under the cursor stays there, wherever its row is now.
        now = [_about(tab, each) for each in rows]
        to = now.index(held) if held in now else min(at, max(len(rows) - 1, 0))
        gone, stood = self._gone.pop(tab, ("", at))
        gone = gone if stood == at else ""
        if held is not None and held not in now:
            gone = gone or _named(tab, before[at][1])
        if gone:
            self._gone[tab] = gone, to
        if rows:
            table.move_cursor(row=to)

    def _say(self, text: str) -> None:
        self._static("said").update(Text(printable(text)))

    # On the first screen: a question may stand before it.

    def _static(self, name: str) -> Static:
        return self.screen_stack[0].query_one(f"#{name}", Static)

    def _table(self, name: str) -> DataTable[Text]:
        return self.screen_stack[0].query_one(f"#{name}-table", DataTable)

    def _tab(self) -> str:
        return self.screen_stack[0].query_one("#tabs", TabbedContent).active or "overview"

    def _row(self) -> tuple[str, str, list[str]]:
        """Return the tab, and of the row under the cursor its database and its cells."""
        tab = self._tab()
        rows, at = self._shown.get(tab, []), self._table(tab).cursor_row
        if at >= len(rows):
            return tab, self._first, []
        database, row = rows[at]
        # A row without a name says that there are more.
        is_one = tab == "overview" or row[0]
        return tab, database, ["" if each is None else str(each) for each in row] if is_one else []

    def _chosen(self) -> tuple[str, str, list[str]]:
        """Return the row to act on; an empty one, once, if another one is under the cursor than was chosen."""
        tab, database, row = self._row()
        gone, stood = self._gone.pop(tab, ("", -1))
        if not gone or not row or stood != self._table(tab).cursor_row:
            return tab, database, row
        self._say(f"{gone} is listed no more, nothing was done; {_named(tab, row)} is under the cursor now")
        return tab, database, []


def _about(tab: str, of: tuple[str, Row]) -> tuple[object, ...]:
    database, row = of
    return (database, *identity(tab, row))


def _named(tab: str, row: Row) -> str:
    return f"{row[0]} {row[1]}" if tab == "limits" else f"{tab.removesuffix('s')} {row[0]}"


def _asked(done: bool, what: str) -> str:
    return f"asked to {what}" if done else f"not asked to {what}: it is gone, or was asked already"
