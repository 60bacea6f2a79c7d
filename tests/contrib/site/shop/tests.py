"""What Django asks of a backend for its tasks, and what this one adds."""

import copy
import json
import os
import re
import signal
import subprocess
import sys
import threading
from datetime import date, timedelta
from decimal import Decimal
from io import StringIO
from pathlib import Path
from types import ModuleType
from unittest import mock

import psycopg
from django.apps import apps
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.core import checks
from django.core.management import CommandError, call_command
from django.core.management.base import SystemCheckError
from django.db import connection, connections, transaction
from django.db.backends.postgresql.psycopg_any import is_psycopg3
from django.test import TestCase, TransactionTestCase, override_settings
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

import pgqueue
from pgqueue import testing
from pgqueue.contrib.django import (
    Backend,
    PgqueueTask,
    assert_enqueued,
    drain,
    enqueued,
    make_app,
    refute_enqueued,
)
from pgqueue.contrib.django import task as pgqueue_task
from pgqueue.contrib.django.api import TaskResultDoesNotExist, TaskResultStatus, signals
from pgqueue.contrib.django.apps import check_schema
from pgqueue.contrib.django.connections import clean_connections, dsn_of
from pgqueue.contrib.django.handlers import declared
from pgqueue.errors import ConfigError, InvalidArgument
from pgqueue.worker import Worker
from shop import tasks
from shop.models import Order

try:
    from django.tasks import default_task_backend, task_backends
    from django.tasks.exceptions import InvalidTask
except ImportError:
    from django_tasks import default_task_backend, task_backends
    from django_tasks.exceptions import InvalidTaskError as InvalidTask

LOGGER = Backend.__mro__[1].__module__.partition(".backends")[0]


