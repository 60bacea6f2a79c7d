"""Listen for NOTIFY on a connection of its own."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress

import psycopg
from psycopg import sql

from pgqueue.link import FIRST_PAUSE, LONGEST_PAUSE, Outage, connect

log = logging.getLogger("pgqueue.worker")

# Producers above READ COMMITTED cannot see who sleeps: they notify everybody here, with the queue as payload.
COMMON_CHANNEL = "pgqueue"


async def listen_forever(
    dsn: str,
    outage: Outage,
    channel: str,
    queues: Sequence[str] | None,
    on_wake: Callable[[], None],
    on_cancel: Callable[[], None],
) -> None:
    """Call `on_wake` and `on_cancel` as notifications come; connect again when the connection breaks.

    `on_wake` is also called after each (re)connect, for what was announced while nobody listened.
    """
    pause = FIRST_PAUSE
    down = False
    while True:
        connection = None
        try:
            connection = await connect(dsn)
            for name in (channel, COMMON_CHANNEL):
                await connection.execute(sql.SQL("listen {}").format(sql.Identifier(name)))
            if down:
                outage.ends()
                down = False
            pause = FIRST_PAUSE
            on_wake()
            async for notification in connection.notifies():
                if notification.channel == COMMON_CHANNEL:
                    if queues is None or notification.payload in queues:
                        on_wake()
                elif notification.payload == "cancel":
                    on_cancel()
                else:
                    on_wake()
        except (psycopg.Error, OSError, TimeoutError) as error:
            if not down:
                down = True
                outage.begins(error)
        finally:
            if connection is not None:
                with suppress(psycopg.Error, OSError):
                    await connection.close()
        await outage.pause(pause)
        pause = min(pause * 2, LONGEST_PAUSE)
