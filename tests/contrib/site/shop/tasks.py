import subprocess
import sys
from datetime import date
from decimal import Decimal

from django.db import transaction

from pgqueue import Discard, Throttled
from pgqueue.contrib.django import task
from pgqueue.contrib.django.api import Task
from shop.models import Order

try:
    from django.tasks import task as django_task
except ImportError:
    from django_tasks import task as django_task

seen = []


@django_task
def noop(*args, **kwargs):
    seen.append((args, kwargs))


@django_task
async def noop_async(*args, **kwargs):
    seen.append((args, kwargs))


@django_task(priority=50, queue_name="mail")
def count_orders():
    return Order.objects.count()


@django_task
async def add_order(email):
    order = await Order.objects.acreate(email=email)
    return order.pk


@django_task(takes_context=True)
def context(context, n):
    return {"id": context.task_result.id, "attempt": context.attempt, "job": context.job.id, "n": n}


@task(max_attempts=1)
def fails(message="no such order"):
    raise ValueError(message)


@task
def throttled():
    raise Throttled(after=3600)


@task(max_attempts=1)
def writes_to_stderr():
    sys.stderr.write("Hello\n")
    subprocess.run(["sh", "-c", "echo Hello >&2"], check=True)


@task(max_attempts=1)
def exits():
    raise SystemExit("it exits")


@task(max_attempts=1)
def returns_what_json_cannot_hold():
    return lambda: True


@task(retry=lambda error, n: 60)
def fails_and_is_retried():
    Order.objects.create(email="half done")
    raise LookupError("try again")


@task(max_attempts=2, retry_queue="slow")
def fails_and_moves():
    raise LookupError("try again elsewhere")


@task(max_attempts=1)
def durable():
    with transaction.atomic(durable=True):
        Order.objects.create(email="durable")


@task
def discards():
    raise Discard("never")


@task(aliases=["shop.tasks.send_mail"])
def receipt(order_id, copies=1):
    return [order_id, copies]


@task(takes_context=True)
async def receipt_with_context(context, order_id):
    return [context.task_result.args, context.task_result.kwargs, order_id]


@task(validate=True)
def bill(customer: int, day: date, *, total: Decimal = Decimal(0)):
    return [type(customer).__name__, type(day).__name__, type(total).__name__]


@task
def due(day: date, tags: set = frozenset(), note=""):
    return [type(day).__name__, sorted(tags), note]


@task
def closes(day: date, /, note=""):
    return [type(day).__name__, note]


@task
async def adds(first, second=2, /, *, third=3):
    return [first, second, third]


@task(queue_name="nights", priority=7, schedule="30 2 * * *")
def nightly():
    return "night"


@task(
    schedule=[
        {"name": "hourly-eu", "expression": "0 * * * *", "timezone": "Europe/Berlin", "args": {"region": "eu"}},
        {"name": "hourly-us", "every": "1 hour", "args": {"region": "us"}, "queue": "us"},
    ]
)
def hourly(region):
    return region


@task(
    key="ledger",
    limit_key="bank",
    retry_policy="fixed",
    retry_delay="2 min",
    max_attempts=2,
    expires_in="1 day",
    tags=["money"],
    owner="payments",
)
def book():
    raise LookupError("the bank is closed")


def undeclared(): ...


assert isinstance(noop, Task)
