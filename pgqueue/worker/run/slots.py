"""The slots of a process, which the workers of several databases may share.

A worker of one database has them all. With several each database keeps one slot, so that a due job waits for no other
database; also one whose worker has not started yet, or is started again. All others go to the databases with due jobs:
to one alone while it alone has some, in equal parts while several have. A running job keeps its slot: a database gets
its part as jobs of the others end.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from pgqueue.errors import ConfigError


class Member(Protocol):
    """The worker of one database, as the slots see it.

    used         slots in which its jobs run, or will as soon as its claims are answered
    wants        it has more due jobs than slots, or waits for a slot to find out
    concurrency  how many handlers it may run at a time: to be set
    freed        to be set when it should ask again
    """

    freed: asyncio.Event

    @property
    def used(self) -> int: ...
    @property
    def wants(self) -> bool: ...
    @property
    def concurrency(self) -> int: ...
    @concurrency.setter
    def concurrency(self, number: int) -> None: ...


class Slots:
    """Shares `total` slots among the members, of which there are to be `expected`."""

    def __init__(self, total: int, expected: int) -> None:
        if total < expected:
            raise ConfigError(
                f"concurrency is {total} for {expected} databases", hint="give at least one slot for each database"
            )
        self._total = total
        self._expected = expected
        # The slots of a member that is alone.
        self._given = 0
        self._members: list[Member] = []

    @property
    def concurrency(self) -> int:
        """How many handlers run at a time, of all databases."""
        return self._total

    @concurrency.setter
    def concurrency(self, number: int) -> None:
        self._total = max(number, len(self._members), self._expected)
        self.settle()

    @property
    def running(self) -> int:
        """Slots in use."""
        return sum(member.used for member in self._members)

    @property
    def wanted(self) -> bool:
        """Whether a database has more due jobs than slots."""
        return any(member.wants for member in self._members)

    def join(self, member: Member) -> None:
        """Add a database."""
        self._members.append(member)
        self._given = 0
        self._total = max(self._total, len(self._members))
        self.settle()

    def leave(self, member: Member) -> None:
        """The worker of a database has ended. Its slot is kept for the one that follows it, see `expect_fewer`."""
        if member in self._members:
            self._members.remove(member)
            self.freed()

    def expect_fewer(self) -> None:
        """A database is served no more."""
        self._expected -= 1
        self.freed()

    def settle(self) -> None:
        """Set how many handlers each member may run now. To be called before each claim."""
        absent = max(self._expected - len(self._members), 0)
        if len(self._members) == 1 and not absent:
            if self._given != self._total:
                self._given = self._members[0].concurrency = self._total
            return
        self._given = 0
        wanting = [member for member in self._members if member.wants]
        for member in self._members:
            # Anew for each: what one got is no longer free.
            kept = [max(each.used, 1) for each in self._members if each is not member]
            number = self._total - absent - sum(kept)
            contenders = [each for each in wanting if each is not member]
            if contenders:
                # An equal part of what the others leave, who want no more.
                idle = [max(each.used, 1) for each in self._members if each is not member and each not in contenders]
                part, rest = divmod(self._total - absent - sum(idle), len(contenders) + 1)
                place = wanting.index(member) if member in wanting else len(wanting)
                number = min(number, part + (place < rest))
            if member.concurrency != max(1, number):
                member.concurrency = max(1, number)

    def answered(self, is_short: bool) -> None:
        """A claim was answered, maybe with fewer jobs than it asked for: until now its slots counted as used.

        Another claim may have been sized meanwhile.
        """
        self.settle()
        if is_short:
            self.freed()

    def freed(self) -> None:
        """A slot has become free: members that want one claim again."""
        for member in self._members:
            if len(self._members) == 1 or member.wants:
                member.freed.set()
