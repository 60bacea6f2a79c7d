"""Three PostgreSQL servers under Patroni, with etcd, on this machine: to see a failover, and to test it.

    python -m examples.failover.cluster              starts it, prints its DSN, and runs until Ctrl-C
    python -m examples.failover.cluster --async      the same with asynchronous standbys

Needs Debian's postgresql-15, patroni and etcd-server. On three machines each runs one node of it: what is written to
NAME.yml here is that node's Patroni configuration, with addresses of this machine.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

BINARIES = Path(os.environ.get("PGQUEUE_PATRONI_BINARIES", "/usr/lib/postgresql/15/bin"))
PASSWORD = "only-for-this-machine"

# Seconds. The leader key is lost TTL after the last sign of life of the primary: so long takes a failover at least
# when the machine of the primary is gone. Patroni asks for LOOP_WAIT + 2 * RETRY_TIMEOUT <= TTL.
TTL, LOOP_WAIT, RETRY_TIMEOUT = 20, 2, 5


def missing() -> str:
    """Say what this machine lacks for it; empty when nothing."""
    lacks = [name for name in ("patroni", "etcd") if shutil.which(name) is None]
    if not (BINARIES / "postgres").exists():
        lacks.append("postgresql-15")
    return f"not installed: {', '.join(lacks)}: apt-get install postgresql-15 patroni etcd-server" if lacks else ""


def free_port() -> int:
    """Return a port on which nothing listens now."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


