"""What is requested of one worker, shared by its parts."""

from __future__ import annotations

import asyncio


class Requests:
    """Requests to a worker, and the events that wake its loops."""

    def __init__(self) -> None:
        self.stopping = asyncio.Event()
        # Claims no more jobs, and keeps running.
        self.quiet = False
        # Ends when all running jobs have ended.
        self.retiring = False
        # A notification came, or there is another reason to claim now.
        self.wake = asyncio.Event()
        # A job ended, or there is another reason to ask for the capacity again.
        self.freed = asyncio.Event()

    def stop(self) -> None:
        """Claim no more jobs, and let the worker end."""
        self.stopping.set()
        self.rouse()

    def rouse(self) -> None:
        """Wake the claiming loop."""
        self.wake.set()
        self.freed.set()
