"""Relays with any number of documents, written without signing them: for tests that need many and look at none of them closely."""

import hashlib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from holdfast.protocol import snapshot
from holdfast.protocol.event import decode
from holdfast.relay.database import open_relay
from holdfast.relay.limiter import Limiter
from holdfast.relay.settings import FeedSettings, Limits
from holdfast.relay.snapshots import Intake, SnapshotOffer
from holdfast.store.engine import Engine
from tests.relay.feed_client import NOTE, Author

AT_S = 1_700_000_000
TOGETHER = 100_000  # in one commit: ids are random, and every commit writes most of their index


def fill(data: Path, author: Author, documents: int, versions: int = 1) -> None:
    """A data directory with documents of one author, each in so many versions."""
    data.mkdir()
    engine = open_relay(data / "relay.db")
    with engine.write() as transaction:
        transaction.rows("PRAGMA cache_size = -1000000")  # a gigabyte, or random ids would wait for the disk
    shelve(engine, author, documents, versions)
    engine.close()


def shelve(engine: Engine, author: Author, documents: int, versions: int) -> None:
    """The same in a database that is open."""
    offers = _offers(author, documents, versions)
    now = (AT_S + documents) * 1_000_000  # when the last of them was made
    unhurried = Limiter(Limits(messages_per_s=1_000_000, messages_burst=1_000_000))
    while batch := list(islice(offers, TOGETHER)):
        with engine.write() as transaction:
            answers = Intake(transaction, now, FeedSettings(open=True), unhurried).take(batch)
        assert {answer.http_status for answer in answers} == {201}


def _offers(author: Author, documents: int, versions: int) -> Iterator[SnapshotOffer]:
    for version in range(1, versions + 1):
        for number in range(documents):
            raw = _raw(author, f"doc-{number:07}", version, AT_S + number)
            event = decode(raw)
            yield SnapshotOffer(event, snapshot.from_event(event), raw)


def _raw(author: Author, d: str, counter: int, at_s: int) -> bytes:
    """An event whose id and signature are made up."""
    event_id = hashlib.sha256(f"{d} {counter}".encode()).hexdigest()
    return (
        f'{{"id":"{event_id}","pubkey":"{author.key}","created_at":{at_s},"kind":{NOTE},'
        f'"tags":[["d","{d}"],["o","put"],["vc","A","{counter}"]],"content":"{"x" * 200}","sig":"{"0" * 128}"}}'
    ).encode()