class EnqueueTest(TestCase):
    def setUp(self):
        tasks.seen.clear()

    def test_the_backend_is_ours_and_can_do_everything(self):
        self.assertEqual(default_task_backend, task_backends["default"])
        self.assertIsInstance(task_backends["default"], Backend)
        for what in ("defer", "async_task", "get_result", "priority"):
            self.assertIs(getattr(default_task_backend, f"supports_{what}"), True)
        self.assertIsInstance(tasks.noop, PgqueueTask)

    def test_a_task_is_ready_and_then_successful(self):
        for task in (tasks.noop, tasks.noop_async):
            with self.subTest(task):
                result = task.enqueue(1, two=3)
                self.assertEqual(result.status, TaskResultStatus.READY)
                self.assertIs(result.is_finished, False)
                self.assertIsNone(result.started_at)
                self.assertEqual((result.args, result.kwargs, result.attempts), ([1], {"two": 3}, 0))
                self.assertLessEqual(len(result.id), 64)
                self.assertEqual(default_task_backend.get_result(result.id).status, TaskResultStatus.READY)
                self.assertEqual(drain().succeeded, 1)
                result.refresh()
                self.assertEqual(result.status, TaskResultStatus.SUCCESSFUL)
                self.assertIs(result.is_finished, True)
                self.assertGreaterEqual(result.started_at, result.enqueued_at)
                self.assertGreaterEqual(result.finished_at, result.started_at)
                self.assertIsNone(result.return_value)
                self.assertEqual(result.task, task)
                self.assertEqual(result.attempts, 1)
        self.assertEqual(tasks.seen, [((1,), {"two": 3})] * 2)

    def test_the_times_of_a_result_are_read_in_any_style_of_the_session(self):
        with connection.cursor() as cursor:
            cursor.execute("set local datestyle = 'German, DMY'")
        result = tasks.noop.enqueue()
        self.assertEqual(drain().succeeded, 1)
        result.refresh()
        self.assertGreaterEqual(result.finished_at, result.started_at)
        self.assertGreaterEqual(result.started_at, result.enqueued_at)
        with override_settings(USE_TZ=False):
            naive = default_task_backend.get_result(result.id)
        self.assertEqual(naive.finished_at, timezone.make_naive(result.finished_at, timezone.get_default_timezone()))

    async def test_a_task_is_enqueued_on_the_event_loop(self):
        result = await tasks.noop.aenqueue(1)
        self.assertEqual((await default_task_backend.aget_result(result.id)).status, TaskResultStatus.READY)

    def test_the_orm_of_a_handler_sees_what_the_test_has_written(self):
        Order.objects.create(email="a@b.c")
        result = tasks.count_orders.enqueue()
        self.assertEqual(drain("mail").succeeded, 1)
        result.refresh()
        self.assertEqual(result.return_value, 1)
        self.assertEqual((result.task.priority, result.task.queue_name), (50, "mail"))

    def test_the_async_orm_of_an_async_handler_too(self):
        result = tasks.add_order.enqueue("a@b.c")
        self.assertEqual(drain().succeeded, 1)
        result.refresh()
        self.assertEqual(result.return_value, Order.objects.get().pk)

    def test_arguments_are_json(self):
        self.assertEqual(tasks.noop.enqueue((1, 2), at={"k": b"bytes"}).args, [[1, 2]])
        with self.assertRaises(TypeError):
            tasks.noop.enqueue(object())

    def test_arguments_that_the_function_does_not_take_are_refused(self):
        for call, message, hint in (
            (lambda: tasks.receipt.enqueue(), "missing a required argument: 'order_id'", "give the arguments that"),
            (lambda: tasks.receipt.enqueue(1, nobody=2), "unexpected keyword argument 'nobody'", "give the arguments"),
            (lambda: tasks.receipt.enqueue(1, delay=60), "argument 'delay'", "receipt.using(delay=...).enqueue(...)"),
            (lambda: tasks.receipt.enqueue(1, queue_name="q"), "'queue_name'", ".using(queue_name=...).enqueue(...)"),
            (lambda: tasks.due.enqueue(date(2026, 11, 1), key="k"), "'key'", "due.using(key=...).enqueue(...)"),
            (lambda: tasks.context.enqueue(), "missing a required argument: 'n'", "give the arguments that"),
            (lambda: tasks.count_orders.enqueue(1), "too many positional arguments", "give the arguments that"),
        ):
            with self.subTest(message), self.assertRaises(InvalidArgument) as raised:
                call()
            self.assertIn(message, raised.exception.message)
            self.assertIn(hint, raised.exception.hint)
        self.assertEqual(drain(["default", "mail"]).ids, [])

    def test_a_connection_is_refused_with_the_way_out(self):
        for task, args, named in (
            (tasks.receipt, [connection, 1], {}),
            (tasks.receipt, [connections["default"], 1], {}),
            (tasks.receipt, [connection.connection, 1], {}),
            (tasks.noop, [], {"connection": connection}),
        ):
            with self.subTest(args), self.assertRaisesMessage(InvalidArgument, "takes no connection") as raised:
                task.enqueue(*args, **named)
            self.assertIn(f"leave the connection out: {task.module_path}.enqueue(...)", raised.exception.hint)

    def test_the_names_of_other_queues_are_answered_with_the_way_out(self):
        for task in (tasks.noop, tasks.receipt, tasks.receipt.using(delay=60)):
            for name in ("delay", "apply_async", "delay_on_commit"):
                with self.subTest(name), self.assertRaises(AttributeError) as raised:
                    getattr(task, name)(1)
                self.assertIn(f"a task has no {name}()", str(raised.exception))
                self.assertIn(f"{task.name}.using(delay=60).enqueue(...)", str(raised.exception))
        for name in ("s", "si", "signature"):
            with self.assertRaisesMessage(
                AttributeError, f"a task has no {name}(): enqueue it, and what runs after it"
            ):
                getattr(tasks.noop, name)
        with self.assertRaisesMessage(AttributeError, "'PgqueueTask' object has no attribute 'nonsense'"):
            _ = tasks.noop.nonsense

    def test_an_option_that_is_none_is_refused_with_the_one_that_was_meant(self):
        for option, says in (
            ("countdown", "a job has no option 'countdown': here it is delay"),
            ("eta", "a job has no option 'eta': here it is run_after"),
            ("queue", "a job has no option 'queue': here it is queue_name"),
            ("expires", "a job has no option 'expires': here it is expires_in"),
            ("max_retries", "here it is max_attempts, which counts the first attempt, too"),
            ("task_id", "give dedupe a text of your own"),
            ("kay", "did you mean key?"),
            ("retry", "retry is an option of the task and not of one job: give it to @task(...)"),
        ):
            with self.subTest(option), self.assertRaises(TypeError) as raised:
                tasks.receipt.using(**{option: 60})
            self.assertIn(says, str(raised.exception))
        for option, says in (
            ("max_retries", "a task has no option 'max_retries': here it is max_attempts, which counts the first"),
            ("queue", "a task has no option 'queue': here it is queue_name"),
            ("countdown", "a task has no option 'countdown': here it is delay"),
            ("eta", "it is an option of a job, as in task.using(run_after=...).enqueue(...)"),
            ("bind", "give takes_context=True, and the function receives a context first"),
            ("ignore_result", "retention_succeeded=0 keeps no succeeded job"),
            ("autoretry_for", "every exception is retried, except those that discard_on names"),
            ("rate_limit", "set_limit() sets it: pgqueue limits set"),
        ):
            with self.subTest(option), self.assertRaises(TypeError) as raised:
                pgqueue_task(**{option: 3})(tasks.undeclared)
            self.assertIn(says, str(raised.exception))
            # The way of Django's own decorator, which hands over what it does not know itself.
            with self.subTest(option), self.assertRaises(TypeError) as raised:
                PgqueueTask(func=tasks.undeclared, **{option: 3})
            self.assertIn(says, str(raised.exception))
        with self.assertRaisesMessage(InvalidArgument, "'eta'") as raised:
            tasks.receipt.enqueue(1, eta=timezone.now())
        self.assertIn("receipt.using(run_after=...).enqueue(...)", raised.exception.hint)

    def test_enqueued_tasks_are_found_by_the_arguments_as_people_write_them(self):
        tasks.receipt.using(delay=60).enqueue(1, copies=2)
        for args in (
            {"order_id": 1},
            {"order_id": 1, "copies": 2},
            [1],
            [1, 2],
            {"args": [1], "kwargs": {"copies": 2}},
        ):
            with self.subTest(args=args):
                found = assert_enqueued(tasks.receipt, args=args, delay=60)
                self.assertEqual(found.args, {"order_id": 1, "copies": 2})
                self.assertEqual(assert_enqueued(tasks.receipt.module_path, args=args), found)
                self.assertEqual(testing.assert_enqueued(connection, tasks.receipt, args=args), found)
        for args in ({"order_id": 2}, [2], [1, 3]):
            refute_enqueued(tasks.receipt, args=args)
        with self.assertRaises(AssertionError) as raised:
            assert_enqueued(tasks.receipt, args=[2])
        self.assertIn("no job fits: shop.tasks.receipt, args=[2]\n", str(raised.exception))
        self.assertIn("\n  args['order_id'] is 1, not 2\n", str(raised.exception))
        self.assertIn(": shop.tasks.receipt {'order_id': 1, 'copies': 2} (queue=", str(raised.exception))
        with self.assertRaisesMessage(InvalidArgument, "too many positional arguments"):
            assert_enqueued(tasks.receipt, args=[1, 2, 3])
        tasks.due.enqueue(date(2026, 11, 1))
        assert_enqueued(tasks.due, args=[date(2026, 11, 1)])
        assert_enqueued(tasks.due, args={"day": date(2026, 11, 1)})
        tasks.noop.enqueue(1, 2, at=3)
        self.assertEqual(assert_enqueued(tasks.noop, args={"at": 3}).args, {"args": [1, 2], "at": 3})
        self.assertEqual(len(enqueued(tasks.noop, args=[2])), 1)

    def test_a_delayed_task_is_a_value_as_other_tasks(self):
        later = tasks.receipt.using(delay=60)
        self.assertEqual(later, tasks.receipt.using(delay=60))
        self.assertNotEqual(later, tasks.receipt)
        self.assertEqual(copy.copy(later), later)
        later.using(key="k").enqueue(1)
        self.assertEqual(drain().succeeded, 0)
        self.assertEqual(drain(scheduled=True).succeeded, 1)

    def test_an_error_is_the_results(self):
        for task, kind, message in (
            (tasks.fails, ValueError, "no such order"),
            (tasks.exits, SystemExit, "it exits"),
            (tasks.returns_what_json_cannot_hold, TypeError, "Unsupported type"),
        ):
            with self.subTest(task), self.assertLogs(LOGGER, level="ERROR"):
                result = task.enqueue()
                drain(raise_errors=False)
                result.refresh()
                self.assertEqual(result.status, TaskResultStatus.FAILED)
                with self.assertRaisesMessage(ValueError, "Task failed"):
                    result.return_value  # noqa: B018
                self.assertIs(result.errors[0].exception_class, kind)
                self.assertIn(message, result.errors[0].traceback)
                self.assertEqual(result.attempts, 1)

    def test_a_failed_attempt_is_repeated_and_is_not_the_end(self):
        finished = []
        with self.assertNoLogs(LOGGER, level="ERROR"):
            signals.task_finished.connect(lambda **given: finished.append(given), weak=False, dispatch_uid="t")
            result = tasks.fails_and_is_retried.enqueue()
            self.assertEqual(drain(raise_errors=False).failed, 1)
            signals.task_finished.disconnect(dispatch_uid="t")
        result.refresh()
        self.assertEqual(result.status, TaskResultStatus.READY)
        self.assertIs(result.errors[0].exception_class, LookupError)
        self.assertEqual(finished, [])
        # In its savepoint.
        self.assertEqual(Order.objects.count(), 0)

    def test_a_job_in_a_queue_that_the_settings_do_not_list_runs_and_has_a_result(self):
        backend = {"BACKEND": "pgqueue.contrib.django.Backend", "QUEUES": ["default"]}
        finished = []
        signals.task_finished.connect(lambda **given: finished.append(given), weak=False, dispatch_uid="t")
        with override_settings(TASKS={"default": backend}), self.assertLogs(LOGGER, level="ERROR"):
            result = tasks.fails_and_moves.enqueue()
            self.assertEqual(drain(raise_errors=False).failed, 1)
            self.assertEqual(drain("slow", raise_errors=False, scheduled=True).dead, 1)
            signals.task_finished.disconnect(dispatch_uid="t")
            found = task_backends["default"].get_result(result.id)
        self.assertEqual((found.status, found.task.queue_name), (TaskResultStatus.FAILED, "slow"))
        self.assertEqual([each.exception_class for each in found.errors], [LookupError] * 2)
        self.assertEqual([each["task_result"].task.queue_name for each in finished], ["slow"])

    def test_a_discarded_one_is_failed(self):
        with self.assertLogs(LOGGER, level="ERROR"):
            result = tasks.discards.enqueue()
            self.assertEqual(drain().dead, 1)
        result.refresh()
        self.assertEqual(result.status, TaskResultStatus.FAILED)

    def test_a_durable_block_is_the_outermost_as_in_a_worker(self):
        tasks.durable.enqueue()
        self.assertEqual(drain().succeeded, 1)
        self.assertEqual(Order.objects.count(), 1)
        with self.assertRaises(RuntimeError), transaction.atomic(), transaction.atomic(durable=True):
            pass

    def test_receivers_of_the_end_see_the_error_of_the_last_attempt(self):
        with self.assertLogs(LOGGER, level="ERROR") as logs:
            tasks.fails.enqueue("no such customer")
            drain(raise_errors=False)
        [line] = logs.output
        self.assertIn("state=FAILED", line)
        self.assertIn("in fails\n", line)
        self.assertIn("ValueError: no such customer", line)

    def test_the_connection_is_one_of_psycopg_3(self):
        # Django takes psycopg 3 where there is one, and pgqueue brings it: also in a project that had psycopg2 alone.
        Order.objects.count()
        self.assertIs(is_psycopg3, True)
        self.assertIsInstance(connection.connection, psycopg.Connection)

    def test_the_context_has_the_job(self):
        result = tasks.context.enqueue(7)
        drain()
        result.refresh()
        job_id = int(result.id)
        self.assertEqual(result.return_value, {"id": result.id, "attempt": 1, "job": job_id, "n": 7})

    def test_the_logs_of_django_are_written(self):
        with self.assertLogs(LOGGER, level="DEBUG") as logs:
            result = tasks.noop.enqueue()
            drain()
        self.assertEqual(len(logs.output), 3)
        for line, what in zip(logs.output, ("enqueued", "state=RUNNING", "state=SUCCESSFUL"), strict=True):
            self.assertIn(what, line)
            self.assertIn(result.id, line)

    def test_a_receiver_that_raises_harms_nothing(self):
        def raises(**given):
            raise RuntimeError("bad receiver")

        for each in (signals.task_enqueued, signals.task_started, signals.task_finished):
            each.connect(raises)
        try:
            with self.assertLogs("django.dispatch", level="ERROR"):
                result = tasks.noop.enqueue()
                self.assertEqual(drain().succeeded, 1)
        finally:
            for each in (signals.task_enqueued, signals.task_started, signals.task_finished):
                each.disconnect(raises)
        self.assertEqual(default_task_backend.get_result(result.id).status, TaskResultStatus.SUCCESSFUL)

    def test_options_of_django_and_of_the_queue(self):
        at = timezone.now() + timedelta(hours=1)
        task = tasks.noop.using(priority=-100, queue_name="slow", run_after=at, key="k", dedupe="d", max_attempts=2)
        result = task.enqueue()
        found = assert_enqueued(tasks.noop.module_path, queue="slow", priority=-100, key="k", dedupe="d")
        self.assertEqual((found.run_at, found.max_attempts), (at, 2))
        self.assertEqual(task.using(key="k").enqueue().id, result.id)
        self.assertEqual(drain().succeeded, 0)
        self.assertEqual(drain(scheduled=True).succeeded, 1)

    def test_what_django_refuses_is_refused(self):
        with self.assertRaises(InvalidTask):
            tasks.noop.using(priority=101)
        with self.assertRaises(InvalidTask):
            tasks.noop.using(run_after=timezone.now().replace(tzinfo=None))

    def test_a_time_that_is_none_is_refused_with_the_way_out(self):
        for given in (60, "2026-12-24", timedelta(minutes=1)):
            with self.subTest(given), self.assertRaisesMessage(InvalidArgument, f"run_after is {given!r}") as raised:
                tasks.noop.using(run_after=given)
            self.assertIn("noop.using(delay=60)", raised.exception.hint)

    @override_settings(TASKS={"default": {"BACKEND": "pgqueue.contrib.django.Backend", "QUEUES": ["one"]}})
    def test_a_queue_that_the_settings_do_not_name_is_refused(self):
        with self.assertRaises(InvalidTask):
            tasks.noop.using(queue_name="unknown")

    def test_a_result_that_is_not_there(self):
        job_id = pgqueue.enqueue(connection, "none of Django's", {})
        for unknown in ("0", "123456", "x", "", "9" * 40, str(job_id)):
            with self.subTest(unknown), self.assertRaises(TaskResultDoesNotExist):
                default_task_backend.get_result(unknown)

    def test_a_test_counts_the_queries_around_a_drain_and_of_its_handlers(self):
        tasks.count_orders.enqueue()
        with CaptureQueriesContext(connection) as captured:
            Order.objects.count()
            self.assertEqual(drain().succeeded, 1)
        self.assertEqual(sum("shop_order" in each["sql"] for each in captured), 2)

    def test_connections_of_a_test_survive_the_cleaning(self):
        before = connection.connection
        Order.objects.create(email="a@b.c")
        clean_connections()
        self.assertIs(connection.connection, before)
        self.assertEqual(Order.objects.count(), 1)


