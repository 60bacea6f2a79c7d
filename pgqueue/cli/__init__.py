"""The command line: `pgqueue`."""

from pgqueue.cli.main import cli, main

__all__ = ["cli", "main"]
