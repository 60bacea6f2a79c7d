"""Check that what serves can be served, before anything else is started: the port is free, the extra is there."""

from __future__ import annotations

import errno
import socket
from importlib.util import find_spec

from pgqueue.errors import ConfigError

# This machine lacks this address of the name; another address may work.
_PASSED_OVER = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


def check_extra_web() -> None:
    """Raise ConfigError without the extra that the pages need."""
    if any(find_spec(name) is None for name in ("starlette", "jinja2", "uvicorn", "psycopg_pool")):
        raise ConfigError("the pages need the extra web", hint="pip install 'pgqueue-sql[web]'")


def check_free(host: str, port: int) -> None:
    """Raise ConfigError for a port that cannot be listened on."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise ConfigError(f"there is no address {host} to listen on: {error.strerror}", hint="give --host") from error
    for family, _, _, _, address in found:
        try:
            socket.create_server(address[:2], family=family).close()
        except OSError as error:
            if error.errno in _PASSED_OVER:
                continue
            taken = error.errno == errno.EADDRINUSE
            why = "is taken by another program" if taken else f"cannot be listened on: {error.strerror}"
            raise ConfigError(f"port {port} of {host} {why}", hint="give another one with --port") from error