class ByNameTest(TestCase):
    """A Django task that something else than Django enqueues."""

    def enqueue(self, task, payload):
        return str(pgqueue.enqueue(connection, task.module_path, payload))

    def test_sql_names_the_arguments(self):
        for task, payload, expected in (
            (tasks.receipt, {"order_id": 1}, [1, 1]),
            (tasks.receipt, {"order_id": 1, "copies": 2}, [1, 2]),
            (tasks.receipt, {"args": [1], "kwargs": {"copies": 2}}, [1, 2]),
            (tasks.receipt_with_context, {"order_id": 1}, [[], {"order_id": 1}, 1]),
            (tasks.receipt_with_context, {"args": [1], "kwargs": {}}, [[1], {}, 1]),
        ):
            with self.subTest(payload=payload):
                job_id = self.enqueue(task, payload)
                self.assertEqual(default_task_backend.get_result(job_id).status, TaskResultStatus.READY)
                self.assertEqual(drain().succeeded, 1)
                result = default_task_backend.get_result(job_id)
                self.assertEqual(result.return_value, expected)
                by_call = "args" in payload
                self.assertEqual(result.args, payload["args"] if by_call else [])
                self.assertEqual(result.kwargs, payload["kwargs"] if by_call else payload)

    def test_arguments_by_position_only_reach_the_function_however_they_are_given(self):
        results = [
            tasks.closes.enqueue(date(2026, 11, 1), note="n").id,
            self.enqueue(tasks.closes, {"day": "2026-11-01", "note": "n"}),
            self.enqueue(tasks.closes, {"args": ["2026-11-01"], "kwargs": {"note": "n"}}),
        ]
        numbers = [
            tasks.adds.enqueue(1, third=5).id,
            self.enqueue(tasks.adds, {"first": 1, "third": 5}),
            self.enqueue(tasks.adds, {"args": [1], "kwargs": {"third": 5}}),
        ]
        self.assertEqual(drain().succeeded, 6)
        for job_id in results:
            self.assertEqual(default_task_backend.get_result(job_id).return_value, ["date", "n"])
        for job_id in numbers:
            self.assertEqual(default_task_backend.get_result(job_id).return_value, [1, 2, 5])

    def test_a_job_under_a_former_name_runs_and_has_its_result(self):
        job_id = str(pgqueue.enqueue(connection, "shop.tasks.send_mail", {"order_id": 1}))
        self.assertEqual(drain().succeeded, 1)
        result = default_task_backend.get_result(job_id)
        self.assertEqual((result.return_value, result.task), ([1, 1], tasks.receipt))

    def test_a_name_that_the_function_does_not_have_is_the_error(self):
        with self.assertLogs(LOGGER, level="ERROR"):
            job_id = str(pgqueue.enqueue(connection, tasks.receipt.module_path, {"order": 1}, max_attempts=1))
            self.assertEqual(drain(raise_errors=False).dead, 1)
        result = default_task_backend.get_result(job_id)
        self.assertEqual((result.status, result.kwargs), (TaskResultStatus.FAILED, {"order": 1}))
        self.assertIn("unexpected keyword argument 'order'", result.errors[0].traceback)

    def test_what_the_queue_declares_of_a_task_holds_for_sql_too(self):
        app = make_app()
        self.assertEqual(
            dict(app.tasks[tasks.nightly.module_path].declared()["declared"]), {"queue": "nights", "priority": 7}
        )


