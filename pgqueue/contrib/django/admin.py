"""The queue in Django's admin: read-only, except for actions through the queue's own functions. It counts no rows."""

from __future__ import annotations

import json
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.views.main import ChangeList
from django.core.paginator import Paginator
from django.db import connections, transaction
from django.http import HttpRequest

from pgqueue._redaction import REDACT, redacted
from pgqueue.contrib.django.models import Job, Limit, Queue, Schedule, Worker
from pgqueue.contrib.django.schema import aliases
from pgqueue.db import drivers, operate
from pgqueue.errors import PgQueueError

# Jobs of a page, and the pages that it can be turned to: older ones are found by the filters, and by `before=ID`.
_PAGE = 50
_PAGES = 20

_STATES = ("waiting", "executing", "failed", "blocked", "succeeded", "dead", "cancelled")


class CountlessPaginator(Paginator):
    """Reads one row more than it shows to learn whether there is another page, and never counts the rows of history."""

    @property
    def count(self) -> int:
        """The number of rows that the pages can show, or of all rows if they are fewer."""
        most = self.per_page * _PAGES
        if not hasattr(self, "_count"):
            self._count = len(self.object_list.values_list("pk", flat=True)[:most])
        return int(self._count)


class JobChangeList(ChangeList):
    """Continues by the id of the last row: `before=ID`."""

    def __init__(self, request: HttpRequest, *args: Any, **kwargs: Any) -> None:
        self.before = request.GET.get("before", "")
        super().__init__(request, *args, **kwargs)

    def get_filters_params(self, params: Any = None) -> Any:
        """Return the filters, without our own parameter."""
        found = super().get_filters_params(params)
        found.pop("before", None)
        return found

    def get_queryset(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        """Return the jobs older than `before`."""
        found = super().get_queryset(request, *args, **kwargs)
        is_id = self.before.isascii() and self.before.isdigit() and len(self.before) <= 18
        return found.filter(pk__lt=int(self.before)) if is_id else found


class ReadOnly(admin.ModelAdmin):
    """Shows rows and changes none."""

    show_full_result_count = False
    # Counts beside the filters, from Django 5 on.
    show_facets = getattr(getattr(admin, "ShowFacets", None), "NEVER", None)
    paginator = CountlessPaginator
    list_per_page = _PAGE
    actions: Any = None

    def get_queryset(self, request: HttpRequest) -> Any:
        """Read the database that the queue is in."""
        return super().get_queryset(request).using(_database())

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Nothing is added here."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Nothing is changed here."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Nothing is deleted here, except by an action."""
        return False


class StateFilter(admin.SimpleListFilter):
    """The states, without querying the table for them."""

    title = "state"
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Return the choices."""
        return [(state, state) for state in _STATES]

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        """Return the jobs of a state."""
        return queryset.filter(state=self.value()) if self.value() in _STATES else queryset


_ACROSS = (
    "Nothing was done: actions here are on the jobs that you select on a page. For all that match there is the command"
    " line, such as: pgqueue jobs cancel --where 'task:shop.tasks.receipt state:waiting'"
)


def _action(name: str, done: str) -> Any:
    @admin.action(description=f"{name.replace('_', ' ').capitalize()} selected jobs", permissions=["operate"])
    def act(model_admin: JobAdmin, request: HttpRequest, jobs: Any) -> None:
        # Those of the page: of all that match, Django would hand over more than the list has ever shown.
        if request.POST.get("select_across", "0") != "0":
            model_admin.message_user(request, _ACROSS, messages.ERROR)
            return
        model_admin.act(request, name, done, list(jobs.values_list("pk", flat=True)))

    act.__name__ = f"{name}_selected"
    return act


@admin.register(Job)
class JobAdmin(ReadOnly):
    """Jobs, newest first, with actions through the queue's functions."""

    list_display = ("id", "task", "queue", "state", "attempts", "key", "created_at", "finished_at", "reserved_by")
    list_filter = (StateFilter,)
    search_fields = ("=id", "=task", "=queue", "=key")
    ordering = ("-id",)
    sortable_by = ()
    # It offers to select all that match, beside the number of those that are selected.
    actions_selection_counter = False
    # Patterns of the names of fields whose values are not shown.
    redact = REDACT
    exclude = ("args", "headers", "result")
    readonly_fields = ("shown_args", "shown_headers", "shown_result")
    actions = [
        _action("run_now", "will run now"),
        _action("retry", "will be retried"),
        _action("cancel", "cancelled"),
        _action("kill", "killed"),
        _action("delete", "deleted"),
    ]

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> Any:
        """Return the list that continues by ids."""
        return JobChangeList

    def has_operate_permission(self, request: HttpRequest) -> bool:
        """Whether the user may act on jobs."""
        return bool(request.user.has_perm("pgqueue.operate"))

    @admin.display(description="args")
    def shown_args(self, job: Job) -> str:
        """Return its arguments, without what is hidden."""
        return self._shown(job.args)

    @admin.display(description="headers")
    def shown_headers(self, job: Job) -> str:
        """Return its headers, without what is hidden."""
        return self._shown(job.headers)

    @admin.display(description="result")
    def shown_result(self, job: Job) -> str:
        """Return its result, without what is hidden."""
        return self._shown(job.result)

    def _shown(self, value: Any) -> str:
        return "" if value is None else json.dumps(redacted(value, self.redact), ensure_ascii=False)

    def act(self, request: HttpRequest, name: str, done: str, ids: list[int]) -> None:
        """Act on jobs, log that in the admin, and report how many were changed."""
        # They may have left the list since the page was shown.
        if not ids:
            self.message_user(request, "None of these jobs is in the list any more", messages.WARNING)
            return
        jobs = list(self.get_queryset(request).only("task").filter(pk__in=ids))
        try:
            changed = self._change(request, name, ids)
        except PgQueueError as error:
            self.message_user(request, str(error), messages.ERROR)
            return
        kept = set(self.get_queryset(request).filter(pk__in=ids).values_list("pk", flat=True))
        for job in jobs:
            if name != "delete" or job.pk not in kept:
                self.log_change(request, job, name.replace("_", " "))
        level = messages.SUCCESS if changed == len(ids) else messages.WARNING
        left = len(ids) - changed
        self.message_user(request, f"{changed} {done}" + (f", {left} left as they were" if left else ""), level)

    def _change(self, request: HttpRequest, name: str, ids: list[int]) -> int:
        call = operate.bulk(name.replace("_now", ""), {"job_ids": ids}, len(ids))
        connection = connections[_database()]
        with transaction.atomic(using=_database()):
            with connection.cursor() as cursor:
                # Until the end of this transaction: the actor in pgqueue.audit.
                cursor.execute("select set_config('pgqueue.actor', %s, true)", [request.user.get_username()])
            chunk: Any = drivers.run(connection, call)
        return int(chunk.changed)


@admin.register(Queue)
class QueueAdmin(ReadOnly):
    """Queues that have options."""

    list_display = ("name", "priority", "weight")


@admin.register(Schedule)
class ScheduleAdmin(ReadOnly):
    """Schedules."""

    list_display = ("name", "task", "expression", "every", "paused_at", "next_at", "last_at", "last_outcome")


@admin.register(Limit)
class LimitAdmin(ReadOnly):
    """Limits."""

    list_display = ("kind", "target", "max_executing", "rate", "per", "max_cost", "burst")
    list_display_links = None

    def get_object(self, *_: Any) -> None:
        """Return none: limits of several kinds may have one target. The list shows all of each."""


@admin.register(Worker)
class WorkerAdmin(ReadOnly):
    """Registered workers."""

    list_display = ("worker", "queues", "is_alive", "executing", "started_at", "last_heartbeat_at")


def _database() -> str:
    return next(iter(aliases()), "default")
