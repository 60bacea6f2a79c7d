"""A command that is interrupted, as by Ctrl-C, while a trigger of the test holds it up by pg_sleep()."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import psycopg

from tests.calls import value
from tests.facts import wait_until

_SLEEPS = "select true from pg_stat_activity where datname = current_database() and wait_event = 'PgSleep'"


def interrupted(conn: psycopg.Connection, dsn: str, *words: str) -> tuple[int, str, str]:
    """Start `pgqueue` with these words, interrupt it once it sleeps; return its exit code, output and errors."""
    process = subprocess.Popen(
        [sys.executable, "-m", "pgqueue", *words],
        env={**os.environ, "PGQUEUE_DSN": dsn},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_until(lambda: value(conn, _SLEEPS))
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=280)
    return process.returncode, out, err
