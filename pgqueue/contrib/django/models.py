"""The queue's tables and views, for Django's admin. Read-only: the functions of the queue change them."""

from __future__ import annotations

from typing import Any

from django.db import models


class Texts(models.TextField):
    """An array of texts, shown as one. Django's own field for it needs django.contrib.postgres in INSTALLED_APPS."""

    def from_db_value(self, value: list[str] | None, *args: Any) -> str | None:
        """Return the texts, with commas between."""
        return None if value is None else ", ".join(value)


class Job(models.Model):
    """A job, live or finished."""

    id = models.BigIntegerField(primary_key=True)
    task = models.TextField()
    queue = models.TextField()
    state = models.TextField()
    priority = models.SmallIntegerField()
    attempts = models.IntegerField()
    max_attempts = models.IntegerField(null=True)
    key = models.TextField(null=True)
    run_at = models.DateTimeField()
    due_at = models.DateTimeField(null=True)
    created_at = models.DateTimeField()
    reserved_at = models.DateTimeField(null=True)
    reserved_by = models.TextField(null=True)
    lease_expires_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)
    args = models.JSONField()
    headers = models.JSONField(null=True)
    errors = models.JSONField(null=True)
    result = models.JSONField(null=True)
    tags = Texts(null=True)

    class Meta:
        managed = False
        db_table = 'pgqueue"."all_jobs'
        # Those on all rows would sort all of history.
        default_permissions = ("view",)
        permissions = (("operate", "Can run, retry, cancel, kill and delete jobs"),)

    def __str__(self) -> str:
        return f"job {self.pk} ({self.task})"


class _View(models.Model):
    name = models.TextField(primary_key=True)

    class Meta:
        abstract = True
        managed = False
        default_permissions = ("view",)

    def __str__(self) -> str:
        return str(self.pk)


class Queue(_View):
    """A queue that has options."""

    priority = models.SmallIntegerField(null=True)
    weight = models.IntegerField(null=True)

    class Meta(_View.Meta):
        abstract = False
        db_table = 'pgqueue"."queues'


class Schedule(_View):
    """A schedule."""

    expression = models.TextField(null=True)
    every = models.DurationField(null=True)
    timezone = models.TextField()
    task = models.TextField()
    queue = models.TextField(null=True)
    paused_at = models.DateTimeField(null=True)
    next_at = models.DateTimeField(null=True)
    last_at = models.DateTimeField(null=True)
    last_outcome = models.TextField(null=True)

    class Meta(_View.Meta):
        abstract = False
        db_table = 'pgqueue"."effective_schedules'


class Limit(models.Model):
    """A limit of how many jobs execute or start at a time."""

    target = models.TextField(primary_key=True)
    kind = models.TextField()
    max_executing = models.IntegerField(null=True)
    rate = models.IntegerField(null=True)
    per = models.DurationField(null=True)
    max_cost = models.IntegerField(null=True)
    burst = models.IntegerField(null=True)

    class Meta:
        managed = False
        db_table = 'pgqueue"."limits'
        default_permissions = ("view",)

    def __str__(self) -> str:
        return f"{self.kind} {self.target}"


class Worker(models.Model):
    """A registered worker."""

    worker = models.TextField(primary_key=True)
    queues = Texts(null=True)
    info: Any = models.JSONField()
    started_at = models.DateTimeField()
    last_heartbeat_at = models.DateTimeField(null=True)
    is_alive = models.BooleanField()
    executing = models.BigIntegerField()

    class Meta:
        managed = False
        db_table = 'pgqueue"."worker_status'
        default_permissions = ("view",)

    def __str__(self) -> str:
        return str(self.worker)
