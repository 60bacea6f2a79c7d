"""A supervisor and its worker processes: watched, replaced, stopped."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections import Counter
from pathlib import Path

import psycopg
import pytest

from pgqueue.config import WorkerConfig
from pgqueue.processes import supervisor
from pgqueue.processes import worker_process as process
from pgqueue.processes.crash import CrashLoop
from pgqueue.processes.supervisor import Supervisor
from tests.calls import enqueue, enqueue_many, job, state, value
from tests.databases import Database
from tests.facts import wait_until, wait_until_async
from tests.worker.conftest import Start
from tests.workers import WorkerProcess, environment_without_dsn, write_module

# Handlers say in a file what they did and in which process: "<what> <job> <pid>".
TASKS = """
    import asyncio, os, pathlib, subprocess, sys, time
    from pgqueue import App, Job

    app = App()
    here = pathlib.Path(__file__).parent
    hoard = []

    def say(what, job):
        with (here / "ran").open("a") as file:
            file.write(f"{what} {job.id} {os.getpid()}\\n")

    @app.task
    async def quick(i: int, job: Job):
        await asyncio.sleep(0.005)
        say("ran", job)

    @app.task
    async def long(job: Job):
        say("began", job)
        while not (here / "go").exists():
            await asyncio.sleep(0.01)
        say("ended", job)

    @app.task
    async def grow(mib: int, job: Job):
        hoard.append(bytearray(os.urandom(1) * (mib << 20)))
        say("grew", job)

    @app.task
    async def block(job: Job):
        say("blocks", job)
        time.sleep(600)

    @app.task
    async def kill(job: Job):
        say("kills", job)
        os.kill(os.getpid(), 9)

    @app.task(timeout="0.5 s", max_attempts=1)
    def hang(job: Job):
        say("hangs", job)
        time.sleep(600)

    @app.task(max_crashes=1)
    async def stick(job: Job):
        say("sticks", job)
        time.sleep(600)

    @app.task
    def spawn(job: Job):
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        (here / "spawned").write_text(str(child.pid))
"""


@pytest.fixture(autouse=True)
def tasks(tmp_path: Path) -> None:
    write_module(tmp_path, TASKS)
    (tmp_path / "ran").touch()


def said(directory: Path, what: str) -> Counter[int]:
    lines = [line.split() for line in (directory / "ran").read_text().splitlines()]
    return Counter(int(job_id) for said_what, job_id, _ in lines if said_what == what)


def pids(supervisor: WorkerProcess) -> dict[str, int]:
    """Of the workers that are ready, by name, the newest of each."""
    return {name: int(pid) for name, pid in re.findall(r"worker (\S+) \(pid (\d+)\) is ready", supervisor.log())}


def ready(supervisor: WorkerProcess, number: int) -> dict[str, int]:
    """Wait until so many processes have ever been ready."""
    wait_until(lambda: supervisor.log().count(" is ready") >= number, timeout=60)
    return pids(supervisor)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def succeeded(conn: psycopg.Connection) -> int:
    return int(value(conn, "select count(*) from pgqueue.history where state = 'succeeded'"))


@pytest.mark.covers("G14", "L13", "A9")
def test_a_killed_process_is_replaced_and_its_jobs_come_back_at_once(
    conn: psycopg.Connection, start_worker: Start, tmp_path: Path
) -> None:
    # With a lease so long that nothing comes back by itself.
    supervisor = start_worker("-r", "jobs", "--processes", "2", "-c", "5", "--lease", "600", "--name", "s")
    workers = ready(supervisor, 2)
    assert set(workers) == {"s:1", "s:2"}
    jobs = enqueue_many(conn, 600, "quick")
    wait_until(
        lambda: (
            value(conn, "select count(*) from pgqueue.history where reserved_by = 's:1'") > 30
            and value(conn, "select count(*) from pgqueue.jobs where reserved_by = 's:1' and state = 'executing'") > 0
        ),
        timeout=30,
    )
    os.kill(workers["s:1"], signal.SIGKILL)
    wait_until(lambda: succeeded(conn) == 600, timeout=60)
    assert set(said(tmp_path, "ran")) == set(jobs)
    ready(supervisor, 3)
    assert "was killed by SIGKILL" in supervisor.log()
    supervisor.send(signal.SIGTERM)
    assert supervisor.wait() == 0
    assert value(conn, "select count(*) from pgqueue.workers") == 0


@pytest.mark.long
@pytest.mark.covers("G14")
def test_no_two_processes_ever_share_a_name(conn: psycopg.Connection, start_worker: Start, tmp_path: Path) -> None:
    supervisor = start_worker("-r", "jobs", "--processes", "2", "--max-jobs", "1", "--name", "s")
    ready(supervisor, 2)
    job_id = enqueue(conn, "long")
    other = enqueue(conn, "quick", {"i": 1})
    wait_until(lambda: said(tmp_path, "began")[job_id] and state(conn, other) == "succeeded", timeout=20)
    # The first that had run a job is being replaced; one of the two still runs the long one.
    ready(supervisor, 3)
    enqueue_many(conn, 5, "quick")
    wait_until(lambda: succeeded(conn) == 6, timeout=30)
    (tmp_path / "go").touch()
    wait_until(lambda: succeeded(conn) == 7, timeout=30)
    assert said(tmp_path, "began") == Counter([job_id])
    supervisor.send(signal.SIGTERM)
    assert supervisor.wait() == 0
    alive: set[str] = set()
    for name, what in re.findall(r"worker (\S+) \(pid \d+\) (starts|has ended)", supervisor.log()):
        if what == "starts":
            assert name not in alive
            alive.add(name)
        else:
            alive.remove(name)


@pytest.mark.long
@pytest.mark.covers("G14")
def test_processes_that_start_at_the_same_time_have_names_of_their_own(
    conn: psycopg.Connection, start_worker: Start
) -> None:
    supervisor = start_worker("-r", "jobs", "--processes", "4", "--name", "s")
    assert set(ready(supervisor, 4)) == {"s:1", "s:2", "s:3", "s:4"}
    assert value(conn, "select count(*) from pgqueue.workers") == 4
    supervisor.send(signal.SIGTERM)
    assert supervisor.wait() == 0


@pytest.mark.covers("G14")
def test_a_process_over_its_memory_is_replaced_after_its_running_jobs(
    conn: psycopg.Connection, start_worker: Start, tmp_path: Path
) -> None:
    supervisor = start_worker("-r", "jobs", "--processes", "1", "--max-memory", "200M", "--name", "s")
    [first] = ready(supervisor, 1).values()
    long = enqueue(conn, "long")
    wait_until(lambda: said(tmp_path, "began")[long] == 1)
    enqueue(conn, "grow", {"mib": 220})
    # The replacement works, and the old one still runs its job.
    workers = ready(supervisor, 2)
    wait_until(lambda: re.search(r"is replaced: it holds \d+ MiB", supervisor.log()))
    assert set(workers) == {"s:1", "s:2"}
    assert is_running(first)

    def runs_a_job() -> str:
        job_id = enqueue(conn, "quick", {"i": 1})
        wait_until(lambda: state(conn, job_id) == "succeeded")
        return str(value(conn, "select reserved_by from pgqueue.history where id = %s", job_id))

    # The old one is told to take no more after the other was ready.
    wait_until(lambda: runs_a_job() == "s:2")
    (tmp_path / "go").touch()
    wait_until(lambda: not is_running(first), timeout=60)
    assert state(conn, long) == "succeeded"
    assert said(tmp_path, "began")[long] == 1
    supervisor.send(signal.SIGTERM)
    assert supervisor.wait() == 0


@pytest.mark.long
@pytest.mark.covers("G14")
def test_a_rolling_restart_under_load_loses_no_job_and_runs_none_twice(
    conn: psycopg.Connection, start_worker: Start, tmp_path: Path
) -> None:
    supervisor = start_worker("-r", "jobs", "--processes", "2", "-c", "4", "--name", "s")
    before = set(ready(supervisor, 2).values())
    jobs = enqueue_many(conn, 3000, "quick")
    wait_until(lambda: succeeded(conn) > 100, timeout=20)
    supervisor.send(signal.SIGHUP)
    wait_until(lambda: "the rolling restart is done" in supervisor.log(), timeout=60)
    assert not any(is_running(pid) for pid in before)
    wait_until(lambda: succeeded(conn) == 3000, timeout=60)
    assert said(tmp_path, "ran") == Counter(jobs)
    supervisor.send(signal.SIGTERM)
    assert supervisor.wait() == 0


@pytest.mark.long
@pytest.mark.covers("G14")
def test_workers_in_a_crash_loop_are_replaced_after_growing_pauses(start_worker: Start, tmp_path: Path) -> None:
    supervisor = start_worker("-r", "jobs", "--processes", "1", "--name", "s")
    # One that cannot be started at all is another matter.
    ready(supervisor, 1)
    killed: set[int] = set()

    def crashes() -> bool:
        log = supervisor.log()
        newest = int(re.findall(r"\(pid (\d+)\) starts", log)[-1])
        if newest not in killed and len(killed) == log.count("was killed by SIGKILL"):
            # Not when it is ready, which may take long: that would not be soon.
            killed.add(newest)
            os.kill(newest, signal.SIGKILL)
        return "3 workers in a row died soon after their start; the next one starts in 1 s" in log

    wait_until(crashes)
    assert "2 workers in a row died soon after their start; the next one starts in 0.5 s" in supervisor.log()
    assert "1 worker in a row" not in supervisor.log()
    ready(supervisor, 2)
    supervisor.send(signal.SIGTERM)
    assert supervisor.wait() == 0


def test_a_crash_loop_that_lasts_for_days_keeps_its_longest_pause() -> None:
    loop = CrashLoop()
    pauses = [loop.pause_after(None) for _ in range(3000)]
    assert pauses[0] == 0.0
    assert pauses[1] < pauses[3] < pauses[5]
    # Each with a random part.
    assert all(25 < pause < 35 for pause in pauses[10:])


@pytest.mark.long
@pytest.mark.covers("G14")
def test_a_job_that_kills_its_process_is_dead_after_three_crashes(
    conn: psycopg.Connection, start_worker: Start, tmp_path: Path
) -> None:
    # Under a lease so long that only the supervisor can report them.
    supervisor = start_worker("-r", "jobs", "--processes", "1", "--lease", "600", "--name", "s")
    ready(supervisor, 1)
    job_id = enqueue(conn, "kill")
    wait_until(lambda: state(conn, job_id) == "dead", timeout=60)
    assert said(tmp_path, "kills")[job_id] == 3
    assert f"it ran [{job_id}]" in supervisor.log()
    other = enqueue(conn, "quick", {"i": 1})
    wait_until(lambda: state(conn, other) == "succeeded", timeout=30)
    supervisor.send(signal.SIGTERM)
    assert supervisor.wait() == 0


@pytest.mark.long
@pytest.mark.covers("G14")
def test_a_supervisor_outlives_a_job_that_kills_its_very_first_process(
    conn: psycopg.Connection, start_worker: Start
) -> None:
    job_id = enqueue(conn, "kill")
    supervisor = start_worker("-r", "jobs", "--processes", "1", "--lease", "600", "--name", "s")
    wait_until(lambda: state(conn, job_id) == "dead", timeout=60)
    other = enqueue(conn, "quick", {"i": 1})
    wait_until(lambda: state(conn, other) == "succeeded", timeout=30)
    supervisor.send(signal.SIGTERM)
    assert supervisor.wait() == 0


@pytest.mark.long
@pytest.mark.covers("G14")
def test_a_process_in_which_a_thread_outlasts_its_timeout_is_replaced_at_once(
    conn: psycopg.Connection, start_worker: Start, tmp_path: Path
) -> None:
    supervisor = start_worker("-r", "jobs", "--processes", "1", "--shutdown-timeout", "1", "--name", "s")
    [first] = ready(supervisor, 1).values()
    job_id = enqueue(conn, "hang")
    wait_until(lambda: state(conn, job_id) == "dead", timeout=40)
    ready(supervisor, 2)
    wait_until(lambda: not is_running(first))
    assert "crash loop" not in supervisor.log()
    supervisor.send(signal.SIGTERM)
    assert supervisor.wait() == 0


@pytest.mark.covers("G14")
def test_a_module_that_cannot_be_imported_is_reported_once_with_exit_code_2(
    start_worker: Start, tmp_path: Path
) -> None:
    (tmp_path / "broken.py").write_text("import nothing_of_that_name\n")
    supervisor = start_worker("-r", "broken", "--processes", "3", "--log-level", "warning")
    assert supervisor.wait() == 2
    line, *traceback = supervisor.log().splitlines()
    assert line.startswith("pgqueue: module 'broken' cannot be imported: broken.py:1: ModuleNotFoundError")
    assert traceback[0] == "Traceback (most recent call last):"
    assert len(traceback) == 4


@pytest.mark.long
def test_a_module_that_breaks_before_a_rolling_restart_ends_that_and_nothing_else(
    conn: psycopg.Connection, start_worker: Start, tmp_path: Path
) -> None:
    supervisor = start_worker("-r", "jobs", "--processes", "2", "--name", "s")
    workers = ready(supervisor, 2)
    (tmp_path / "jobs.py").write_text("1 / 0\n")
    supervisor.send(signal.SIGHUP)
    wait_until(lambda: "keeps running: its replacement did not start" in supervisor.log(), timeout=20)
    assert all(is_running(pid) for pid in workers.values())
    supervisor.send(signal.SIGTERM)
    assert supervisor.wait() == 0


@pytest.mark.long
@pytest.mark.covers("L15")
def test_a_second_signal_ends_all_at_once(conn: psycopg.Connection, start_worker: Start, tmp_path: Path) -> None:
    supervisor = start_worker("-r", "jobs", "--processes", "2", "--name", "s")
    workers = ready(supervisor, 2)
    job_id = enqueue(conn, "long")
    wait_until(lambda: said(tmp_path, "began")[job_id] == 1)
    supervisor.send(signal.SIGINT)
    wait_until(lambda: ": stopping 2 workers" in supervisor.log())
    assert supervisor.is_alive()
    supervisor.send(signal.SIGINT)
    assert supervisor.wait() == 128 + signal.SIGINT
    assert not any(is_running(pid) for pid in workers.values())
    assert state(conn, job_id) == "executing"


@pytest.mark.long
@pytest.mark.parametrize(
    ("is_frozen", "words"), [(False, "ending without what holds it"), (True, "did not end and is killed")]
)
def test_a_process_that_did_not_end_by_itself_shows_in_the_exit_code(
    is_frozen: bool, words: str, conn: psycopg.Connection, start_worker: Start, tmp_path: Path
) -> None:
    supervisor = start_worker("-r", "jobs", "--processes", "1", "--shutdown-timeout", "0.5", "--name", "s")
    [pid] = ready(supervisor, 1).values()
    job_id = enqueue(conn, "block")
    wait_until(lambda: said(tmp_path, "blocks")[job_id] == 1)
    if is_frozen:
        os.kill(pid, signal.SIGSTOP)
    supervisor.send(signal.SIGTERM)
    assert supervisor.wait(60) == 1
    assert words in supervisor.log()


def test_all_end_with_their_supervisor(conn: psycopg.Connection, start_worker: Start, tmp_path: Path) -> None:
    supervisor = start_worker("-r", "jobs", "--processes", "2", "--name", "s")
    workers = ready(supervisor, 2)
    job_id = enqueue(conn, "block")
    wait_until(lambda: said(tmp_path, "blocks")[job_id] == 1)
    supervisor.send(signal.SIGKILL)
    wait_until(lambda: not any(is_running(pid) for pid in workers.values()))


def test_with_until_empty_all_processes_end_by_themselves(
    conn: psycopg.Connection, start_worker: Start, tmp_path: Path
) -> None:
    jobs = enqueue_many(conn, 200, "quick")
    supervisor = start_worker("-r", "jobs", "--processes", "2", "--until-empty")
    assert supervisor.wait(60) == 0
    assert said(tmp_path, "ran") == Counter(jobs)


@pytest.mark.parametrize("options", [(), ("--processes", "1")])
def test_a_process_that_a_handler_has_started_does_not_keep_the_worker_running(
    options: tuple[str, ...], conn: psycopg.Connection, start_worker: Start, tmp_path: Path
) -> None:
    worker = start_worker("-r", "jobs", *options).started()
    job_id = enqueue(conn, "spawn")
    wait_until(lambda: state(conn, job_id) == "succeeded")
    pid = int((tmp_path / "spawned").read_text())
    try:
        worker.send(signal.SIGTERM)
        assert worker.wait() == 0
        assert is_running(pid)
    finally:
        os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--max-memory", "lots"), "is not an amount of memory"),
        (("--concurrency", "many"), "concurrency is 'many'"),
        (("--concurrency", "9:3"), "min-concurrency is 9"),
        (("--log-format", "xml"), "there is no log format 'xml'"),
        (("--health-host", "no.such.host.invalid", "--health-port", "0"), "the health endpoint cannot listen"),
        (("--processes", "0"), "--processes"),
    ],
)
def test_a_bad_setting_is_reported_at_once_with_exit_code_2(
    options: tuple[str, ...], says: str, start_worker: Start
) -> None:
    worker = start_worker("-r", "jobs", *options, "--log-level", "warning")
    assert worker.wait() == 2
    assert says in worker.log()


@pytest.mark.long
@pytest.mark.covers("G14")
def test_a_job_that_blocks_its_process_for_ever_costs_that_process_and_ends_as_poison(
    conn: psycopg.Connection, start_worker: Start, tmp_path: Path
) -> None:
    # The first thing that it reserves, so that it never says that it is ready.
    job_id = enqueue(conn, "stick")
    supervisor = start_worker("-r", "jobs", "--processes", "2", "--lease", "2", "--name", "s")
    wait_until(lambda: state(conn, job_id) == "dead", timeout=60)
    assert job(conn, job_id).errors[-1]["class"] == "Poison"
    # Its lease may end before the first process is killed, so that the other one starts it too: each start costs one.
    killed = re.compile(r"has not reported for \d+ s and is killed")
    wait_until(lambda: len(killed.findall(supervisor.log())) == said(tmp_path, "sticks")[job_id] > 0)
    ready(supervisor, 2)
    other = enqueue(conn, "quick", {"i": 1})
    wait_until(lambda: state(conn, other) == "succeeded", timeout=20)
    supervisor.send(signal.SIGTERM)
    assert supervisor.wait() == 0


@pytest.mark.covers("L15")
def test_a_first_process_that_hangs_before_it_is_ready_does_not_keep_its_supervisor_running(
    conn: psycopg.Connection, start_worker: Start, tmp_path: Path
) -> None:
    module = """
        import pathlib, signal, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        pathlib.Path("sticks").touch()
        time.sleep(600)
    """
    write_module(tmp_path, module, "sticking")
    supervisor = start_worker("-r", "sticking", "--processes", "2", "--lease", "600", "--name", "s")
    wait_until((tmp_path / "sticks").exists, timeout=30)
    supervisor.send(signal.SIGTERM)
    wait_until(lambda: "SIGTERM: stopping 1 worker" in supervisor.log())
    supervisor.send(signal.SIGTERM)
    assert supervisor.wait() == 128 + signal.SIGTERM
    assert "did not end and is killed" in supervisor.log()


@pytest.mark.covers("G14")
def test_a_replacement_that_crashes_is_replaced_while_its_predecessor_still_runs_a_job(
    conn: psycopg.Connection, start_worker: Start, tmp_path: Path
) -> None:
    keeper = start_worker("-r", "jobs", "--processes", "1", "--max-jobs", "1", "--name", "s")
    [first] = ready(keeper, 1).values()
    long = enqueue(conn, "long")
    wait_until(lambda: said(tmp_path, "began")[long] == 1)
    enqueue(conn, "quick", {"i": 1})
    os.kill(ready(keeper, 2)["s:2"], signal.SIGKILL)
    ready(keeper, 3)
    other = enqueue(conn, "quick", {"i": 2})
    wait_until(lambda: state(conn, other) == "succeeded", timeout=20)
    assert is_running(first)
    (tmp_path / "go").touch()
    wait_until(lambda: state(conn, long) == "succeeded", timeout=20)


async def test_with_until_empty_a_replaced_process_has_the_time_that_its_jobs_need(
    database: Database, conn: psycopg.Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "_GRACE", 0.0)
    monkeypatch.chdir(tmp_path)
    config = WorkerConfig(name="s", concurrency=2, shutdown_timeout=0.0, until_empty=True)
    command = [sys.executable, "-m", "pgqueue", "worker", "-r", "jobs", "-c", "2", "--until-empty"]
    environment = {**environment_without_dsn(), "PGQUEUE_DSN": database.dsn}
    keeper = Supervisor(command, [database.dsn], config, 1, max_jobs=1, environment=environment)
    long = enqueue(conn, "long")
    enqueue(conn, "quick", {"i": 1})
    running = asyncio.create_task(keeper.run())
    await wait_until_async(lambda: keeper.status()["replaced"] == 1, timeout=60)
    # The new one finds nothing to do.
    await wait_until_async(lambda: len(keeper._workers) == 1, timeout=60)
    assert await asyncio.wait({running}, timeout=1.0) == (set(), {running})
    (tmp_path / "go").touch()
    assert await asyncio.wait_for(running, 60) == 0
    assert said(tmp_path, "ended") == Counter([long])


async def test_a_replacement_that_hangs_at_its_start_is_killed_and_the_next_one_may_start(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_module(
        tmp_path,
        """
        import pathlib, time
        from pgqueue import App

        app = App()
        here = pathlib.Path(__file__).parent

        @app.on_start
        def connect():
            if (here / "hang").exists():
                time.sleep(3600)
        """,
        "hanging",
    )
    monkeypatch.chdir(tmp_path)
    command = [sys.executable, "-m", "pgqueue", "worker", "-r", "hanging"]
    environment = {**environment_without_dsn(), "PGQUEUE_DSN": database.dsn}
    keeper = Supervisor(command, [database.dsn], WorkerConfig(name="s"), 1, environment=environment)
    running = asyncio.create_task(keeper.run())
    await wait_until_async(lambda: bool(keeper._slots) and keeper._slots[0].worker is not None, timeout=60)
    [slot] = keeper._slots
    first = slot.worker
    assert first is not None
    await asyncio.wait_for(first.ready.wait(), 60)
    (tmp_path / "hang").touch()
    with monkeypatch.context() as patched:
        patched.setattr(supervisor, "READY_WITHIN", 3.0)
        patched.setattr(supervisor, "SOON", 0.0)
        renewing = asyncio.create_task(keeper._renew(slot, "a test"))
        assert await asyncio.wait_for(renewing, 60) is None
    assert slot.worker is first
    await wait_until_async(lambda: len(keeper._workers) == 1, timeout=60)
    (tmp_path / "hang").unlink()
    assert await asyncio.wait_for(keeper._renew(slot, "a test"), 60) is first
    keeper._on_stop(signal.SIGTERM)
    await asyncio.wait_for(running, 60)


async def test_the_exit_codes_of_processes_are_known_where_the_parent_had_ignored_their_ends(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    # As a parent hands it down to what it starts: then the kernel forgets a child when it ends.
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        config = WorkerConfig(name="s", until_empty=True)
        command = [sys.executable, "-m", "pgqueue", "worker", "-r", "jobs", "--until-empty"]
        environment = {**environment_without_dsn(), "PGQUEUE_DSN": database.dsn}
        keeper = Supervisor(command, [database.dsn], config, 1, environment=environment)
        assert await asyncio.wait_for(keeper.run(), 120) == 0
    finally:
        signal.signal(signal.SIGCHLD, before)


async def test_a_process_that_is_gone_is_told_nothing() -> None:
    commands, other = os.pipe()
    os.set_blocking(commands, False)
    # As when the pipe of another one has got the number of its own.
    worker = process.WorkerProcess(1, "s:1", None, other, other, other)  # type: ignore[arg-type]
    worker.gone.set()
    worker.retire()
    with pytest.raises(BlockingIOError):
        os.read(commands, 1)
    for each in (commands, other):
        os.close(each)


@pytest.mark.parametrize("error", [OSError("no room"), RuntimeError("can't start new thread")])
async def test_a_process_that_cannot_be_started_leaves_no_file_open(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(*_: object, **__: object) -> None:
        raise error

    keeper = Supervisor(["true"], [], WorkerConfig(), 1)
    before = os.listdir("/proc/self/fd")
    with monkeypatch.context() as patched:
        patched.setattr(asyncio, "create_subprocess_exec", fails)
        assert await keeper._start(None) is None
    pipe, pipes = os.pipe, iter([True, False])
    with monkeypatch.context() as patched:
        patched.setattr(os, "pipe", lambda: pipe() if next(pipes) else fails().send(None))
        patched.setattr(supervisor.log, "error", lambda *_: None)
        assert await keeper._start(None) is None
    assert os.listdir("/proc/self/fd") == before


@pytest.mark.long
@pytest.mark.covers("G14", "A11")
def test_a_replaced_process_that_does_not_end_is_stopped(
    conn: psycopg.Connection, start_worker: Start, tmp_path: Path
) -> None:
    supervisor = start_worker(
        "-r", "jobs", "--processes", "1", "--max-jobs", "1", "--replace-timeout", "0.5", "--shutdown-timeout", "0.5"
    )
    [first] = ready(supervisor, 1).values()
    long = enqueue(conn, "long")
    wait_until(lambda: said(tmp_path, "began")[long] == 1)
    enqueue(conn, "quick", {"i": 1})
    ready(supervisor, 2)
    wait_until(lambda: not is_running(first), timeout=20)
    assert "still runs 0.5 s after it was replaced: stopping it" in supervisor.log()
    # As at any shutdown: it counts as an attempt that failed.
    assert "shutdown timeout" in job(conn, long).errors[0]["message"]
    # The others are as they were.
    other = enqueue(conn, "quick", {"i": 2})
    wait_until(lambda: state(conn, other) == "succeeded", timeout=20)