class Node:
    """One server and its Patroni. `seen_at`: the port at which others reach the server, `etcd`: where it finds etcd."""

    def __init__(self, name: str, directory: Path) -> None:
        self.name = name
        self.data = directory / name
        self.config = directory / f"{name}.yml"
        self.log = directory / f"{name}.log"
        self.port, self.api = free_port(), free_port()
        self.seen_at = self.port
        self.etcd = 0
        self.process: subprocess.Popen[bytes] | None = None

    def role(self) -> str:
        """Ask its Patroni: primary, replica, or what is the matter."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.api}/patroni", timeout=2) as reply:
                found: dict[str, Any] = json.load(reply)
        except urllib.error.HTTPError as error:
            found = json.load(error)
        except OSError as error:
            return str(error)
        state = str(found.get("state"))
        return (
            {"master": "primary"}.get(str(found.get("role")), str(found.get("role"))) if state == "running" else state
        )

    def postmaster(self) -> int | None:
        """Return the process id of the server; None while it does not run."""
        try:
            return int((self.data / "postmaster.pid").read_text().split()[0])
        except (OSError, IndexError, ValueError):
            return None


class Cluster:
    """Three nodes and etcd in a directory. `synchronous`: a commit waits for one standby."""

    def __init__(self, directory: Path, *, synchronous: bool = True) -> None:
        self.directory = directory
        self.synchronous = synchronous
        self.nodes = [Node(name, directory) for name in ("one", "two", "three")]
        self.etcd_port = free_port()
        self._etcd: subprocess.Popen[bytes] | None = None
        for node in self.nodes:
            node.etcd = self.etcd_port

    @property
    def dsn(self) -> str:
        """A DSN that names all three servers: clients look for the primary themselves."""
        hosts = ",".join(f"127.0.0.1:{node.seen_at}" for node in self.nodes)
        return f"postgresql://postgres:{PASSWORD}@{hosts}/postgres?target_session_attrs=read-write&connect_timeout=2"

    def start(self) -> None:
        """Start all, and wait until there is a primary and two standbys that follow it."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self.directory.chmod(0o755)
        self._own(self.directory)
        peers = free_port()
        url = f"http://127.0.0.1:{self.etcd_port}"
        options = {"data-dir": str(self.directory / "etcd"), "listen-client-urls": url, "advertise-client-urls": url}
        options |= {
            "listen-peer-urls": f"http://127.0.0.1:{peers}",
            "initial-advertise-peer-urls": f"http://127.0.0.1:{peers}",
        }
        options |= {"initial-cluster": f"default=http://127.0.0.1:{peers}"}
        command = ["etcd", *(f"--{name}={value}" for name, value in options.items())]
        self._etcd = self._run(command, self.directory / "etcd.log")
        _wait(self._etcd_answers, 60, "etcd does not answer", self.directory / "etcd.log")
        for node in self.nodes:
            self.start_node(node)
            if node is self.nodes[0]:
                _wait(lambda: self.nodes[0].role() == "primary", 90, "the first node is no primary", node.log)
        self.wait_for_standbys(2)

    def start_node(self, node: Node) -> None:
        """Start a node, or start it again: it follows the primary that there is."""
        node.config.write_text(json.dumps(self._configuration(node), indent=2))
        self._own(node.config)
        node.process = self._run(["patroni", str(node.config)], node.log)

    def primary(self) -> Node | None:
        """Return the node that says that it is the primary."""
        return next((node for node in self.nodes if node.role() == "primary"), None)

    def wait_for_primary(self, other_than: Node | None = None, seconds: float = 90) -> Node:
        """Wait for a primary, and return it."""
        found: list[Node] = []

        def is_there() -> bool:
            found[:] = [node for node in self.nodes if node is not other_than and node.role() == "primary"]
            return bool(found)

        _wait(is_there, seconds, "there is no primary", self.nodes[0].log)
        return found[0]

    def wait_for_standbys(self, number: int, seconds: float = 120) -> None:
        """Wait until that number of standbys stream, and one of them is synchronous where that is asked for."""
        wanted = "and count(*) filter (where sync_state = 'sync') >= 1" if self.synchronous else ""
        question = f"select count(*) filter (where state = 'streaming') >= {number} {wanted} from pg_stat_replication"

        def is_so() -> bool:
            node = self.primary()
            return node is not None and self.ask(node, question) == "t"

        _wait(is_so, seconds, f"there are no {number} standbys", self.nodes[0].log)

    def ask(self, node: Node, question: str) -> str:
        """Run a statement on a node itself; empty when that is not possible."""
        command = [
            str(BINARIES / "psql"),
            "-XAtq",
            "-c",
            question,
            f"postgresql://postgres@127.0.0.1:{node.port}/postgres",
        ]
        environment = {**os.environ, "PGPASSWORD": PASSWORD, "PGCONNECT_TIMEOUT": "2"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=20, check=False)
        return done.stdout.strip()

    def kill(self, node: Node) -> None:
        """Take the machine of a node away: its server and its Patroni at once, by SIGKILL."""
        if node.process is not None:
            node.process.kill()
        for pid in _family(node.postmaster()):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if node.process is not None:
            node.process.wait()

    def stop(self) -> None:
        """End everything."""
        for node in self.nodes:
            self.kill(node)
        if self._etcd is not None:
            self._etcd.kill()
            self._etcd.wait()

    def _etcd_answers(self) -> bool:
        # A Patroni that starts before etcd knows its own version ends at once.
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.etcd_port}/version", timeout=2) as reply:
                return str(json.load(reply)["etcdcluster"])[0].isdigit()
        except OSError:
            return False

    def _configuration(self, node: Node) -> Mapping[str, Any]:
        dcs = {
            "ttl": TTL, "loop_wait": LOOP_WAIT, "retry_timeout": RETRY_TIMEOUT, "synchronous_mode": self.synchronous,
            # A standby that is further behind is no candidate: in bytes.
            "maximum_lag_on_failover": 1024 * 1024 * 1024,
            # A server that crashed is not waited for.
            "primary_start_timeout": 0,
            "postgresql": {
                "use_pg_rewind": True,
                "parameters": {"wal_log_hints": "on", "max_connections": 150, "wal_keep_size": "512MB"},
            },
        }  # fmt: skip
        account = {"username": "postgres", "password": PASSWORD}
        return {
            "scope": "pgqueue",
            "name": node.name,
            "restapi": {"listen": f"127.0.0.1:{node.api}", "connect_address": f"127.0.0.1:{node.api}"},
            # Through another address it must not learn etcd's own, and go there.
            "etcd3": {"use_proxies": node.etcd != self.etcd_port, "hosts": [f"127.0.0.1:{node.etcd}"]},
            "bootstrap": {
                "dcs": dcs,
                "initdb": [{"encoding": "UTF8"}, {"locale": "C.UTF-8"}, "data-checksums"],
                "pg_hba": [
                    "host all all 127.0.0.1/32 md5",
                    "host replication all 127.0.0.1/32 md5",
                    "local all all trust",
                ],
            },
            "postgresql": {
                "listen": f"127.0.0.1:{node.port}",
                "connect_address": f"127.0.0.1:{node.seen_at}",
                "data_dir": str(node.data),
                "bin_dir": str(BINARIES),
                "pgpass": str(self.directory / f"{node.name}.pgpass"),
                "authentication": {"superuser": account, "replication": account},
                "parameters": {"unix_socket_directories": str(self.directory)},
            },
        }

    def _run(self, command: list[str], log: Path) -> subprocess.Popen[bytes]:
        account: dict[str, Any] = (
            {"user": "postgres", "group": "postgres", "extra_groups": []} if os.geteuid() == 0 else {}
        )
        environment = {name: text for name, text in os.environ.items() if not name.startswith(("PG", "PATRONI"))}
        with log.open("ab") as file:
            return subprocess.Popen(
                command,
                stdout=file,
                stderr=file,
                cwd=self.directory,
                env=environment,
                start_new_session=True,
                **account,
            )

    def _own(self, path: Path) -> None:
        if os.geteuid() == 0:
            shutil.chown(path, "postgres", "postgres")


def _family(pid: int | None) -> list[int]:
    """The server first, so that it starts nothing new; then what it has started."""
    if pid is None:
        return []
    with suppress(OSError):
        return [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]
    return [pid]


def _wait(fact: Any, seconds: float, otherwise: str, log: Path) -> None:
    deadline = time.monotonic() + seconds
    while not fact():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{otherwise} after {seconds:g} s; {log} ends: {log.read_text()[-2000:]}")
        time.sleep(0.2)


def main() -> int:
    """Start a cluster, and run it until Ctrl-C."""
    if why := missing():
        sys.stderr.write(f"{why}\n")
        return 2
    # The servers have sessions of their own, and would outlive this process.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    directory = Path(tempfile.mkdtemp(prefix="pgqueue-cluster-"))
    cluster = Cluster(directory, synchronous="--async" not in sys.argv)
    try:
        cluster.start()
        sys.stdout.write(f"export PGQUEUE_DSN='{cluster.dsn}'\n")
        for node in cluster.nodes:
            sys.stdout.write(f"# {node.name}: {node.role()}, Patroni {node.process.pid if node.process else ''},")
            sys.stdout.write(f" server {node.postmaster()}, patronictl -c {node.config} list\n")
        sys.stdout.flush()
        while True:
            signal.pause()
    except KeyboardInterrupt:
        pass
    finally:
        cluster.stop()
        shutil.rmtree(directory, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