class ValidateTest(TestCase):
    def test_arguments_keep_their_types_without_validate_too(self):
        enqueued = tasks.due.enqueue(date(2026, 11, 1), {"a"}, note="n")
        self.assertEqual(enqueued.kwargs, {"day": "2026-11-01", "tags": ["a"], "note": "n"})
        payload = {"args": ["2026-11-01"], "kwargs": {}}
        by_call = str(pgqueue.enqueue(connection, tasks.due.module_path, payload))
        with self.assertRaises(InvalidArgument):
            tasks.due.enqueue(date(2026, 11, 1), note=date(2026, 11, 2))
        self.assertEqual(drain().succeeded, 2)
        self.assertEqual(default_task_backend.get_result(enqueued.id).return_value, ["date", ["a"], "n"])
        self.assertEqual(default_task_backend.get_result(by_call).return_value, ["date", [], ""])

    def test_arguments_are_of_the_annotated_types(self):
        enqueued = tasks.bill.enqueue("7", date(2026, 11, 1), total=Decimal("1.50"))
        self.assertEqual(enqueued.kwargs, {"customer": 7, "day": "2026-11-01", "total": "1.50"})
        payload = {"customer": 7, "day": "2026-11-01"}
        by_name = str(pgqueue.enqueue(connection, tasks.bill.module_path, payload))
        by_call = str(pgqueue.enqueue(connection, tasks.bill.module_path, {"args": [7, "2026-11-01"], "kwargs": {}}))
        self.assertEqual(drain().succeeded, 3)
        for job_id in (enqueued.id, by_name, by_call):
            self.assertEqual(default_task_backend.get_result(job_id).return_value, ["int", "date", "Decimal"])

    def test_others_are_refused_at_enqueue_and_fail_at_once_when_sql_gives_them(self):
        for args in (["x", date(2026, 11, 1)], [1], [1, date(2026, 11, 1), 3]):
            with self.subTest(args), self.assertRaises(InvalidArgument):
                tasks.bill.enqueue(*args)
        job_id = str(pgqueue.enqueue(connection, tasks.bill.module_path, {"customer": "x"}, max_attempts=1))
        with self.assertLogs(LOGGER, level="ERROR"):
            drain(raise_errors=False)
        [error] = default_task_backend.get_result(job_id).errors
        self.assertIn("InvalidPayload", error.exception_class_path)

    def test_its_schema_is_there_for_producers_elsewhere(self):
        schema = make_app().tasks[tasks.bill.module_path].schema()
        self.assertEqual(schema["required"], ["customer", "day"])
        self.assertEqual(schema["properties"]["day"], {"format": "date", "title": "Day", "type": "string"})


