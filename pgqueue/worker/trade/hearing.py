"""Handle notifications."""

from __future__ import annotations

from pgqueue.worker.hold.held import Holding
from pgqueue.worker.presence.orders import Orders
from pgqueue.worker.presence.registration import Registration
from pgqueue.worker.process.requests import Requests
from pgqueue.worker.trade.intake import Intake
from pgqueue.worker.trade.sleeper import Sleeper


class Hearing:
    """Hands each notification on; the listener calls it."""

    def __init__(
        self,
        registration: Registration,
        requests: Requests,
        holding: Holding,
        intake: Intake,
        sleeper: Sleeper,
        orders: Orders,
    ) -> None:
        self._registration = registration
        self._requests = requests
        self._holding = holding
        self._intake = intake
        self._sleeper = sleeper
        self._orders = orders

    @property
    def channel(self) -> str:
        """The worker's own channel."""
        return self._registration.channel

    def woken(self) -> None:
        """A job is ready."""
        self._requests.wake.set()

    def committed(self, at: float) -> None:
        """The transaction that announced a job began to commit then."""
        self._intake.committed(at)

    def due_soon(self) -> None:
        """A job is to become ready while this worker is idle."""
        self._sleeper.due_changed()

    def handed_off(self, payload: str) -> None:
        """A job was reserved for this worker."""
        self._intake.handed_off(payload)

    def cancel_asked(self) -> None:
        """A job of this worker is to be cancelled: the extension of its lease says which one."""
        self._holding.extend_now.set()

    def command_asked(self) -> None:
        """An operator has given this worker a command."""
        self._orders.asked_now.set()

    def withdrawn(self) -> None:
        """The listening connection does not answer: nothing may be handed over any more."""
        self._intake.leave_idle()

    def replaced(self) -> None:
        """Notifications may have been lost with the connection before."""
        self._intake.compare_soon()
