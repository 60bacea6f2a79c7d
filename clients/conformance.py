"""What every client of the queue must do: run `python clients/conformance.py --dsn postgresql://... [CLIENT ...]`.

The database must hold the queue (`pgqueue migrate`), and be for testing: two tables are created in it. Clients whose
toolchain or driver is not here are named as not run; one that does not compile has failed. JDBC has no unix sockets:
for Java the DSN must name a TCP host.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

HERE = Path(__file__).parent

# Short, so that extending it and losing it take seconds.
LEASE = 3

# A number that a double does not hold: it becomes the one below.
LARGE = 2**53 + 1

# What handlers write. `seconds` is how long a handler is to sleep: only at its first attempt.
TABLES = """
create table if not exists client_orders (note text);
create table if not exists client_notes (
    id bigint generated always as identity, job_id bigint, args jsonb, at timestamptz default clock_timestamp(),
    seconds float8 not null default 0
);
create or replace function client_notes_seconds() returns trigger language plpgsql as $$
begin
    if not exists (select from client_notes n where n.job_id = new.job_id) then
        new.seconds := coalesce((new.args ->> 'seconds')::float8, 0);
    end if;
    return new;
end $$;
create or replace trigger seconds before insert on client_notes for each row execute function client_notes_seconds();
"""


class NotHere(Exception):
    """The toolchain of a client, or its driver, is not on this machine."""


class DoesNotCompile(Exception):
    """The toolchain and the driver are here, and refuse the client."""


@dataclass(frozen=True)
class Client:
    """`command` runs it, after `build`."""

    command: Sequence[str]
    environment: dict[str, str]


def needs(*programs: str) -> None:
    missing = [each for each in programs if shutil.which(each) is None]
    if missing:
        raise NotHere(f"{', '.join(missing)} not installed")


def find(*command: str, cwd: Path, **environment: str) -> None:
    """Run what looks for the driver, or fetches it. NotHere when it fails."""
    if said := _run(command, cwd, environment):
        raise NotHere(f"{' '.join(command[:3])}: {said.splitlines()[-1]}")


def compile_it(*command: str, cwd: Path, **environment: str) -> None:
    """Run the compiler. DoesNotCompile, with what it says, when it fails."""
    if said := _run(command, cwd, environment):
        raise DoesNotCompile(f"{' '.join(command[:3])}:\n{said}")


def _run(command: Sequence[str], cwd: Path, environment: dict[str, str]) -> str | None:
    """Run a command. What it said when it failed, else None."""
    done = subprocess.run(
        command, cwd=cwd, env=os.environ | environment, capture_output=True, text=True, timeout=600, check=False
    )
    if not done.returncode:
        return None
    return f"{done.stdout}\n{done.stderr}".strip() or f"exit code {done.returncode}"


def copied(name: str, scratch: Path) -> Path:
    return Path(shutil.copytree(HERE / name, scratch / name, ignore=shutil.ignore_patterns("node_modules", "target")))


def build_bash(scratch: Path, dsn: str) -> Client:
    needs("bash", "psql", "stdbuf")
    compile_it("bash", "-n", str(HERE / "bash" / "client.sh"), cwd=scratch)
    return Client([str(HERE / "bash" / "client.sh")], {})


def build_typescript(scratch: Path, dsn: str) -> Client:
    needs("node", "npm")
    place = copied("typescript", scratch)
    find("npm", "install", "--silent", "--no-audit", "--no-fund", cwd=place)
    compile_it("npm", "run", "--silent", "build", cwd=place)
    return Client(["node", str(place / "build" / "client.js")], {})


def build_ruby(scratch: Path, dsn: str) -> Client:
    needs("ruby")
    find("ruby", "-e", "require 'pg'", cwd=scratch)
    compile_it("ruby", "-c", str(HERE / "ruby" / "client.rb"), cwd=scratch)
    return Client(["ruby", str(HERE / "ruby" / "client.rb")], {})


def build_php(scratch: Path, dsn: str) -> Client:
    needs("php")
    find("php", "-r", "exit(extension_loaded('pdo_pgsql') && extension_loaded('pcntl') ? 0 : 1);", cwd=scratch)
    compile_it("php", "-l", str(HERE / "php" / "client.php"), cwd=scratch)
    return Client(["php", str(HERE / "php" / "client.php")], {})


def build_java(scratch: Path, dsn: str) -> Client:
    needs("java", "javac")
    jar = os.environ.get("PGQUEUE_JDBC_JAR", "/usr/share/java/postgresql.jar")
    if not Path(jar).exists():
        raise NotHere("no postgresql.jar: name it in PGQUEUE_JDBC_JAR, or apt-get install libpostgresql-jdbc-java")
    parts = conninfo_to_dict(dsn)
    if str(parts.get("host", "/")).startswith("/"):
        raise NotHere("JDBC needs a TCP host, and the DSN names a unix socket")
    compile_it("javac", "-cp", jar, "-d", str(scratch / "java"), "Client.java", cwd=HERE / "java")
    user = f"?user={parts.get('user', '')}" + (f"&password={parts['password']}" if "password" in parts else "")
    jdbc = f"jdbc:postgresql://{parts['host']}:{parts.get('port', 5432)}/{parts['dbname']}{user}"
    return Client(
        ["java", "-XX:TieredStopAtLevel=1", "-cp", f"{scratch / 'java'}:{jar}", "Client"], {"PGQUEUE_JDBC": jdbc}
    )


def build_go(scratch: Path, dsn: str) -> Client:
    needs("go")
    place = copied("go", scratch)
    debian = Path("/usr/share/gocode/src/github.com/jackc/pgx/v4")
    caches = {"GOCACHE": str(Path(tempfile.gettempdir()) / "pgqueue-go-cache"), "GOFLAGS": ""}
    if debian.exists():
        # Debian's is the version before, with the same functions.
        (place / "go.mod").unlink()
        source = place / "client.go"
        source.write_text(source.read_text().replace("pgx/v5", "pgx/v4"))
        caches |= {"GO111MODULE": "off", "GOPATH": "/usr/share/gocode"}
    else:
        find("go", "mod", "tidy", cwd=place, **caches)
    compile_it("go", "build", "-o", "client", "client.go", cwd=place, **caches)
    return Client([str(place / "client")], {})


def build_rust(scratch: Path, dsn: str) -> Client:
    needs("cargo")
    place = copied("rust", scratch)
    options: list[str] = []
    if Path("/usr/share/cargo/registry/tokio-postgres-0.7.7").exists():
        # The sources that Debian packages.
        options += ["--config", 'source.crates-io.replace-with="debian"', "--offline"]
        options += ["--config", 'source.debian.directory="/usr/share/cargo/registry"']
    target = Path(tempfile.gettempdir()) / "pgqueue-rust-target"
    target.mkdir(exist_ok=True)
    find("cargo", "fetch", *options, cwd=place)
    # The crates are compiled once for all. The client is taken out before another build replaces it, and is touched:
    # cargo compares times, and the source of an earlier build may be younger than this one.
    with (target / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        (place / "src" / "main.rs").touch()
        compile_it("cargo", "build", "--quiet", *options, cwd=place, CARGO_TARGET_DIR=str(target))
        return Client([str(shutil.copy2(target / "debug" / "pgqueue-client", scratch))], {})


BUILD: dict[str, Callable[[Path, str], Client]] = {
    "bash": build_bash,
    "typescript": build_typescript,
    "ruby": build_ruby,
    "php": build_php,
    "java": build_java,
    "go": build_go,
    "rust": build_rust,
}


class Conformance:
    """The checks of one client, on its own queue."""

    def __init__(self, name: str, client: Client, dsn: str, scratch: Path) -> None:
        self.queue = f"conformance-{name}"
        self.client = client
        self.dsn = dsn
        self.db = psycopg.connect(dsn, autocommit=True)
        self.db.execute(TABLES)
        self.log = scratch / f"{name}.log"
        parts = {key: str(value) for key, value in conninfo_to_dict(dsn).items()}
        names = {"host": "PGHOST", "port": "PGPORT", "dbname": "PGDATABASE", "user": "PGUSER", "password": "PGPASSWORD"}
        libpq = {variable: parts[part] for part, variable in names.items() if part in parts}
        self.environment = os.environ | libpq | client.environment | {"PGQUEUE_DSN": dsn, "PGQUEUE_LEASE": str(LEASE)}

    def close(self) -> None:
        self.db.close()

    def check_all(self) -> list[str]:
        """Run every check; returns their names. AssertionError, with the client's log, for one that fails."""
        checks = [
            getattr(self, name) for name in vars(Conformance) if name.startswith("check_") and name != "check_all"
        ]
        for check in checks:
            try:
                check()
            except (AssertionError, subprocess.SubprocessError) as error:
                log = self.log.read_text()[-3000:] if self.log.exists() else ""
                raise AssertionError(f"{check.__name__}: {error}\n{log}") from error
        return [check.__name__.removeprefix("check_").replace("_", " ") for check in checks]

    def check_it_enqueues_in_a_transaction_of_its_own(self) -> None:
        orders = self.one("select count(*) from client_orders")
        command = [*self.client.command, "enqueue", "note", f'{{"n": {LARGE}}}', self.queue, "a key"]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        row = self.row("select task, args, queue, key from pgqueue.jobs where id = %s", int(done.stdout))
        assert row == ("note", {"n": LARGE}, self.queue, "a key"), row
        assert self.one("select count(*) from client_orders") == orders + 1
        command[-3] = "this is no JSON"
        refused = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=60, check=False)
        assert refused.returncode != 0
        assert self.one("select count(*) from client_orders") == orders + 1, "the order of a refused job was committed"
        self.db.execute("select pgqueue.purge_queue(%s)", [self.queue])

    def check_fifty_jobs_run_once_each_and_one_fails(self) -> None:
        ids = [self.enqueue("note", n=LARGE + n) for n in range(50)]
        failing = self.enqueue("fail", options="max_attempts => 1")
        with self.worker():
            self.until(lambda: self.states(ids) == {"succeeded": 50}, 60)
            self.until(lambda: self.states([failing]) == {"dead": 1}, 30)
        assert self.one("select count(*) from client_notes where job_id = any(%s)", ids) == 50
        numbers = self.one(
            "select array_agg((args ->> 'n')::bigint order by job_id) from client_notes where job_id >= %s", ids[0]
        )
        assert numbers == [LARGE + n for n in range(50)], "numbers were changed on their way"
        assert "no such order" in str(self.one("select errors from pgqueue.history where id = %s", failing))

    def check_jobs_of_a_key_run_in_order_on_two_workers(self) -> None:
        ids = [self.enqueue("note", n=n, options="key => 'k'") for n in range(8)]
        with self.worker(), self.worker():
            self.until(lambda: self.states(ids) == {"succeeded": 8}, 30)
        order = self.db.execute("select job_id from client_notes where job_id = any(%s) order by id", [ids]).fetchall()
        assert [row[0] for row in order] == ids, order

    def check_a_running_job_is_cancelled_and_the_worker_goes_on(self) -> None:
        with self.worker():
            job = self.enqueue("note", seconds=60)
            self.until(lambda: self.notes(job) == 1)
            assert self.one("select pgqueue.cancel(%s)", job) == "requested"
            self.until(lambda: self.states([job]) == {"cancelled": 1})
            after = self.enqueue("note", n=1)
            self.until(lambda: self.states([after]) == {"succeeded": 1})

    def check_a_killed_workers_job_runs_again(self) -> None:
        with self.worker() as first:
            job = self.enqueue("note", seconds=60)
            self.until(lambda: self.notes(job) == 1)
            os.killpg(first.pid, signal.SIGKILL)
            first.wait()
        with self.worker():
            self.until(lambda: self.states([job]) == {"succeeded": 1}, 30)
        assert self.notes(job) == 2

    def check_a_job_longer_than_its_lease_runs_once(self) -> None:
        with self.worker(), self.worker():
            job = self.enqueue("note", seconds=2.5 * LEASE)
            self.until(lambda: self.notes(job) == 1)
            now = self.one("select clock_timestamp()")
            beats = "select w.last_heartbeat_at > %s from pgqueue.worker_status w"
            beats += " where w.worker = (select j.reserved_by from pgqueue.all_jobs j where j.id = %s)"
            # A worker that sends no heartbeat while it is busy counts as dead, and is deregistered in the end.
            self.until(lambda: self.one(beats, now, job), 2 * LEASE)
            self.until(lambda: self.states([job]) == {"succeeded": 1}, 30)
        assert self.notes(job) == 1

    def check_an_end_whose_row_is_locked_is_stored_when_it_is_free(self) -> None:
        with self.worker() as worker:
            job = self.enqueue("note", seconds=1)
            self.until(lambda: self.notes(job) == 1)
            following = self.enqueue("note", seconds=2 * LEASE)
            with self.locked(job):
                time.sleep(2)
            # Long enough for a lease that nobody extends to be taken back.
            self.maintain(2 * LEASE + 1)
            self.until(lambda: self.states([job, following]) == {"succeeded": 2}, 30)
            assert (self.notes(job), self.notes(following)) == (1, 1), "a job whose end was locked ran again"
            last = self.enqueue("note", seconds=1)
            self.until(lambda: self.notes(last) == 1)
            with self.locked(last):
                worker.send_signal(signal.SIGTERM)
                time.sleep(2)
            assert worker.wait(15) == 0, f"exit code {worker.returncode}"
        assert self.states([last]) == {"succeeded": 1}, "the worker has stopped without reporting an end"

    def check_a_worker_that_loses_its_connections_goes_on_or_exits_with_an_error(self) -> None:
        with self.worker() as worker:
            job = self.enqueue("note", seconds=60)
            self.until(lambda: self.notes(job) == 1)
            others = "datname = current_database() and backend_type = 'client backend' and pid <> pg_backend_pid()"
            self.db.execute(f"select pg_terminate_backend(pid) from pg_stat_activity where {others}".encode())
            extended = "select lease_expires_at > %s + interval '1 s' from pgqueue.all_jobs where id = %s"
            lease = self.one("select lease_expires_at from pgqueue.all_jobs where id = %s", job)
            self.until(lambda: worker.poll() is not None or self.one(extended, lease, job), 3 * LEASE)
            if worker.poll() is not None:
                assert worker.returncode != 0, "it has lost its connections, and exits with 0"
                # Another worker runs the job again.
                self.until(lambda: not _is_running(worker.pid), LEASE)
            assert self.one("select pgqueue.cancel(%s)", job) in ("requested", "cancelled")
        self.maintain(LEASE + 1)
        self.until(lambda: self.states([job]) == {"cancelled": 1})

    def check_a_deregistered_worker_registers_again(self) -> None:
        registered = "select count(*) from pgqueue.workers where %s = any(queues)"
        with self.worker():
            self.db.execute("select pgqueue.bye(name) from pgqueue.workers where %s = any(queues)", [self.queue])
            self.until(lambda: self.one(registered, self.queue) == 1)

    def check_an_idle_worker_is_woken(self) -> None:
        # With so many workers, and maintenance run by this session, idle() asks to be called again only after 5 s.
        others = [f"idle-{n}" for n in range(8)]
        for name in others:
            self.db.execute("select pgqueue.hello(%s, array['elsewhere'])", [name])
        with self.worker():
            # By then it has done with its polls and blocks for seconds.
            self.maintain(4)
            waits = []
            for _ in range(3):
                job = self.enqueue("note")
                self.until(lambda job=job: self.states([job]) == {"succeeded": 1})
                query = "select extract(epoch from n.at - h.created_at)::float8 from client_notes n"
                waits.append(self.one(f"{query} join pgqueue.history h on h.id = n.job_id where n.job_id = %s", job))
                self.maintain(2.5)
        for name in others:
            self.db.execute("select pgqueue.bye(%s)", [name])
        assert sorted(waits)[1] < 1, f"started {waits} s after the enqueue"

    def check_a_worker_that_is_stopped_ends_its_job_and_deregisters(self) -> None:
        # Those that were killed have left their rows.
        registered = "select count(*) from pgqueue.workers where %s = any(queues)"
        before = self.one(registered, self.queue)
        connections = (
            "select count(*) from pg_stat_activity where datname = current_database()"
            " and backend_type = 'client backend'"
        )
        connected = self.one(connections)
        with self.worker() as worker:
            job = self.enqueue("note", seconds=1)
            unstarted = self.enqueue("note")
            self.until(lambda: self.notes(job) == 1)
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(15) == 0, f"exit code {worker.returncode}"
        assert self.states([job]) == {"succeeded": 1}
        assert self.states([unstarted]) == {"waiting": 1}, "it claimed a job after it was stopped"
        assert self.one(registered, self.queue) == before, "it is registered still"
        self.until(lambda: self.one(connections) <= connected, 30)
        self.db.execute("select pgqueue.purge_queue(%s)", [self.queue])

    @contextmanager
    def worker(self) -> Iterator[subprocess.Popen[bytes]]:
        before = self.one("select count(*) from pgqueue.workers where %s = any(queues)", self.queue)
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                [*self.client.command, "worker", self.queue],
                env=self.environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            registered = "select count(*) from pgqueue.workers where %s = any(queues)"
            self.until(lambda: process.poll() is not None or self.one(registered, self.queue) > before, 30)
            assert process.poll() is None, "the worker has ended"
            yield process
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(20)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)

    @contextmanager
    def locked(self, job: int) -> Iterator[None]:
        """Lock the row of a job, as a call does that is about to cancel it."""
        with psycopg.connect(self.dsn) as other:
            other.execute("select from pgqueue.jobs where id = %s for update", [job])
            yield

    def enqueue(self, task: str, options: str = "", **args: Any) -> int:
        more = f", {options}" if options else ""
        query = f"select pgqueue.enqueue(%s, %s::jsonb, queue => %s{more})"
        return int(self.one(query, task, json.dumps(args), self.queue))

    def states(self, ids: list[int]) -> dict[str, int]:
        query = "select state::text, count(*) from pgqueue.all_jobs where id = any(%s) group by 1"
        return dict(self.db.execute(query, [ids]).fetchall())

    def notes(self, job: int) -> int:
        return int(self.one("select count(*) from client_notes where job_id = %s", job))

    def row(self, query: str, *values: Any) -> Any:
        return self.db.execute(query, values).fetchone()

    def one(self, query: str, *values: Any) -> Any:
        return self.row(query, *values)[0]

    def maintain(self, seconds: float) -> None:
        """Run maintenance for that time, so that no worker has to."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.db.execute("select pgqueue.maintain()")
            time.sleep(0.2)

    def until(self, fact: Callable[[], bool], timeout: float = 20) -> None:
        deadline = time.monotonic() + timeout
        while not fact():
            assert time.monotonic() < deadline, f"not within {timeout:g} s"
            time.sleep(0.02)


def _is_running(session: int) -> bool:
    """Whether a process of the session runs."""
    processes = subprocess.run(["ps", "-A", "-o", "sess=,stat="], capture_output=True, text=True, check=True).stdout
    states = [line.split() for line in processes.splitlines()]
    return any(its == str(session) and not state.startswith("Z") for its, state in states)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dsn", default=os.environ.get("PGQUEUE_DSN"), help="a database for testing")
    parser.add_argument("client", nargs="*", help=f"of {', '.join(BUILD)}; default: all")
    given = parser.parse_args()
    if unknown := set(given.client) - set(BUILD):
        parser.error(f"there is no client {', '.join(sorted(unknown))}")
    came_out = {name: _check(name, given.dsn) for name in given.client or BUILD}
    for word in ("passed", "FAILED", "not run"):
        if names := [name for name, each in came_out.items() if each == word]:
            print(f"{word}: {', '.join(names)}")  # noqa: T201
    return int("FAILED" in came_out.values())


def _check(name: str, dsn: str) -> str:
    """Build and check one client, and print what comes out. Returns passed, FAILED or not run."""
    with tempfile.TemporaryDirectory() as scratch:
        try:
            client = BUILD[name](Path(scratch), dsn)
            one = Conformance(name, client, dsn, Path(scratch))
            for check in one.check_all():
                print(f"{name}: {check}")  # noqa: T201
            one.close()
        except NotHere as reason:
            print(f"{name}: not run: {reason}")  # noqa: T201
            return "not run"
        except (AssertionError, DoesNotCompile) as error:
            print(f"{name}: FAILED {error}")  # noqa: T201
            return "FAILED"
    return "passed"


if __name__ == "__main__":
    sys.exit(main())