class OptionsTest(TestCase):
    def test_the_decorator_takes_the_options_of_jobs(self):
        result = tasks.book.enqueue()
        with connection.cursor() as cursor:
            cursor.execute(
                "select key, limit_key, tags, expires_at - run_at, max_attempts, retry from pgqueue.jobs where id = %s",
                [result.id],
            )
            # What the worker declares is not the job's: there an operator may override it.
            self.assertEqual(cursor.fetchall(), [("ledger", "bank", ["money"], timedelta(days=1), None, None)])

    def test_the_policy_of_the_decorator_decides_on_the_retry(self):
        result = tasks.book.enqueue()
        self.assertEqual(drain(raise_errors=False).failed, 1)
        with connection.cursor() as cursor:
            cursor.execute(
                "select extract(epoch from due_at - pgqueue._clock()) from pgqueue.all_jobs where id = %s", [result.id]
            )
            [(seconds,)] = cursor.fetchall()
        self.assertTrue(100 <= seconds <= 132, seconds)
        with self.assertLogs(LOGGER, level="ERROR"):
            self.assertEqual(drain(scheduled=True, raise_errors=False).dead, 1)

    def test_one_job_may_have_others(self):
        with self.assertNumQueries(1):
            result = tasks.book.using(retry_policy="doubling", max_attempts=2, limit_key="other").enqueue()
        with connection.cursor() as cursor:
            cursor.execute(
                "select limit_key, max_attempts, retry->>'policy' from pgqueue.jobs where id = %s", [result.id]
            )
            self.assertEqual(cursor.fetchall(), [("other", None, "doubling")])

    def test_what_cannot_be_is_refused_where_it_is_written(self):
        for error, options in (
            (ConfigError, {"timeout": "5 minuts"}),
            (ConfigError, {"retry_policy": "never"}),
            (ConfigError, {"max_crashes": 0}),
            (ConfigError, {"schedule": "61 * * * *"}),
            (TypeError, {"schedule": {"expression": "@daily", "evry": "1 h"}}),
            (InvalidArgument, {"schedule": {"every": "1 h", "args": {"nobody": 1}}}),
            (InvalidArgument, {"delay": "5 minuts"}),
            (TypeError, {"nonsense": 1}),
        ):
            with self.subTest(options), self.assertRaises(error):
                pgqueue_task(**options)(tasks.undeclared)
        with self.assertRaisesMessage(ConfigError, "task shop.tasks.undeclared: timeout is '5 minuts'"):
            pgqueue_task(timeout="5 minuts")(tasks.undeclared)
        for error, options in (
            (TypeError, {"schedule": "@daily"}),
            (TypeError, {"kay": "k"}),
            (InvalidArgument, {"delay": "5 minuts"}),
        ):
            with self.subTest(options), self.assertRaises(error):
                tasks.receipt.using(**options)


class PageTest(TestCase):
    def test_the_modules_of_tasks_on_the_page_can_be_imported(self):
        page = Path(pgqueue.__file__).parents[1] / "docs" / "how-to" / "django.md"
        blocks = re.findall(
            r"^```python\n# shop/(\w+_tasks)\.py\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL
        )
        before = dict(declared)
        try:
            for name, text in blocks:
                module = ModuleType(f"shop.{name}")
                exec(compile(text, name, "exec"), vars(module))
            found = {path for path in make_app().tasks if path not in before}
        finally:
            for path in declared.keys() - before.keys():
                del declared[path]
        names = ("more_tasks.remind", "checked_tasks.bill", "nightly_tasks.clean_up", "nightly_tasks.report")
        self.assertEqual(found, {f"shop.{name}" for name in names})


class SchedulesTest(TransactionTestCase):
    def tearDown(self):
        with connection.cursor() as cursor:
            cursor.execute("select pgqueue.unschedule(name) from pgqueue.effective_schedules")

    def test_a_worker_writes_the_schedules_of_the_decorators_and_they_run(self):
        with self.assertRaises(SystemExit):
            call_command("pgqueue_worker", "--", "--until-empty", "--log-level", "error")
        with connection.cursor() as cursor:
            cursor.execute(
                "select e.name, e.task, e.expression, e.every, e.timezone, s.args, e.queue"
                " from pgqueue.effective_schedules e join pgqueue.schedules s using (name) order by name"
            )
            hour = timedelta(hours=1)
            self.assertEqual(
                [
                    (*row[:5], json.loads(row[5]) if isinstance(row[5], str) else row[5], row[6])
                    for row in cursor.fetchall()
                ],
                [
                    ("hourly-eu", "shop.tasks.hourly", "0 * * * *", None, "Europe/Berlin", {"region": "eu"}, None),
                    ("hourly-us", "shop.tasks.hourly", None, hour, "UTC", {"region": "us"}, "us"),
                    # Django's own TIME_ZONE.
                    ("shop.tasks.nightly", "shop.tasks.nightly", "30 2 * * *", None, "America/Chicago", {}, None),
                ],
            )
            jobs = {}
            for name in ("hourly-eu", "hourly-us", "shop.tasks.nightly"):
                cursor.execute("select pgqueue.run_schedule_now(%s)", [name])
                jobs[name] = str(cursor.fetchone()[0])
        self.assertEqual(drain().succeeded, 3)
        found = {name: default_task_backend.get_result(job_id) for name, job_id in jobs.items()}
        self.assertEqual([each.return_value for each in found.values()], ["eu", "us", "night"])
        # A schedule's job goes where the task's own go.
        self.assertEqual([each.task.queue_name for each in found.values()], ["default", "us", "nights"])
        self.assertEqual(found["shop.tasks.nightly"].task.priority, 7)

    def test_the_command_line_adds_one(self):
        dsn = dsn_of("default")
        command = [sys.executable, "-m", "pgqueue", "schedules", "add", "weekly", "shop.tasks.receipt"]
        command += ['{"order_id": 3}', "--cron", "0 6 * * mon", "--timezone", "Europe/Berlin", "--dsn", dsn]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        with connection.cursor() as cursor:
            cursor.execute("select pgqueue.run_schedule_now('weekly')")
            job_id = str(cursor.fetchone()[0])
        self.assertEqual(drain().succeeded, 1)
        self.assertEqual(default_task_backend.get_result(job_id).return_value, [3, 1])


