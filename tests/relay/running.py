"""A relay as a process of its own, and what a client of any kind, polite or not, does with it."""

import base64
import hashlib
import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

from websockets.sync.client import ClientConnection, connect

from holdfast.cli.check import inspect
from holdfast.protocol import keys
from holdfast.protocol.event import Event, encode, sign_event
from tests.people import Person
from tests.relay import store
from tests.terminal import typed

ANSWER_S = 60.0  # how long a test waits for what must come


@dataclass
class Answered:
    """What came back over HTTP."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def document(self) -> Any:
        return json.loads(self.body)

    def __str__(self) -> str:
        """The status, and the code of a refusal."""
        if self.headers.get("content-type") != "application/problem+json":
            return str(self.status)
        assert self.document["status"] == self.status
        return f"{self.status} {self.document['code']}"


@dataclass
class RunningRelay:
    """A relay that runs."""

    url: str
    data: Path
    process: "subprocess.Popen[bytes]"
    log_file: Path
    people: dict[str, Person] = field(default_factory=dict)
    challenges: "WeakKeyDictionary[ClientConnection, str]" = field(default_factory=WeakKeyDictionary)

    @property
    def address(self) -> tuple[str, int]:
        parts = urlsplit(self.url)
        return str(parts.hostname), int(parts.port or 0)

    def ask(self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None) -> Answered:
        connection = http.client.HTTPConnection(*self.address, timeout=ANSWER_S)
        try:
            connection.request(method, path, body or None, dict(headers or {}))
            response = connection.getresponse()
            lowered = {name.lower(): value for name, value in response.getheaders()}
            return Answered(response.status, lowered, response.read())
        finally:
            connection.close()

    def publish(self, event: Event, **headers: str) -> Answered:
        return self.ask("POST", "/v1/messages", encode(event), headers)

    def signed(self, secret: bytes, method: str, path: str, body: bytes = b"", **changed: Any) -> Answered:
        """Ask as the holder of a key."""
        return self.ask(
            method, path, body, {"authorization": self.authorization(secret, method, path, body, **changed)}
        )

    def authorization(
        self,
        secret: bytes,
        method: str,
        path: str,
        body: bytes = b"",
        *,
        kind: int = 27235,
        at: int = 0,
        tags: Mapping[str, str] | None = None,
    ) -> str:
        """The header; `at` seconds from now, with other tags where they are given (an empty one is left out)."""
        named = {"u": self.url + path, "method": method, "nonce": os.urandom(8).hex()}
        if body:
            named["payload"] = hashlib.sha256(body).hexdigest()
        wanted = [(name, value) for name, value in (named | dict(tags or {})).items() if value]
        event = sign_event(secret, int(time.time()) + at, kind, wanted, "", os.urandom(32))
        return "Nostr " + base64.b64encode(encode(event)).decode()

    @contextmanager
    def websocket(self, path: str = "/", **options: Any) -> Iterator[ClientConnection]:
        """A connection that has heard the relay's challenge."""
        url = self.url.replace("http://", "ws://") + path
        with connect(
            url, compression=None, open_timeout=ANSWER_S, close_timeout=1, ping_interval=None, **options
        ) as client:
            verb, challenge = json.loads(client.recv(ANSWER_S))
            assert verb == "AUTH"
            self.challenges[client] = challenge
            yield client

    def operator(self) -> bytes:
        return keys.read_nsec((self.data / "operator.key").read_text().strip())

    def token(self, *options: str) -> str:
        done = typed("relay", "token", "--data", self.data, *options)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def metric(self, name: str) -> float:
        for line in self.ask("GET", "/metrics").body.decode().splitlines():
            if line.startswith(name + " "):
                return float(line.split()[1])
        return 0.0

    def head_seq(self) -> int:
        return int(self.metric("holdfast_seq"))

    def memory_bytes(self) -> int:
        pages = Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def log(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log_file.read_text().splitlines()]

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(ANSWER_S)

    def person(self, name: str) -> Person:
        """Somebody whose clock is right."""
        if name not in self.people:
            self.people[name] = Person(name, now_s=int(time.time()))
        return self.people[name]

    def found_mesh(self, founder: str, *members: str) -> None:
        """A mesh with these members."""
        assert str(self.publish(self.person(founder).found_mesh())) == "201"
        for name in members:
            secret = hashlib.sha256(name.encode()).digest()
            assert str(self.publish(self.person(founder).invite(secret))) == "201"
            assert str(self.publish(self.person(name).join(secret))) == "201"


def command(data: Path, *options: str) -> list[str]:
    program = [sys.executable, "-m", "holdfast.cli", "relay", "run", "--data", str(data), "--port", "0"]
    return [*program, *store.options(data), *options]


def started(data: Path, *options: str, **environment: str) -> RunningRelay:
    """A relay that has just begun to serve."""
    log_file = data.with_suffix(".log")
    with log_file.open("ab") as log:
        process = subprocess.Popen(
            command(data, *options), stdout=subprocess.PIPE, stderr=log, env={**os.environ, **environment}
        )
    assert process.stdout is not None
    with process.stdout as stdout:
        first = stdout.readline()
    assert first, f"the relay did not start: {log_file.read_text()}"
    return RunningRelay(json.loads(first)["url"], data, process, log_file)


@contextmanager
def running(
    data: Path, settings: str = "", *, options: Sequence[str] = (), **environment: str
) -> Iterator[RunningRelay]:
    """A relay that runs while the block does; afterwards its database keeps every rule."""
    if settings:
        config = data.with_suffix(".toml")
        config.write_text(settings)
        options = ["--config", str(config), *options]
    data.with_suffix(".log").unlink(missing_ok=True)
    relay = started(data, *options, **environment)
    try:
        yield relay
    finally:
        if relay.process.poll() is None:
            relay.stop()
    assert inspect(store.where(data / "relay.db")) == ("relay", [])
