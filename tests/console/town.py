"""A relay and a home with something in every corner, each a process of its own, for everybody who looks at pages.

What people wrote, what they are called and what their ids are would all be markup if a page let it.
"""

import asyncio
import http.client
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from holdfast.device import administration, feed_documents, feed_relays, ipc_administration, send
from holdfast.device import author as authors
from holdfast.device import database as device_database
from holdfast.device import directory as directories
from holdfast.device.device import Device, at_work
from holdfast.device.feed_documents import Edit, Writer, read_arrived
from holdfast.device.home import Home
from holdfast.device.mesh import in_session
from holdfast.device.operations import Facts
from holdfast.protocol.refusal import Refused
from holdfast.store.sqlite import MEMORY, SqliteEngine
from holdfast.store.world import wall_clock
from tests.cli.person import PATIENCE_S, Person, founder, member_of
from tests.hook import receivers
from tests.relay.running import ANSWER_S, Answered, RunningRelay, running
from tests.terminal import typed

HOSTILE_NAME = "<img src=x onerror=alert(1)>"
HOSTILE_ID = "<svg/onload=alert(2)>"
HOSTILE_TEXT = "</pre><script>alert(3)</script>\nsecond line"
DEAD = 7
QUEUED = 60  # for Ben: more than a page


@dataclass(frozen=True)
class Cast:
    """What the others are called, and what is said."""

    ben: str = HOSTILE_NAME
    first_id: str = HOSTILE_ID
    session: str = HOSTILE_ID
    note: str = HOSTILE_NAME
    text: str = HOSTILE_TEXT


@dataclass
class Visitor:
    """Somebody with a cookie, or without one."""

    url: str  # of the console
    cookie: str = ""

    @property
    def base(self) -> str:
        return f"{self.url}/console"

    def ask(self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None) -> Answered:
        parts = urlsplit(self.url)
        connection = http.client.HTTPConnection(str(parts.hostname), int(parts.port or 0), timeout=ANSWER_S)
        known = {"cookie": self.cookie} if self.cookie else {}
        try:
            connection.request(method, f"/console{path}", body or None, {**known, **(headers or {})})
            response = connection.getresponse()
            lowered = {name.lower(): value for name, value in response.getheaders()}
            return Answered(response.status, lowered, response.read())
        finally:
            connection.close()

    def enter(self, link: str) -> "Visitor":
        answer = self.ask("GET", urlsplit(link).path.removeprefix("/console"))
        assert answer.status == 200, answer.body
        return Visitor(self.url, answer.headers["set-cookie"].partition(";")[0])

    def csrf(self, path: str = "/") -> str:
        page = self.ask("GET", path).body.decode()
        return page.partition('name="csrf" value="')[2].partition('"')[0]


@dataclass
class Town:
    """Everything there is."""

    relay: RunningRelay
    ann: Person
    ben: Person
    relay_url: str


def link(*options: object, home: Path | None = None) -> str:
    """What `holdfast console` prints."""
    environment = {**os.environ, "NO_COLOR": "1"} | ({} if home is None else {"HOLDFAST_HOME": str(home)})
    done = typed("console", "--json", *options, environment=environment)
    assert done.returncode == 0, done.stderr
    return str(json.loads(done.stdout)["url"])


@contextmanager
def town(directory: Path, cast: Cast | None = None) -> Iterator[Town]:
    """A seeded relay, and Ann's daemon beside it."""
    cast = cast or Cast()
    with running(directory / "relay") as relay:
        ann = founder(Person(directory / "ann"), relay.url)
        ben = member_of(Person(directory / "ben"), ann)
        member_of(Person(directory / "carl"), ann)
        _seed_ann(ann, cast)
        _seed_ben(ben, cast)
        relay.ask("POST", "/v1/messages", b"{}")
        relay.ask("POST", "/v1/messages", b"[]")
        with ann.daemon():
            ann.until_connected()
            with ben.daemon():
                ben.until(lambda client: not client.health().queue_depth)
                ann.until(lambda client: len(client.inbox().messages) >= 4)
                ann.until(lambda client: client.health().dead >= DEAD)
                ann.until(lambda client: len(ben_inbox(ben)) >= 1)
                ann.until(lambda client: not client.health().queue_depth)
                # What Ben has not signed for when he leaves, nobody is told.
                until(lambda: (receipts(ann), receipts(ben)) == (1, 4))
            _busy(ann, cast)
            yield Town(relay, ann, ben, relay.url)


def ben_inbox(ben: Person) -> tuple[object, ...]:
    with ben.client() as client:
        return client.inbox().messages


def receipts(person: Person) -> int:
    """Of how many sends somebody has the recipient's word."""
    with closing(device_database.open_to_read(person.home / "device.db")) as engine, engine.read() as transaction:
        return int(transaction.rows("SELECT count(*) FROM send_receipt WHERE status = 'stored'")[0][0])