class TransactionsTest(TransactionTestCase):
    def test_the_role_that_django_assumes_is_that_of_the_dsn(self):
        with connection.cursor() as cursor:
            cursor.execute('create role "odd \\ role"')
        try:
            settings = {**connections.settings["default"]}
            options = {"assume_role": "odd \\ role", "options": "-c work_mem=5MB"}
            connections.settings["assuming"] = {**settings, "OPTIONS": options}
            with psycopg.connect(dsn_of("assuming")) as found:
                asked = found.execute("select current_user, current_setting('work_mem')").fetchone()
            self.assertEqual(asked, ("odd \\ role", "5MB"))
        finally:
            del connections["assuming"], connections.settings["assuming"]
            with connection.cursor() as cursor:
                cursor.execute('drop role "odd \\ role"')

    def test_a_job_is_committed_and_rolled_back_with_the_rest(self):
        with transaction.atomic():
            Order.objects.create(email="a@b.c")
            kept = tasks.noop.enqueue()
        try:
            with transaction.atomic():
                Order.objects.create(email="x@y.z")
                gone = tasks.noop.enqueue()
                raise RuntimeError
        except RuntimeError:
            pass
        self.assertEqual(default_task_backend.get_result(kept.id).status, TaskResultStatus.READY)
        with self.assertRaises(TaskResultDoesNotExist):
            default_task_backend.get_result(gone.id)
        self.assertEqual(drain(limit=5).ids, [int(kept.id)])

    async def test_a_worker_runs_them_and_keeps_no_connection(self):
        ids = [
            int((await task.aenqueue(*args)).id) for task, args in ((tasks.add_order, ["a"]), (tasks.count_orders, []))
        ]
        worker = Worker(make_app(), dsn_of("default"), pgqueue.config.WorkerConfig(until_empty=True))
        await worker.run()
        for each in ids:
            self.assertEqual((await default_task_backend.aget_result(str(each))).status, TaskResultStatus.SUCCESSFUL)

    def test_the_command_runs_what_waits_and_closes_its_threads_connections(self):
        result = tasks.count_orders.enqueue()
        with self.assertRaises(SystemExit) as ended:
            call_command("pgqueue_worker", "--", "--until-empty", "--log-level", "error")
        self.assertEqual(ended.exception.code, 0)
        result.refresh()
        self.assertEqual(result.status, TaskResultStatus.SUCCESSFUL)
        self.assertEqual(result.return_value, 0)

    def test_a_called_command_leaves_its_caller_as_it_was(self):
        numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
        before = dict(os.environ), list(sys.argv), [signal.getsignal(number) for number in numbers]
        with self.assertRaises(SystemExit):
            call_command("pgqueue_worker", "--", "--until-empty", "--log-level", "error")
        after = dict(os.environ), list(sys.argv), [signal.getsignal(number) for number in numbers]
        self.assertEqual(after, before)
        # None that will end this process.
        self.assertEqual([each for each in threading.enumerate() if isinstance(each, threading.Timer)], [])


class FlushTest(TransactionTestCase):
    """Each test begins with an empty queue, in whichever order they run."""

    def test_a_job_that_one_test_leaves_is_gone_for_the_next(self):
        self.leave()

    def test_also_the_other_way_round(self):
        self.leave()

    def leave(self):
        self.assertEqual(drain().succeeded, 0)
        tasks.noop.enqueue()
        self.assertEqual(drain().succeeded, 1)
        tasks.noop.using(dedupe="one").enqueue()

    def test_what_is_not_of_jobs_stays(self):
        with connection.cursor() as cursor:
            cursor.execute("select pgqueue.schedule('stays', '@daily', 't')")
            cursor.execute("select pgqueue.pause_queue('stays')")
            call_command("flush", interactive=False, verbosity=0)
            cursor.execute("select pgqueue.unschedule('stays'), pgqueue.resume_queue('stays')")
            self.assertEqual(cursor.fetchall(), [(True, True)])

    def test_what_a_job_throttled_runs_in_the_next_test(self):
        self.throttle()

    def test_what_a_job_throttled_runs_in_the_test_after_it_too(self):
        self.throttle()

    def throttle(self):
        tasks.throttled.enqueue()
        self.assertEqual(drain().snoozed, 1)
        tasks.throttled.enqueue()
        self.assertEqual(drain().ids, [])

    def test_the_clock_that_a_drain_moved_is_the_real_one_again(self):
        self.move_clock()

    def test_also_after_another_test_that_moved_it(self):
        self.move_clock()

    def move_clock(self):
        with connection.cursor() as cursor:
            ahead = "select pgqueue._clock() - clock_timestamp() > '59 min'"
            cursor.execute(ahead)
            self.assertEqual(cursor.fetchall(), [(False,)])
            tasks.noop.using(delay=3600).enqueue()
            self.assertEqual(drain(scheduled=True).succeeded, 1)
            cursor.execute(ahead)
            self.assertEqual(cursor.fetchall(), [(True,)])


class CommandTest(TransactionTestCase):
    def test_what_keeps_it_from_starting_is_one_line(self):
        with self.assertRaisesMessage(CommandError, "-q mail,x: 'x' is no weight"):
            call_command("pgqueue_worker", "--", "-q", "mail,x")


