"""Arrays of texts, as PostgreSQL takes them in binary format.

psycopg quotes each text of a list by a regular expression in Python: a message of 10 MB takes 12 s, in which the event
loop does nothing else. In binary format nothing is quoted, and no setting of the session (array_nulls) changes what a
value means.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any

from psycopg import pq
from psycopg.adapt import Buffer, Dumper

from pgqueue.errors import InvalidArgument

# The oids of the type text and of its arrays.
_TEXT, _TEXTS = 25, 1009

_NULL = b"\xff\xff\xff\xff"


def elements(name: str, values: Iterable[Any]) -> list[Any]:
    """Return values for an array. Raises InvalidArgument, naming `name`, for a None among them.

    A session with array_nulls = off reads NULL among texts as a text.
    """
    found = list(values)
    if any(each is None for each in found):
        raise InvalidArgument(f"{name} holds None", hint="leave it out")
    return found


class Texts(list[bytes | None]):
    """An argument for `%s::text[]`: texts in UTF-8, or nulls."""


def texts(values: Iterable[str | None]) -> Texts:
    """Return an argument for `%s::text[]`."""
    return Texts(
        # A lone surrogate is refused by the server, like any value that is wrong.
        None if value is None else value.encode("utf-8", "surrogatepass")
        for value in values
    )


class TextsDumper(Dumper):
    """Sends Texts."""

    format = pq.Format.BINARY
    oid = _TEXTS

    def dump(self, obj: Texts) -> Buffer | None:
        if not obj:
            return struct.pack("!III", 0, 0, _TEXT)
        parts = [struct.pack("!IIIII", 1, None in obj, _TEXT, len(obj), 1)]
        for value in obj:
            if value is None:
                parts.append(_NULL)
            else:
                parts += (len(value).to_bytes(4), value)
        return b"".join(parts)
