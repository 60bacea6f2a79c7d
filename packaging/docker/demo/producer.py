"""Enqueues a job each second, until it is stopped."""

import itertools
import os
import time

import psycopg

from pgqueue import enqueue

with psycopg.connect(os.environ["PGQUEUE_DSN"], autocommit=True) as connection:
    for number in itertools.count(1):
        enqueue(connection, "send", {"to": f"customer-{number}@example.com"}, queue="mail")
        time.sleep(1)
