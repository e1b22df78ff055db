"""A relay's database with something of everything in it, made by the relay itself."""

import asyncio
import hashlib
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TypeVar

from holdfast.protocol import keys
from holdfast.protocol.action import Block
from holdfast.protocol.event import Event, sign_event
from holdfast.protocol.history import Draft, Kind
from holdfast.relay.database import open_relay, prepare
from holdfast.relay.identity import Identity
from holdfast.relay.relay import Relay
from holdfast.relay.settings import FeedSettings, Limits, Settings
from holdfast.store import history
from holdfast.store.engine import Engine
from tests.people import Person, raw, secret_of

NOW = 1_800_000_000_000_000
TOPIC = "news"
P = TypeVar("P", str, Path)

IDENTITY = Identity(secret_of("the relay"), keys.public_key(secret_of("the relay")), ())


def populate(engine: Engine) -> None:
    """Three people, a topic, direct messages, mentions, a full queue, a block, a delivery that expired, and a note."""
    prepare(engine, lambda: NOW, _random)
    clock = [NOW]
    settings = Settings(limits=Limits(queue_messages_max=4), feed=FeedSettings(open=True))
    relay = Relay(engine, settings, IDENTITY, clock=lambda: clock[0], random=_random, inline=True)
    alice, bob, carol = Person("alice"), Person("bob"), Person("carol")
    _publish(relay, [alice.found_mesh()])
    for person in (bob, carol):
        secret = hashlib.sha256(person.name.encode()).digest()
        _publish(relay, [alice.invite(secret), person.join(secret)])
    _publish(relay, [alice.create_topic(TOPIC), *(person.subscribe(TOPIC) for person in (alice, bob, carol))])
    _publish(relay, [alice.grant(TOPIC, 1, [alice, bob, carol]), alice.advance(TOPIC, 0)])
    _publish(relay, [alice.post(TOPIC, b"to all"), alice.message(bob, b"one", mentions=(bob.member,))])
    _publish(relay, [alice.message(bob, f"more {n}".encode()) for n in range(2)])
    _publish(relay, [alice.post(TOPIC, b"bob is full", mentions=(bob.member, carol.member))])
    _publish(relay, [carol.administer(Block(member=alice.member)), alice.post(TOPIC, b"carol hears nothing")])
    _publish(relay, [_snapshot(alice, counter) for counter in range(1, 4)])
    clock[0] += settings.retention.queue_ttl_days * 86_400_000_000 + 1
    asyncio.run(relay.sweep())


def _snapshot(author: Person, counter: int) -> Event:
    tags = (("d", "a note"), ("o", "put"), ("c", "notes"), ("vc", "a device", str(counter)))
    return sign_event(author.secret, author.now_s + counter, 42061, tags[:2] + tags[2 + counter % 2 :], "", bytes(32))


def populated(path: Path) -> Path:
    """The same in a file."""
    with closing(open_relay(path)) as engine:
        populate(engine)
    return path


def append(engine: Engine, count: int, *, batch: int = 5_000) -> None:
    """Entries like those of accepts, and a little different each."""
    for start in range(0, count, batch):
        with engine.write() as transaction:
            history.append(transaction, NOW, [_draft(n) for n in range(start, min(start + batch, count))])


def with_entries(path: P, count: int) -> P:
    """A relay's database whose history has so many entries, and nothing else."""
    with closing(open_relay(path)) as engine:
        append(engine, count)
    return path


def _draft(n: int) -> Draft:
    outcomes = (("bob", "queued"), ("cäcilie", "full"))
    return Draft(
        kind=Kind.DEDUPE_EXPIRED,
        mesh="m" if n % 2 else None,
        message_id=f"message {n} 🐚",
        sequence=n - 5 if n % 3 else None,
        recipients=outcomes[: n % 3],
        mentions=("bob", "")[: n % 3],
        event_id=hashlib.sha256(str(n).encode()).digest() if n % 4 else None,
        was_stored=(None, True, False)[n % 3],
        reason=("", None)[n % 2],
        detail=b"\x00\xff" * (n % 3),
    )


def _publish(relay: Relay, events: Sequence[Event]) -> None:
    answers = asyncio.run(relay.publish([raw(event) for event in events], local=True))
    assert {answer.http_status for answer in answers} == {201}, answers


_drawn = [0]


def _random(count: int) -> bytes:
    _drawn[0] += 1
    return hashlib.sha256(str(_drawn).encode()).digest()[:count]
