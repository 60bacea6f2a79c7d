"""The connections of a worker.

Two links for claims and ends, one for leases, and one for retry functions, made when it is needed: so a claim, a report
that waits for a lock, and the extension of leases never wait for each other. One more connection listens. Claims and
reports of ends take the first of two links that is free. So a worker with little to do uses one, whose session is still
warm from the claim when the job ends; under load both report and claim, and the server always has one of them to work
for. A frozen connection is noticed and replaced before the leases lapse; the second link is for what may wait 5 s for a
lock.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from pgqueue.config import WorkerConfig, worker_dsn
from pgqueue.worker.hold.handoffs import Handoffs
from pgqueue.worker.link.connection import Link
from pgqueue.worker.link.listener import Hearer, Listener
from pgqueue.worker.link.outage import LONGEST_PAUSE, Outage

# The server ends a retry function after this time, in seconds; one that catches that loses its session after the longer
# one.
ASK_WITHIN = 3.0
ANSWER_WITHIN = 5.0

OnConnect = Callable[[Link], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Links:
    """The two connections for claims and reports of ends, one for leases and other calls that must not wait, and one on
    which retry functions are asked, made when it is needed."""

    first: Link
    second: Link
    keeping: Link
    deciding: Link

    def free(self) -> Link:
        """Return the first of the two that has no call under way, or else the first: the second may have a long one."""
        return self.second if self.second.is_free and not self.first.is_free else self.first

    async def close(self) -> None:
        """Close all of them."""
        for link in (self.first, self.second, self.keeping, self.deciding):
            await link.close()


def make_links(
    dsn: str, config: WorkerConfig, outage: Outage, on_connect: OnConnect, on_connect_first: OnConnect
) -> Links:
    """Return the links of a worker, none of them connected yet."""
    lease = config.lease
    return Links(
        Link(dsn, outage, on_connect=on_connect_first, within=max(lease / 2, 2.0)),
        Link(dsn, outage, on_connect=on_connect, within=max(lease / 2, 8.0)),
        # If an outage lasts as long as a lease, pauses of ours must not extend it until the leases are lost.
        Link(dsn, outage, longest_pause=min(lease / 6, LONGEST_PAUSE), within=max(lease / 3, 1.0)),
        Link(dsn, outage, within=ANSWER_WITHIN, ends_after=ASK_WITHIN),
    )


def make_listener(
    dsn: str, config: WorkerConfig, outage: Outage, link: Link, handoffs: Handoffs, hearer: Hearer
) -> Listener:
    """Return the listener of a worker, which tests itself over `link`."""
    if config.listen_dsn is not None:
        dsn = worker_dsn(config.listen_dsn, f"pgqueue {config.name}", config.lease)
        # Another address, which may be away while the first one works.
        outage = Outage(dsn)
    return Listener(dsn, config, outage, link, handoffs, hearer)
