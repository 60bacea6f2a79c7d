from django.db import transaction

from pgqueue import Discard
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


@task(max_attempts=1)
def durable():
    with transaction.atomic(durable=True):
        Order.objects.create(email="durable")


@task
def discards():
    raise Discard("never")


assert isinstance(noop, Task)
