"""The others: servers that people would take instead, each as a process of its own, set to wait for the disk as we do.

One that is not installed is said to be absent; nothing is made up for it.
"""

import importlib.metadata
import json
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.load import Address, nats_opening
from tests.postgres import running_server

START_S = 30.0


class Absent(Exception):
    """This peer is not installed here."""


@dataclass
class Peer:
    """A server that runs."""

    wire: str
    address: Address
    pid: int
    version: str
    url: str = ""


def program(name: str) -> str:
    """The path of a peer's program, beside our interpreter or anywhere else."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise Absent(name)
    return found


@contextmanager
def jetstream() -> Iterator[Peer]:
    """NATS JetStream with a file store that syncs every message."""
    with (
        _place() as folder,
        _started([program("nats-server"), "-c", str(_nats_settings(folder, port := free_port()))], port) as process,
    ):
        with socket.create_connection(("127.0.0.1", port)) as connection:
            nats_opening(connection, 0)
            stream = {"name": "BENCH", "subjects": ["bench.>"], "storage": "file", "num_replicas": 1}
            _nats_ask(connection, "$JS.API.STREAM.CREATE.BENCH", json.dumps(stream).encode())
        yield Peer("nats", ("127.0.0.1", port), process.pid, _version("nats-server", "--version"))


def _nats_settings(folder: Path, port: int) -> Path:
    settings = folder / "nats.conf"
    settings.write_text(
        f'host: 127.0.0.1\nport: {port}\njetstream {{ store_dir: "{folder}/js", sync_interval: always }}\n'
    )
    return settings


def _nats_ask(connection: socket.socket, subject: str, body: bytes) -> bytes:
    connection.sendall(nats_publish(subject, 0, body))
    answer = b""
    while not (answer.endswith(b"\r\n") and answer.count(b"\r\n") >= 2):
        answer += connection.recv(65_536)
    if b'"error"' in answer:
        raise RuntimeError(answer.decode())
    return answer


def nats_publish(subject: str, number: int, body: bytes) -> bytes:
    """A publication whose acknowledgement comes to the connection with this number."""
    return f"PUB {subject} answers.{number} {len(body)}\r\n".encode() + body + b"\r\n"


@contextmanager
def redis() -> Iterator[Peer]:
    """Redis with an append-only file that is synced before every answer."""
    port = free_port()
    with _place() as folder:
        command = [program("redis-server"), "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder)]
        command += ["--save", "", "--appendonly", "yes", "--appendfsync", "always", "--loglevel", "warning"]
        with _started(command, port) as process:
            yield Peer("redis", ("127.0.0.1", port), process.pid, _version("redis-server", "--version"))


def redis_command(*words: bytes) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)


@contextmanager
def postgres() -> Iterator[Peer]:
    """PostgreSQL, `fsync` and `synchronous_commit` on as they are by default, with the tables of an accept."""
    with running_server() as server:
        server.run("CREATE DATABASE bench TEMPLATE template0")
        server.run((Path(__file__).parent / "accept_postgres.sql").read_text(), "bench")
        (version,) = server.run("SHOW server_version")
        assert server.run("SHOW fsync") == [("on",)]
        assert server.run("SHOW synchronous_commit") == [("on",)]
        pid = int((server.folder / "data" / "postmaster.pid").read_text().split()[0])
        url = server.url("bench")
        yield Peer("postgres", str(server.folder / ".s.PGSQL.5432"), pid, f"PostgreSQL {version[0]}", url)


def postgres_query(text: str) -> bytes:
    body = text.encode() + b"\0"
    return b"Q" + (len(body) + 4).to_bytes(4, "big") + body


NOSTR = """
storage:
  sqlalchemy.url: sqlite+aiosqlite:///{folder}/nostr.sqlite3
  validators: [nostr_relay.validators.is_signed]
gunicorn: {{bind: "127.0.0.1:{port}", workers: 1, loglevel: error}}
max_limit: 1000000
max_event_size: 65536
oldest_event: 31536000
subscription_limit: 32
authentication: {{enabled: false}}
verification: {{nip05_verification: disabled}}
"""


@contextmanager
def nostr_relay() -> Iterator[Peer]:
    """The Python relay for Nostr, on SQLite as it comes, which does not wait for the disk."""
    port = free_port()
    with _place() as folder:
        settings = folder / "config.yaml"
        settings.write_text(NOSTR.format(folder=folder, port=port))
        command = [program("nostr-relay"), "-c", str(settings), "serve"]
        with _started(command, port) as process:
            version = f"nostr-relay {importlib.metadata.version('nostr-relay')}"
            yield Peer("websocket", ("127.0.0.1", port), process.pid, version)


@contextmanager
def _place() -> Iterator[Path]:
    """A folder on the disk that is measured."""
    with tempfile.TemporaryDirectory(prefix="hfbench") as folder:
        yield Path(folder)


@contextmanager
def _started(command: list[str], port: int) -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait_for(port, process)
        yield process
    finally:
        process.terminate()
        process.wait(START_S)


def _wait_for(port: int, process: "subprocess.Popen[bytes]") -> None:
    until = time.monotonic() + START_S
    while time.monotonic() < until:
        if process.poll() is not None:
            raise RuntimeError(f"{process.args!r} ended with {process.returncode}")
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise RuntimeError(f"nobody listens on port {port}")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def _version(name: str, option: str) -> str:
    said = subprocess.run([program(name), option], capture_output=True, text=True, check=True).stdout
    return said.split(" sha=")[0].strip().removesuffix(":")


PEERS: dict[str, Callable[[], AbstractContextManager[Peer]]] = {
    "jetstream": jetstream,
    "redis": redis,
    "postgres": postgres,
}
