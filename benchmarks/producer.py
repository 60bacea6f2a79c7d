"""One producer of the benchmark `flow`: `python -m benchmarks.producer DSN STATEMENT RATE SECONDS PHASE`.

It connects, writes an event, and waits for the end of its input. Then it sends the statement with a number, at a rate
in a second (0: as fast as it can), PHASE of a period after the first of all producers, and writes an event for each
call when all are done: its number, and when the call returned.
"""

from __future__ import annotations

import sys
import time

import psycopg

from .probe import EVENT, READY


def main() -> None:
    dsn, statement, rate, seconds, phase = sys.argv[1:]
    every = 1 / float(rate) if float(rate) else 0.0
    first = time.monotonic_ns()
    events = []
    with psycopg.connect(dsn, autocommit=True) as connection:
        sys.stdout.buffer.write(EVENT.pack(READY, first))
        sys.stdout.buffer.flush()
        sys.stdin.read()
        began = time.monotonic()
        due = began + every * float(phase)
        while time.monotonic() < began + float(seconds):
            time.sleep(max(0.0, due - time.monotonic()))
            due += every
            connection.execute(statement.encode(), (first + len(events),))
            events.append(EVENT.pack(first + len(events), time.monotonic_ns()))
    sys.stdout.buffer.write(b"".join(events))


if __name__ == "__main__":
    main()
