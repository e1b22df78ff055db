"""A relay's database with a crowd in it: many members, and messages that wait for each, written by the relay's own code."""

import asyncio
import os
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

import msgspec

from holdfast.protocol import ulid
from holdfast.protocol.envelope import Head
from holdfast.protocol.schedule import DAY, SECOND
from holdfast.relay import accepted
from holdfast.relay.accepted import QUEUED, Accepted
from holdfast.relay.database import open_relay
from holdfast.relay.identity import DATABASE, Identity
from holdfast.relay.offer import Offer, read
from holdfast.relay.relay import Relay
from holdfast.relay.settings import Settings
from holdfast.store.engine import Transaction
from holdfast.store.files import make_directory
from holdfast.store.world import wall_clock
from tests.people import MESH, Person, raw

TOGETHER = 10_000  # messages in one transaction


def person(number: int) -> Person:
    return Person(f"one-{number}", now_s=wall_clock() // SECOND)


def gather(data: Path, members: int, messages_each: int) -> None:
    """A data directory for a relay to run on. Everybody's messages are spread over the whole history, as they would be."""
    make_directory(data)
    identity = Identity.load(data, os.urandom)
    with closing(open_relay(data / DATABASE)) as engine:
        founder = Person("founder", now_s=wall_clock() // SECOND)
        relay = Relay(engine, Settings(), identity, inline=True)
        asyncio.run(relay.publish([raw(founder.found_mesh())], local=True))
        with engine.write() as transaction:
            _admit(transaction, members)
        offer = read(raw(founder.message(founder, b"hello" * 40)))
        assert isinstance(offer, Offer)
        for start in range(0, members * messages_each, TOGETHER):
            numbers = range(start, min(start + TOGETHER, members * messages_each))
            with engine.write() as transaction:
                taken = [_taken(offer, number, person(number % members).member) for number in numbers]
                accepted.write(transaction, wall_clock(), Settings().retention, taken)


def _admit(transaction: Transaction, members: int) -> None:
    now = wall_clock()
    people = [person(number) for number in range(members)]
    rows: Iterable[tuple[str | int, ...]] = ((MESH, one.member, one.name, "member", "active", now) for one in people)
    transaction.insert("member", ("mesh", "member", "name", "role", "status", "joined_at"), rows)
    keys = ((MESH, one.key, one.member, now) for one in people)
    transaction.insert("member_key", ("mesh", "pubkey", "member", "since"), keys)


def _taken(offer: Offer, number: int, member: str) -> Accepted:
    """The same bytes every time, under a send of their own."""
    now = wall_clock()
    head = Head(mesh=MESH, client_message_id=f"send-{number}", epoch=offer.head.epoch, sequence=number + 10)
    return Accepted(
        offer=Offer.of(offer.event, msgspec.structs.replace(offer.said, head=head), offer.raw),
        sender="member-founder",
        message_id=ulid.mint(now, number.to_bytes(ulid.RANDOM_BYTES, "big")),
        recipients=((member, QUEUED),),
        expires_at=now + 7 * DAY,
    )