def _seed_ann(ann: Person, cast: Cast) -> None:
    """Messages to somebody who is then revoked, one that arrives, and documents, one of them in conflict."""
    with at_work(Home(ann.home)) as device:
        _look_around(device)
        _send(device, "ben", "first of all", client_message_id=cast.first_id)
        for number in range(DEAD):
            _send(device, "carl", f"to Carl {number}\n{cast.text}", client_message_id=f"dead-{number}")

        async def decide() -> None:
            async with in_session(device) as session:
                await administration.run(session, "revoke", ipc_administration.WhoArguments(who="carl"))
                rename = ipc_administration.RenameArguments(who="ben", name=cast.ben)
                await administration.run(session, "rename", rename)
                for _ in range(2):  # the second one is refused, and told to whoever asked
                    with suppress(Refused):
                        await administration.run(
                            session, "create_topic", ipc_administration.TopicArguments(topic="news")
                        )

        asyncio.run(decide())
        _write_documents(device, cast)


def _look_around(device: Device) -> None:
    """Learn who is in the mesh."""

    async def look() -> None:
        async with in_session(device) as session:
            await administration.run(session, "list_members", ipc_administration.Arguments())

    asyncio.run(look())


def _send(device: Device, to: str, text: str, **more: object) -> None:
    membership = device.home.membership()
    assert membership is not None
    facts = Facts(mesh=membership.mesh, member=membership.member)
    asked = msgspec.convert({"to": to, "message": text, **more}, send.Send)
    answer = device.do(lambda tx: send.send(tx, facts, directories.load(tx), device.clock(), device.random, asked))
    assert answer.http_status == 202


def _write_documents(device: Device, cast: Cast) -> None:
    """A conflict: another home of the same author wrote a note of the same name, and neither knew of the other."""
    elsewhere = SqliteEngine(MEMORY)
    device_database.prepare(elsewhere, wall_clock, os.urandom)
    author = device.do(lambda tx: authors.make(tx, wall_clock(), os.urandom))
    membership = device.home.membership()
    assert membership is not None
    device.do(lambda tx: feed_relays.add(tx, wall_clock(), membership.relay, membership.relay_pubkey, is_home=True))
    writer = Writer(author, device.pubkey)
    for name, body in (("plans", "Monday: sail\nTuesday: rest"), ("shopping", "milk"), (cast.note, cast.text)):
        edit = Edit(name=name, body=body)
        edited = device.do(lambda tx, edit=edit: feed_documents.put(tx, wall_clock(), os.urandom, writer, edit))  # type: ignore[misc]
        device.do(lambda tx, edited=edited: feed_relays.offer_to_all(tx, wall_clock(), os.urandom, edited))  # type: ignore[misc]
    with elsewhere.write() as tx:
        other = Writer(authors.keep(tx, wall_clock(), author.secret), "ab" * 32)
        made = feed_documents.put(
            tx, wall_clock(), os.urandom, other, Edit(name="plans", body="Monday: swim\nTuesday: rest")
        )
    elsewhere.close()
    assert made.event is not None
    raw = made.event
    device.do(lambda tx: feed_documents.apply(tx, wall_clock(), author, [read_arrived(raw, author.pubkey)]))


def _seed_ben(ben: Person, cast: Cast) -> None:
    with at_work(Home(ben.home)) as device:
        _look_around(device)
        for number in range(4):
            _send(device, "ann", f"from Ben {number}\n{cast.text}", client_message_id=f"ben-{number}")


def _busy(ann: Person, cast: Cast) -> None:
    """What happens while Ben is away: his queue fills, a handler fails, something is scheduled, an agent works."""
    with ann.client() as client:
        messages = client.inbox().messages
        for _ in range(5):
            client.fail(messages[0].id, f"the handler said {cast.ben}")
        client.ack(messages[1].id)
        later = wall_clock() + 3_600_000_000
        client.send(cast.ben, "later", client_message_id="later/1", not_before=later)
        for number in range(QUEUED):
            client.send(cast.ben, f"while you were away {number}", client_message_id=f"away-{number}")
    ann.until(lambda client: not client.health().queue_depth)
    for name in ("SessionStart", "UserPromptSubmit", "Stop"):
        payload = {"session_id": cast.session, "hook_event_name": name, "cwd": "/", "prompt": "hello"}
        receivers.run(ann.home, "claude", payload)
    until(lambda: receivers.rows(ann.home, "turns", "agent_session", "turns") == [1])


def until(look: Callable[[], bool]) -> None:
    give_up_at = time.monotonic() + PATIENCE_S
    while not look():
        assert time.monotonic() < give_up_at
        time.sleep(0.05)
