"""The worker: claims jobs, runs them, reports how they ended, and keeps their leases.

The way of a job, by the calls that it takes:

- in: `Claimer.claim`, `Trade.claim`, `Trade.exchange`, `Exchange.perform`, `db.consume.exchange`; in SQL `reserve`, or
  `exchange` where ends go along; then `Intake.took`, `Runner.take`
- run: `Runner.take` wakes as many of its coroutines as there are jobs (`Runner._run_jobs`), and each takes what may
  start (`Runner._startable`) to `Runner._run_one`, `Handlers.run`, which returns the `Ending` of the attempt; for
  plain functions `Runner._run_in_threads`, `Handlers.run_plain`, and `Handlers.run` only for what did not simply
  succeed; an exception is stored by `Handlers._call_on_loop`, raised again in `Handlers._attempt`, where the task's
  settings apply, and meets `Handlers._failed`; `Handlers._judged` asks the task's own rule about retries
- out: `Outbox.end`, `Reporter.report_forever` (or the next claim), `Trade.exchange`, `Exchange.perform`; in SQL
  `exchange`; then `Trade.act_on`, which has `Tell` count, log and call hooks; what a retry function has to decide
  goes on to `Deciding`

A `Held` is what was claimed and does not change. Its `Attempt` is what becomes of it, and names who writes what.

In SQL, `reserve` and `exchange` begin where sql/README.md reads a claim and an end from top to bottom.
"""

from pgqueue.worker.worker import Worker

__all__ = ["Worker"]
