"""The tasks of the example applications."""

import os

from pgqueue import App

DSN = os.environ.get("PGQUEUE_DSN", "")

queue = App()


@queue.task
def send_receipt(to: str) -> None:
    print(f"receipt for {to}")  # noqa: T201
