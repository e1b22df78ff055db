"""A relay without sockets, a clock that stands still, and a few people."""

import asyncio
import hashlib
from pathlib import Path
from typing import Any

from holdfast.protocol import keys
from holdfast.protocol.event import Event
from holdfast.protocol.history import Entry, Kind
from holdfast.protocol.refusal import Refusal
from holdfast.relay.answer import Answer
from holdfast.relay.database import prepare
from holdfast.relay.relay import Relay
from holdfast.relay.settings import Settings
from holdfast.store import history
from holdfast.store.engine import Engine
from tests.people import Person, raw, secret_of
from tests.relay import store

SECRET = b"s" * 32


class Whose:
    """The relay's own identity."""

    secret = secret_of("the relay")
    pubkey = keys.public_key(secret)
    operators = (Person("operator").key,)


class Place:
    """A relay, a clock that stands still, and a few people."""

    def __init__(self, path: Path, settings: Settings, engine: Engine | None = None) -> None:
        self.now = 1_800_000_000 * 1_000_000
        self.engine = engine or store.engine(path)
        self.seed = 0
        prepare(self.engine, lambda: self.now, self.random)
        self.relay = Relay(self.engine, settings, Whose, clock=lambda: self.now, random=self.random, inline=True)
        self.alice, self.bob, self.carol = Person("alice"), Person("bob"), Person("carol")
        self.operator = Person("operator")

    def clock(self) -> int:
        return self.now

    def random(self, count: int) -> bytes:
        self.seed += 1
        return hashlib.sha256(str(self.seed).encode()).digest()[:count]

    def publish(self, *events: Event, local: bool = False) -> list[Answer]:
        return asyncio.run(self.relay.publish([raw(event) for event in events], local=local))

    def one(self, event: Event, *, local: bool = False) -> Answer:
        (answer,) = self.publish(event, local=local)
        return answer

    def settle(self) -> "Place":
        """A mesh with alice as its admin, and bob and carol."""
        self.expect(201, self.alice.found_mesh(), local=True)
        for person in (self.bob, self.carol):
            secret = hashlib.sha256(person.name.encode()).digest()
            self.expect(201, self.alice.invite(secret), person.join(secret))
        return self

    def expect(self, status: int, *events: Event, local: bool = False) -> list[Answer]:
        answers = self.publish(*events, local=local)
        assert [answer.http_status for answer in answers] == [status] * len(events), answers
        return answers

    def refused(self, refusal: Refusal, event: Event, *, local: bool = False) -> Answer:
        before = self.dump()
        answer = self.one(event, local=local)
        assert answer.refusal is refusal, answer
        assert self.dump() == before, "a refusal left something behind"
        return answer

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        with self.engine.read() as transaction:
            return transaction.rows(statement)

    def dump(self) -> dict[str, list[tuple[Any, ...]]]:
        with self.engine.read() as transaction:
            return {table: transaction.rows(f"SELECT * FROM {table}") for table in sorted(transaction.tables())}

    def entries(self, *kinds: Kind) -> list[Entry]:
        return [entry for entry in history.walk(self.engine) if not kinds or entry.kind in kinds]


def make_topic(place: Place, *subscribers: Person) -> None:
    place.expect(201, place.alice.create_topic("news"))
    for person in subscribers:
        place.expect(201, person.subscribe("news"))
    everybody = {person.name: person for person in (place.alice, *subscribers)}
    place.expect(201, place.alice.grant("news", 1, list(everybody.values())), place.alice.advance("news", 0))


def restarted(place: Place, settings: Settings) -> Place:
    """The same relay, with other settings."""
    place.relay = Relay(place.engine, settings, Whose, clock=place.clock, random=place.random, inline=True)
    return place
