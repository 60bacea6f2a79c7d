"""The queue of the first release. Models are views of its tables, which Django does not make."""

from django.db import migrations, models

from pgqueue.contrib.django.models import Texts
from pgqueue.contrib.django.schema import Migrate


class Migration(migrations.Migration):
    """Creates or upgrades the schema."""

    # The schema's migration has a connection, and a transaction, of its own.
    atomic = False
    initial = True
    dependencies: list[tuple[str, str]] = []
    operations = [
        Migrate("0001"),
        migrations.CreateModel(
            name="Job",
            fields=[
                ("id", models.BigIntegerField(primary_key=True, serialize=False)),
                ("task", models.TextField()),
                ("queue", models.TextField()),
                ("state", models.TextField()),
                ("priority", models.SmallIntegerField()),
                ("attempts", models.IntegerField()),
                ("max_attempts", models.IntegerField(null=True)),
                ("key", models.TextField(null=True)),
                ("run_at", models.DateTimeField()),
                ("due_at", models.DateTimeField(null=True)),
                ("created_at", models.DateTimeField()),
                ("reserved_at", models.DateTimeField(null=True)),
                ("reserved_by", models.TextField(null=True)),
                ("lease_expires_at", models.DateTimeField(null=True)),
                ("finished_at", models.DateTimeField(null=True)),
                ("args", models.JSONField()),
                ("headers", models.JSONField(null=True)),
                ("errors", models.JSONField(null=True)),
                ("result", models.JSONField(null=True)),
                (
                    "tags",
                    Texts(null=True),
                ),
            ],
            options={
                "db_table": 'pgqueue"."all_jobs',
                "permissions": (("operate", "Can run, retry, cancel, kill and delete jobs"),),
                "managed": False,
                "default_permissions": ("view",),
            },
        ),
        migrations.CreateModel(
            name="Limit",
            fields=[
                ("target", models.TextField(primary_key=True, serialize=False)),
                ("kind", models.TextField()),
                ("max_executing", models.IntegerField(null=True)),
                ("rate", models.IntegerField(null=True)),
                ("per", models.DurationField(null=True)),
                ("max_cost", models.IntegerField(null=True)),
                ("burst", models.IntegerField(null=True)),
            ],
            options={
                "db_table": 'pgqueue"."limits',
                "managed": False,
                "default_permissions": ("view",),
            },
        ),
        migrations.CreateModel(
            name="Queue",
            fields=[
                ("name", models.TextField(primary_key=True, serialize=False)),
                ("priority", models.SmallIntegerField(null=True)),
                ("weight", models.IntegerField(null=True)),
            ],
            options={
                "db_table": 'pgqueue"."queues',
                "abstract": False,
                "managed": False,
                "default_permissions": ("view",),
            },
        ),
        migrations.CreateModel(
            name="Schedule",
            fields=[
                ("name", models.TextField(primary_key=True, serialize=False)),
                ("expression", models.TextField(null=True)),
                ("every", models.DurationField(null=True)),
                ("timezone", models.TextField()),
                ("task", models.TextField()),
                ("queue", models.TextField(null=True)),
                ("paused_at", models.DateTimeField(null=True)),
                ("next_at", models.DateTimeField(null=True)),
                ("last_at", models.DateTimeField(null=True)),
                ("last_outcome", models.TextField(null=True)),
            ],
            options={
                "db_table": 'pgqueue"."effective_schedules',
                "abstract": False,
                "managed": False,
                "default_permissions": ("view",),
            },
        ),
        migrations.CreateModel(
            name="Worker",
            fields=[
                ("worker", models.TextField(primary_key=True, serialize=False)),
                (
                    "queues",
                    Texts(null=True),
                ),
                ("info", models.JSONField()),
                ("started_at", models.DateTimeField()),
                ("last_heartbeat_at", models.DateTimeField(null=True)),
                ("is_alive", models.BooleanField()),
                ("executing", models.BigIntegerField()),
            ],
            options={
                "db_table": 'pgqueue"."worker_status',
                "managed": False,
                "default_permissions": ("view",),
            },
        ),
    ]
