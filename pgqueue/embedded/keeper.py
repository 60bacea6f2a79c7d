"""The embedded server's keeper: create the cluster, run the server, stop it when it is not used any more.

`server.py` runs this file as a script, with `python -I -S` and the standard library alone (13 MB, 40 ms
to start), in its own session. A separate process, because a user of the server that is killed cannot clean up.

**As root.** PostgreSQL refuses to run with the effective user id 0, so the server runs as `nobody`. That
account can go neither into /root, where the project and the virtual environment may lie, nor into our own
directory. So it keeps one capability, CAP_DAC_OVERRIDE (as an ambient one, which survives `exec`), and no
path is opened to others and no system user created. A container's root has what this takes by default. Not
a user namespace: Docker's seccomp profile and many hardened kernels forbid them, and root cannot enter
other users' directories there. The server thus reads and writes what root can, which is why its socket and
its data lie in directories of root's with mode 0700: only root can talk to it, or touch its files.
A directory that belongs to an ordinary user is served as that user, also if root starts it.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import NoReturn

_PR_SET_PDEATHSIG = 1
_PR_SET_SECUREBITS = 28
_SECBIT_NO_SETUID_FIXUP = 4
_PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_RAISE = 2
_CAP_DAC_OVERRIDE = 1
_CAPABILITY_VERSION_3 = 0x20080522


@dataclass(frozen=True, slots=True)
class Order:
    """The request of the starting process. `lock` is the inherited, locked descriptor of server.lock."""

    directory: str
    socket: str
    bindir: str
    lock: int
    durable: bool
    settings: dict[str, str]


def main(order: Order) -> None:
    """Run the server until its last user has gone, it ends by itself, or SIGTERM comes."""
    os.umask(0o077)
    signal.signal(signal.SIGTERM, _leave)
    directory = Path(order.directory)
    owner = directory.stat().st_uid
    if os.geteuid() == 0 and owner != 0:
        _become(pwd.getpwuid(owner))
    account = _server_account() if os.geteuid() == 0 else None

    _create_cluster(order, directory / "data", account)
    socket = _socket_directory(Path(order.socket))
    ours = [(each, each.stat().st_ino) for each in (directory, socket)]
    try:
        _point(directory / "socket", socket)
        _serve(order, directory, socket, account)
    finally:
        # Where the directory was deleted and made anew, another keeper has both by now.
        if _is_still(*ours[0]):
            (directory / "socket").unlink(missing_ok=True)
        if _is_still(*ours[1]):
            shutil.rmtree(socket, ignore_errors=True)


def _serve(order: Order, directory: Path, socket: Path, account: pwd.struct_passwd | None) -> None:
    users = os.open(directory / "users.lock", os.O_RDWR)
    server = subprocess.Popen(
        [f"{order.bindir}/postgres", "-D", str(directory / "data"), "-k", str(socket)]
        + [argument for name, value in order.settings.items() for argument in ("-c", f"{name}={value}")],
        # With the lock: a server whose keeper was killed still counts as one.
        pass_fds=(order.lock,),
        preexec_fn=_preparation(account),
    )
    try:
        signal.signal(signal.SIGCHLD, _leave)
        if server.poll() is None:
            _wait_for_end_of_use(users)
    finally:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if server.poll() is None:
            server.send_signal(signal.SIGINT)  # "fast": open transactions are rolled back
        server.wait()


def _wait_for_end_of_use(users: int) -> None:
    """Return with the users' lock when no user is left, and the last one asked to keep the server no longer.

    The time until which it is kept is that of the file: see `_Use.keep`.
    """
    while True:
        # Every user holds a share of this lock; new ones wait from here until we have ended.
        fcntl.flock(users, fcntl.LOCK_EX)
        file = os.fstat(users)
        left = file.st_mtime - time.time()
        # The clock may have been set back, and the directory deleted.
        if not 0 < left <= _LONGEST or file.st_nlink == 0:
            return
        fcntl.flock(users, fcntl.LOCK_UN)
        time.sleep(min(left, 1.0))


# No server is kept longer than this after its last use, in seconds.
_LONGEST = 3600.0


def _is_still(directory: Path, inode: int) -> bool:
    try:
        return directory.stat().st_ino == inode
    except OSError:
        return False


def _leave(signum: int, frame: FrameType | None) -> NoReturn:
    sys.exit(0)


def _create_cluster(order: Order, data: Path, account: pwd.struct_passwd | None) -> None:
    if data.exists():
        return
    # Made under another name, so that a cluster is there entirely or not at all.
    unfinished = data.with_name("data.new")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(mode=0o700)
    if account is not None:
        os.chown(unfinished, account.pw_uid, account.pw_gid)
    said = subprocess.run([f"{order.bindir}/initdb", "--version"], capture_output=True, text=True, check=True).stdout
    major = int(re.findall(r"\d+", said)[0])
    subprocess.run(
        [f"{order.bindir}/initdb", "-D", str(unfinished), "--username=postgres", "--encoding=UTF8", "--locale=C"]
        # PostgreSQL's own collation: the same order on every machine, and no upgrade of libc breaks an index.
        + (["--locale-provider=builtin", "--builtin-locale=C.UTF-8"] if major >= 17 else [])
        # No other user can enter the directory of the socket, so no password is needed.
        + ["--auth=trust"]
        + ([] if order.durable else ["--no-sync"]),
        check=True,
        stdout=subprocess.DEVNULL,
        preexec_fn=_preparation(account),
    )
    unfinished.rename(data)


def _socket_directory(wanted: Path) -> Path:
    """Make the directory of the socket: the requested one, or another one if a foreign directory has that name."""
    # Nothing in it is in use, for we hold server.lock. In a temp directory no other user can remove or replace it.
    if wanted.is_dir() and not wanted.is_symlink() and wanted.stat().st_uid == os.geteuid():
        shutil.rmtree(wanted, ignore_errors=True)
    try:
        wanted.mkdir(mode=0o700)
    except OSError:
        return Path(tempfile.mkdtemp(prefix="pgqueue-", dir=wanted.parent))
    return wanted


def _point(link: Path, target: Path) -> None:
    new = link.with_name("socket.new")
    new.unlink(missing_ok=True)
    new.symlink_to(target)
    new.replace(link)


def _server_account() -> pwd.struct_passwd:
    try:
        return pwd.getpwnam("nobody")
    except KeyError:
        sys.exit("FATAL:  PostgreSQL does not run as root, and there is no account `nobody` to run it as")


def _become(account: pwd.struct_passwd) -> None:
    os.setgroups([])
    os.setgid(account.pw_gid)
    os.setuid(account.pw_uid)


def _preparation(account: pwd.struct_passwd | None) -> Callable[[], None]:
    """Prepare a child before it becomes `initdb` or `postgres`. (Safe: we have no threads.)"""
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None

    def prepare() -> None:
        if account is not None:
            # Without this bit a change of user drops the capabilities, and access(2), by which the programs
            # look for each other, disregards the remaining ones.
            keeps = libc is not None and libc.prctl(_PR_SET_SECUREBITS, _SECBIT_NO_SETUID_FIXUP, 0, 0, 0) == 0
            _become(account)
            if libc is not None and keeps:
                _keep_only_access_to_files(libc)
        if libc is not None:
            # After the change of user, which clears it. The server does not outlive a killed keeper.
            libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGINT), 0, 0, 0)

    return prepare


def _keep_only_access_to_files(libc: ctypes.CDLL) -> None:
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    mask = 1 << _CAP_DAC_OVERRIDE
    # Two of (effective, permitted, inheritable): for the capabilities 0 to 31 and 32 to 63.
    if libc.capset(header, (ctypes.c_uint32 * 6)(mask, mask, mask, 0, 0, 0)) == 0:
        libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, _CAP_DAC_OVERRIDE, 0, 0)
    else:
        # A root without it. The server starts if `nobody` reaches the paths, and else names the one that
        # it cannot open.
        libc.capset(header, (ctypes.c_uint32 * 6)())


if __name__ == "__main__":
    if os.fork() != 0:
        os._exit(0)  # the process that started us waits for this one, not for a child
    try:
        main(Order(**json.loads(sys.argv[1])))
    except subprocess.CalledProcessError as error:
        # The output of initdb is above, in the log; `server.py` puts the last lines into its message.
        sys.exit(f"FATAL:  {Path(error.cmd[0]).name} ended with {error.returncode}")
    except OSError as error:
        sys.exit(f"FATAL:  {error}")
