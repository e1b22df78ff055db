"""One relay and one daemon, each a process of its own, and everybody who may come to their doors."""

import base64
import hashlib
import http.client
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from msgspec.structs import replace

from holdfast.device import holder
from holdfast.device.home import Home
from holdfast.protocol import administration
from holdfast.protocol.event import Event, encode, sign_event
from holdfast.protocol.schedule import HOUR
from holdfast.relay import token
from holdfast.relay.identity import Identity
from holdfast.store.world import wall_clock
from tests.cli import person as terminals
from tests.device.house import UnixConnection
from tests.people import Person
from tests.relay.feed_client import Author
from tests.relay.queue_client import QueueClient, connected
from tests.relay.running import ANSWER_S, Answered, RunningRelay, running

OTHER_MESH = "02MESH"
CONSUMER, OTHER_CONSUMER = "reader", "other-reader"


class Caller(StrEnum):
    """Who may come to a relay."""

    NOBODY = "nobody"  # shows nothing
    FORGER = "forger"  # shows a member's key and a signature that is not that key's
    STRANGER = "stranger"  # a key that nobody knows
    OTHER = "other"  # a member of another mesh of this relay
    REVOKED = "revoked"  # was a member
    MEMBER = "member"
    ADMIN = "admin"
    OPERATOR = "operator"
    CONSUMER = "consumer"  # a token of one consumer of the export
    OTHER_CONSUMER = "other_consumer"  # and of another


class KeyHolder(Person):
    """Somebody with a key of the relay's own making."""

    def __init__(self, name: str, secret: bytes) -> None:
        super().__init__(name, now_s=int(time.time()))
        self._secret = secret

    @property
    def secret(self) -> bytes:
        return self._secret


TOKENS = {Caller.CONSUMER: CONSUMER, Caller.OTHER_CONSUMER: OTHER_CONSUMER}


@dataclass
class Scene:
    """Everything there is."""

    directory: Path
    relay: RunningRelay
    home: terminals.Person
    admin: Person
    member: Person
    revoked: Person
    other: Person
    operator: Person
    author: Author  # whom the member admitted
    events: dict[str, Event]  # what was published before anybody came
    tokens: dict[Caller, str] = field(default_factory=dict)

    def person(self, caller: Caller) -> Person:
        """Whose key somebody shows. A forger shows a member's."""
        named = {
            Caller.FORGER: self.member,
            Caller.MEMBER: self.member,
            Caller.ADMIN: self.admin,
            Caller.REVOKED: self.revoked,
            Caller.OTHER: self.other,
            Caller.OPERATOR: self.operator,
        }
        return named.get(caller) or self.relay.person("stranger")

    def credentials(self, caller: Caller, method: str, path: str, body: bytes) -> dict[str, str]:
        """What somebody puts into the Authorization header for this request."""
        if caller is Caller.NOBODY:
            return {}
        if caller in TOKENS:
            return {"authorization": f"Bearer {self.tokens[caller]}"}
        event = self._request_event(self.person(caller).secret, method, path, body)
        signed = forged(event) if caller is Caller.FORGER else event
        return {"authorization": "Nostr " + base64.b64encode(encode(signed)).decode()}

    def _request_event(self, secret: bytes, method: str, path: str, body: bytes) -> Event:
        tags = [("u", self.relay.url + path), ("method", method), ("nonce", os.urandom(8).hex())]
        if body:
            tags.append(("payload", hashlib.sha256(body).hexdigest()))
        return sign_event(secret, int(time.time()), 27235, tags, "", os.urandom(32))

    def ask_relay(self, caller: Caller, method: str, path: str, body: bytes = b"", **headers: str) -> Answered:
        shown = self.credentials(caller, method, path, body)
        return answered(self.relay.url, method, path, body, {**shown, **headers})

    @property
    def port(self) -> str:
        """The address of the daemon's loopback port."""
        found = holder.find(Home(self.home.home))
        assert found is not None
        assert found.url is not None
        return found.url

    @property
    def socket(self) -> str:
        return str(self.home.home / "daemon.sock")

    @property
    def token(self) -> str:
        return (self.home.home / "local-token").read_text().strip()

    @contextmanager
    def websocket(self, caller: Caller) -> Iterator[QueueClient]:
        """A connection on which somebody has shown what they have."""
        with connected(self.relay) as client:
            if caller is Caller.FORGER:
                self._authenticate_falsely(client)
            elif caller is not Caller.NOBODY:
                assert client.authenticate(self.person(caller).secret)[2] is True
            yield client

    def _authenticate_falsely(self, client: QueueClient) -> None:
        tags = [("relay", client.url), ("challenge", client.challenge)]
        event = forged(sign_event(self.member.secret, int(time.time()), 22242, tags, "", bytes(32)))
        answer = client.authenticate_with(json.loads(encode(event)))
        assert answer[2] is False
        assert "auth_failed" in answer[3]


def forged(event: Event) -> Event:
    """The same event, with the signature that another key made."""
    other = sign_event(bytes([1] * 32), event.created_at, event.kind, event.tags, event.content, bytes(32))
    return replace(event, sig=other.sig)


def answered(
    where: str, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
) -> Answered:
    """What comes back from a URL or a socket's path; of a stream that has no end, how it begins."""
    connection = (
        http.client.HTTPConnection(where.removeprefix("http://"), timeout=ANSWER_S)
        if where.startswith("http://")
        else UnixConnection(where)
    )
    named = {name.replace("_", "-"): value for name, value in (headers or {}).items()}
    try:
        connection.request(method, path, body or None, named)
        response = connection.getresponse()
        lowered = {name.lower(): value for name, value in response.getheaders()}
        is_endless = lowered.get("content-type", "").startswith("text/event-stream")
        return Answered(response.status, lowered, b"" if is_endless else response.read())
    finally:
        connection.close()


@contextmanager
def scene() -> Iterator[Scene]:
    """A relay with two meshes and an author, and the daemon of a home in a third; in a directory that others can enter."""
    directory = Path(tempfile.mkdtemp(prefix="holdfast-"))
    directory.chmod(0o755)
    try:
        with running(directory / "relay") as relay:
            home = terminals.founder(terminals.Person(directory / "home"), relay.url)
            with home.daemon("--port", "0"):
                home.until_connected()
                yield _furnished(directory, relay, home)
    finally:
        shutil.rmtree(directory)


def _furnished(directory: Path, relay: RunningRelay, home: terminals.Person) -> Scene:
    relay.found_mesh("admin", "member", "revoked")
    admin, member, revoked = (relay.person(name) for name in ("admin", "member", "revoked"))
    other = Person("other", now_s=int(time.time()), mesh=OTHER_MESH)
    author = Author("an author")
    operator = KeyHolder("operator", relay.operator())
    found = Scene(directory, relay, home, admin, member, revoked, other, operator, author, {})
    admitting = administration.admit_author(author.secret, member.mesh, member.member, bytes(32))
    found.events = {
        "to_member": admin.message(member),
        "from_member": member.message(admin),
        "snapshot": author.snapshot(),
    }
    for event in (
        other.found_mesh(),
        member.administer(admitting),
        *found.events.values(),
        admin.create_topic("news"),
        *(person.subscribe("news") for person in (admin, member)),
        admin.grant("news", 1, (admin, member)),
        admin.advance("news", 0),
        admin.revoke(revoked),
    ):
        assert str(relay.publish(event)) == "201", event
    secret = Identity.read(relay.data).secret
    for caller, name in TOKENS.items():
        found.tokens[caller] = token.mint(secret, name, wall_clock() + HOUR, os.urandom(32))
    return found
