"""The users of the pages, and their rights."""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from starlette.requests import Request

# read: the pages; args: args, headers and results of jobs; act: run, retry, cancel, pause, resume, make a worker quiet;
# delete: delete, kill, purge, stop a worker; schedule: schedules; limits: limits, and options of queues and tasks.
EVERYTHING = frozenset({"read", "args", "act", "delete", "schedule", "limits"})


@dataclass(frozen=True, slots=True)
class User:
    """A user; the audit records the name. No user has more rights than the database's role."""

    name: str
    can: frozenset[str] | set[str] = field(default=EVERYTHING)


# Returns the user, or None: then the answer is 401.
Authorize = Callable[[Request], User | Awaitable[User | None] | None]


def by_password(name: str, password: str) -> Authorize:
    """Admit one user, by HTTP basic authentication."""
    expected = f"{name}:{password}".encode()

    def authorize(request: Request) -> User | None:
        kind, _, given = request.headers.get("authorization", "").partition(" ")
        try:
            found = base64.b64decode(given, validate=True) if kind.lower() == "basic" else b""
        except (binascii.Error, ValueError):
            return None
        return User(name) if hmac.compare_digest(found, expected) else None

    return authorize


def by_header(header: str) -> Authorize:
    """Trust a header that a proxy sets; no request may reach the server past that proxy."""

    def authorize(request: Request) -> User | None:
        name = request.headers.get(header, "").strip()
        return User(name[:256]) if name else None

    return authorize


def anyone(request: Request) -> User | None:
    """Admit every visitor, as one anonymous user."""
    return User("web")