class ProcessTest(TransactionTestCase):
    """The command as it is typed."""

    def run_command(self, *options, command="pgqueue_worker", **settings):
        environment = {**os.environ, "SITE_DSN": dsn_of("default"), "SITE_DEBUG": "1", **settings}
        command = [sys.executable, "manage.py", command, *options]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)

    def test_each_line_is_logged_once_with_debug_too(self):
        result = tasks.count_orders.enqueue()
        done = self.run_command("--until-empty")
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = [line for line in done.stderr.splitlines() if f"id={result.id}" in line]
        self.assertEqual(len(lines), 2, done.stderr)
        self.assertIn("INFO django", lines[0])

    def test_it_runs_without_stderr_and_so_do_the_programs_of_its_handlers(self):
        result = tasks.writes_to_stderr.enqueue()
        command = ["sh", "-c", '"$0" manage.py pgqueue_worker --until-empty "$@" 2>&-', sys.executable]
        environment = {**os.environ, "SITE_DSN": dsn_of("default")}
        self.assertEqual(subprocess.run(command, env=environment, timeout=240, check=False).returncode, 0)
        result.refresh()
        self.assertEqual(result.status, TaskResultStatus.SUCCESSFUL, result.errors)
        wrong = subprocess.run([*command, "-q", "mail,x"], env=environment, timeout=240, check=False)
        self.assertEqual(wrong.returncode, 2)

    def test_its_help_names_the_command_as_it_is_typed(self):
        done = self.run_command("--help")
        self.assertEqual(done.stdout.splitlines()[0], "Usage: manage.py pgqueue_worker [OPTIONS]")
        self.assertIn("--until-empty", done.stdout)

    def test_a_database_that_is_no_postgresql_is_one_line_and_an_error_of_check(self):
        done = self.run_command("--until-empty", SITE_SQLITE="1")
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertEqual(len(done.stderr.splitlines()), 1)
        self.assertIn("the database 'default' is sqlite, and the queue needs PostgreSQL", done.stderr)
        for command in ("check", "migrate"):
            done = self.run_command(command=command, SITE_SQLITE="1")
            self.assertEqual(done.returncode, 1)
            self.assertIn("pgqueue.E003", done.stderr)

    def test_check_says_that_the_app_is_missing_where_only_urls_import_a_task(self):
        done = self.run_command(command="check", SITE_WITHOUT_APP="1")
        self.assertIn("RuntimeWarning: INSTALLED_APPS lacks 'pgqueue.contrib.django'", done.stderr)
        self.assertIn("Add 'pgqueue.contrib.django' to INSTALLED_APPS.", done.stderr)

    def test_a_task_may_be_declared_before_the_apps_are_ready(self):
        program = """
import django
from pgqueue.contrib.django import task

@task
def early():
    pass

django.setup()
print(early.get_backend().alias)
"""
        environment = {**os.environ, "SITE_DSN": dsn_of("default"), "DJANGO_SETTINGS_MODULE": "settings"}
        command = [sys.executable, "-W", "error::RuntimeWarning", "-c", program]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
        self.assertEqual((done.returncode, done.stdout), (0, "default\n"), done.stderr)


class ChecksTest(TestCase):
    def test_an_app_that_is_not_installed_is_an_error(self):
        with (
            self.modify_settings(INSTALLED_APPS={"remove": "pgqueue.contrib.django"}),
            self.assertRaisesMessage(SystemCheckError, "pgqueue.E001"),
        ):
            call_command("check")

    def test_nothing_is_enqueued_without_the_app(self):
        with (
            self.modify_settings(INSTALLED_APPS={"remove": "pgqueue.contrib.django"}),
            self.assertRaisesMessage(ConfigError, "INSTALLED_APPS lacks 'pgqueue.contrib.django'") as raised,
        ):
            tasks.noop.enqueue()
        self.assertIn("Add 'pgqueue.contrib.django'", raised.exception.hint)

    def test_a_test_that_hides_the_app_enqueues(self):
        apps.set_available_apps([])
        try:
            self.assertEqual(tasks.noop.enqueue().status, TaskResultStatus.READY)
        finally:
            apps.unset_available_apps()

    def test_all_is_well(self):
        self.assertEqual(check_schema(databases=["default"]), [])
        self.assertEqual(list(default_task_backend.check()), [])
        call_command("check", "--database", "default", stdout=StringIO())

    def test_another_database_than_that_of_models_is_warned_of(self):
        settings = {**connections.settings, "other": {**connections.settings["default"]}}
        backend = Backend("default", {"QUEUES": [], "OPTIONS": {"database": "nowhere"}})
        self.assertEqual([each.id for each in backend.check()], ["pgqueue.E002"])
        connections.settings["other"] = settings["other"]
        try:
            backend = Backend("default", {"QUEUES": [], "OPTIONS": {"database": "other"}})
            [warning] = backend.check()
            self.assertEqual((warning.id, warning.level), ("pgqueue.W001", checks.WARNING))
        finally:
            del connections.settings["other"]

    def test_a_retry_queue_that_the_settings_do_not_list_is_warned_of(self):
        for queues, expected in ((["default", "slow"], []), (["default"], ["pgqueue.W003"]), ([], [])):
            found = list(Backend("default", {"QUEUES": queues}).check())
            self.assertEqual([each.id for each in found], expected)

    def test_migrations_are_complete_and_migrating_twice_is_harmless(self):
        call_command("makemigrations", "pgqueue", "--check", stdout=StringIO())


class MigrateTest(TransactionTestCase):
    def test_an_old_schema_is_warned_of_and_migrate_heals_it(self):
        with connection.cursor() as cursor:
            cursor.execute("drop function pgqueue.version()")
        [warning] = check_schema(databases=["default"])
        self.assertEqual((warning.id, warning.hint), ("pgqueue.W002", "Run: manage.py migrate"))
        self.assertIn("older than this program", warning.msg)
        with self.assertRaises(SystemCheckError):
            call_command("check", "--database", "default", "--fail-level", "WARNING", stderr=StringIO())
        # With its checks, as from the command line: they must not keep it from its work.
        call_command("migrate", "pgqueue", verbosity=0, skip_checks=False, stderr=StringIO())
        self.assertEqual(check_schema(databases=["default"]), [])


class TroubleTest(TestCase):
    """What `check` says of a database: three things that need three remedies."""

    databases = ()

    def warning(self, alias, **settings):
        connections.settings["elsewhere"] = {**connections.settings["default"], **settings}
        backend = {"BACKEND": "pgqueue.contrib.django.Backend", "OPTIONS": {"database": "elsewhere"}}
        try:
            with override_settings(TASKS={"default": backend}):
                [warning] = check_schema(databases=["elsewhere"])
        finally:
            del connections["elsewhere"]
            del connections.settings["elsewhere"]
        self.assertEqual(warning.id, "pgqueue.W002")
        return warning

    def test_a_database_that_does_not_answer(self):
        found = self.warning("elsewhere", HOST="127.0.0.1", PORT="1")
        self.assertIn("The database 'elsewhere' cannot be asked for the queue's schema: ", found.msg)
        self.assertIn("refused", found.msg)
        self.assertNotIn("migrate", found.hint)

    def test_a_database_without_the_queue(self):
        found = self.warning("elsewhere", NAME="template1")
        self.assertEqual(found.msg, "The database 'elsewhere' has no queue: the schema 'pgqueue' is missing.")
        self.assertEqual(found.hint, "Run: manage.py migrate")


