"""`pgqueue enqueue`."""

from __future__ import annotations

from typing import Annotated

import typer

from pgqueue.cli import names, output
from pgqueue.cli.completion import queues, tasks
from pgqueue.cli.database import connected
from pgqueue.cli.options import AsJson, Dsn, commands, object_as_written
from pgqueue.db import produce
from pgqueue.db.call import perform

app = commands()

Task = Annotated[str, typer.Argument(help="The task's name.", autocompletion=tasks)]
Args = Annotated[str, typer.Argument(help="Its arguments, a JSON object.", show_envvar=False)]
Queue = Annotated[
    str | None, typer.Option("--queue", "-q", help="Queue; default: the task's, else default.", autocompletion=queues)
]
Priority = Annotated[int | None, typer.Option(help="-100 to 100; higher runs first.")]
Delay = Annotated[str | None, typer.Option(help="Start it after this time: '2 hours'.")]
RunAt = Annotated[str | None, typer.Option(help="Start it at this instant or later: '2026-12-24 18:00+01'.")]
ExpiresIn = Annotated[str | None, typer.Option(help="Cancel it if it has not started by then: '1 day'.")]
Timeout = Annotated[str | None, typer.Option(help="How long one attempt may take: '5 min'.")]
MaxAttempts = Annotated[int | None, typer.Option(help="Attempts before it is dead.")]
RetryPolicy = Annotated[
    str | None, typer.Option(help="Its backoff: fixed, exponential, sidekiq or doubling; default: the task's.")
]
RetryDelay = Annotated[str | None, typer.Option(help="The first wait of that backoff: '30 s'.")]
RetryCap = Annotated[str | None, typer.Option(help="The longest wait of that backoff: '1 hour'.")]
RetryQueue = Annotated[str | None, typer.Option(help="Its further attempts run in this queue.", autocompletion=queues)]
DependsOn = Annotated[list[int] | None, typer.Option(help="The id of a job that must end first. Repeatable.")]
RunIf = Annotated[str | None, typer.Option(help="How those must end: succeeded, finished or failed.")]
Group = Annotated[int | None, typer.Option("--group", help="The id of the open group that it joins.")]
Tags = Annotated[list[str] | None, typer.Option("--tag", help="A label. Repeatable.")]
Headers = Annotated[str | None, typer.Option(help="Headers, a JSON object.")]
Retention = Annotated[str | None, typer.Option(help="How long history keeps it: '30 days'; '0': no row.")]
Key = Annotated[str | None, typer.Option(help="Jobs of one queue and key run one at a time, in order.")]
Score = Annotated[str | None, typer.Option(help="Its position among the payloads of an accumulating task.")]
LimitKey = Annotated[str | None, typer.Option(help="The value to which limits of the kind limit_key apply.")]
Cost = Annotated[int | None, typer.Option(help="How many units of its limits a start takes; default: 1.")]
Dedupe = Annotated[str | None, typer.Option(help="Only one live job has this task and dedupe key.")]
DedupeFor = Annotated[
    str | None, typer.Option(help="How long from now the dedupe key holds; default: while the job lives.")
]
OnConflict = Annotated[
    str | None, typer.Option(help="If a job has the dedupe key: skip, replace, merge, debounce, supersede or raise.")
]
DebounceMax = Annotated[
    str | None, typer.Option(help="With debounce: defer at most this long. Default: ten times the delay.")
]


@app.command()
def enqueue(
    task: Task,
    args: Args = "{}",
    queue: Queue = None,
    priority: Priority = None,
    delay: Delay = None,
    run_at: RunAt = None,
    expires_in: ExpiresIn = None,
    timeout: Timeout = None,
    max_attempts: MaxAttempts = None,
    retry_policy: RetryPolicy = None,
    retry_delay: RetryDelay = None,
    retry_cap: RetryCap = None,
    retry_queue: RetryQueue = None,
    depends_on: DependsOn = None,
    run_if: RunIf = None,
    group_id: Group = None,
    tags: Tags = None,
    headers: Headers = None,
    retention: Retention = None,
    key: Key = None,
    score: Score = None,
    limit_key: LimitKey = None,
    cost: Cost = None,
    dedupe: Dedupe = None,
    dedupe_for: DedupeFor = None,
    on_conflict: OnConflict = None,
    debounce_max: DebounceMax = None,
    as_json: AsJson = False,
    dsn: Dsn = None,
) -> None:
    """Enqueue one job and print its id.

    If another job has the dedupe key, prints the id of that job.
    """
    # Each parameter that is an option of enqueue has its name.
    given = locals()
    options: dict[str, object] = {
        name: given[name] for name in produce.OPTION_TYPES if given.get(name) not in (None, [])
    }
    if headers is not None:
        options["headers"] = object_as_written(headers, "--headers")
    call = produce.enqueue_outcome(task, object_as_written(args, "ARGS"), options)
    with connected(dsn) as connection:
        # Checked before the enqueue: it may be the first job of its queue.
        doubts = [names.doubt(connection, "task", task), names.doubt(connection, "queue", queue)]
        done = perform(connection, call)
    for each in filter(None, doubts):
        output.message(each)
    if as_json:
        output.print_json({"id": done.job_id, **({} if dedupe is None else {"outcome": done.outcome})})
    else:
        output.line(done.job_id)