class AdminTest(TestCase):
    def setUp(self):
        self.user = User.objects.create_user("ada", password="x", is_staff=True)
        for codename in ("view_job", "view_queue", "view_schedule", "view_limit", "view_worker"):
            self.user.user_permissions.add(Permission.objects.get(codename=codename))
        self.client.force_login(self.user)
        self.job = tasks.noop.enqueue(1)

    def test_every_list_is_shown_and_none_counts(self):
        for name in ("job", "queue", "schedule", "limit", "worker"):
            with self.subTest(name):
                queries = []

                def note(execute, sql, params, many, context, queries=queries):
                    queries.append(sql)
                    return execute(sql, params, many, context)

                with connection.execute_wrapper(note):
                    answer = self.client.get(f"/admin/pgqueue/{name}/")
                self.assertEqual(answer.status_code, 200)
                self.assertFalse([sql for sql in queries if "COUNT(" in sql.upper() and "pgqueue" in sql])
        self.assertContains(self.client.get(f"/admin/pgqueue/job/{self.job.id}/change/"), "shop.tasks.noop")
        self.assertContains(self.client.get("/admin/pgqueue/job/?state=waiting"), "shop.tasks.noop")
        self.assertNotContains(self.client.get("/admin/pgqueue/job/?state=dead"), "shop.tasks.noop")
        self.assertContains(self.client.get(f"/admin/pgqueue/job/?q={self.job.id}"), "shop.tasks.noop")
        self.assertNotContains(self.client.get(f"/admin/pgqueue/job/?before={self.job.id}"), "shop.tasks.noop")

    def test_nothing_is_added_changed_or_deleted(self):
        self.assertEqual(self.client.get("/admin/pgqueue/job/add/").status_code, 403)
        change = f"/admin/pgqueue/job/{self.job.id}/change/"
        self.assertEqual(self.client.post(change, {"task": "x"}).status_code, 403)

    def test_actions_need_the_permission_and_go_through_the_queue(self):
        given = {"action": "cancel_selected", "_selected_action": [self.job.id]}
        self.client.post("/admin/pgqueue/job/", given)
        self.assertEqual(default_task_backend.get_result(self.job.id).status, TaskResultStatus.READY)
        self.user.user_permissions.add(Permission.objects.get(codename="operate"))
        self.assertContains(self.client.post("/admin/pgqueue/job/", given, follow=True), "1 cancelled")
        self.assertEqual(default_task_backend.get_result(self.job.id).status, TaskResultStatus.FAILED)
        given["action"] = "retry_selected"
        self.assertContains(self.client.post("/admin/pgqueue/job/", given, follow=True), "1 will be retried")
        self.assertEqual(default_task_backend.get_result(self.job.id).status, TaskResultStatus.READY)
        self.assertEqual({entry.user for entry in LogEntry.objects.all()}, {self.user})
        with connection.cursor() as cursor:
            cursor.execute("select distinct actor from pgqueue.audit")
            self.assertEqual(cursor.fetchall(), [("ada",)])

    def act(self, action, *ids, **given):
        self.user.user_permissions.add(Permission.objects.get(codename="operate"))
        given = {"action": f"{action}_selected", "_selected_action": ids, **given}
        return self.client.post("/admin/pgqueue/job/", given, follow=True)

    def test_all_that_match_are_left_to_the_command_line(self):
        for _ in range(50):
            tasks.noop.enqueue()
        answer = self.act("cancel", self.job.id, select_across="1")
        # More than a page, and no link that would select them all.
        self.assertContains(answer, 'class="action-select"', count=50)
        self.assertNotContains(answer, 'class="question')
        self.assertContains(answer, "pgqueue jobs cancel --where")
        self.assertEqual(default_task_backend.get_result(self.job.id).status, TaskResultStatus.READY)

    def test_jobs_that_have_left_the_list_are_said_to_have(self):
        self.assertContains(self.act("cancel", 999_999), "None of these jobs is in the list any more")

    def test_what_the_queue_refuses_is_a_message(self):
        with mock.patch("pgqueue.contrib.django.admin.drivers.run", side_effect=InvalidArgument("it is locked")):
            self.assertContains(self.act("cancel", self.job.id), "is locked")
        self.assertFalse(LogEntry.objects.exists())

    def test_deleted_jobs_are_in_the_log_of_the_admin(self):
        self.assertContains(self.act("delete", self.job.id), "1 deleted")
        [entry] = LogEntry.objects.all()
        self.assertEqual((entry.object_id, entry.change_message), (self.job.id, "delete"))
        self.assertEqual(entry.object_repr, f"job {self.job.id} (shop.tasks.noop)")

    def test_limits_of_two_kinds_with_one_target_are_listed(self):
        with connection.cursor() as cursor:
            for kind in ("queue", "task"):
                cursor.execute("select pgqueue.set_limit(%s, 'mail', max_executing => 3)", [kind])
        self.assertContains(self.client.get("/admin/pgqueue/limit/"), "mail", count=2)
        self.assertEqual(self.client.get("/admin/pgqueue/limit/mail/change/").status_code, 302)

    def test_what_is_no_id_in_before_is_ignored(self):
        for before in ("²", "x", "1" * 30):
            answer = self.client.get("/admin/pgqueue/job/", {"before": before})
            self.assertContains(answer, "shop.tasks.noop")

    def test_secrets_are_hidden(self):
        job = tasks.noop.using(headers={"api_token": "geheim", "x": "seen"}).enqueue(1, user={"password": "geheim"})
        text = self.client.get(f"/admin/pgqueue/job/{job.id}/change/").content.decode()
        self.assertIn("•••", text)
        self.assertIn("seen", text)
        self.assertNotIn("geheim", text)


class ThreadsTest(TransactionTestCase):
    def test_a_stale_connection_of_a_thread_is_closed_around_a_job(self):
        closed = []

        def in_thread():
            connection.ensure_connection()
            connection.close_at = 0
            clean_connections()
            closed.append(connection.connection is None)

        thread = threading.Thread(target=in_thread)
        thread.start()
        thread.join()
        self.assertEqual(closed, [True])
