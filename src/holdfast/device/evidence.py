"""Checks that the events and message contents which this device keeps of others are still what was signed and opened."""

import hashlib
from collections.abc import Iterator

from holdfast.protocol.event import check_id, decode
from holdfast.protocol.refusal import Refused
from holdfast.store.engine import Engine
from holdfast.store.finding import Finding
from holdfast.store.statements import Statements

_SQL = Statements(__package__, "evidence.sql")

PAGE_ROWS = 100  # events that one read transaction of a long walk takes


def content_digest(object_id: bytes, meta: bytes | None, body: bytes) -> bytes:
    """The digest that is kept with a message, to notice a change of its content."""
    told = b"\0" if meta is None else b"\1" + len(meta).to_bytes(4, "big") + meta
    return hashlib.sha256(object_id + told + body).digest()


def verify_contents(engine: Engine) -> Iterator[Finding]:
    """Every message that was opened says what it said then."""
    after = 0
    while True:
        with engine.read() as transaction:
            rows = transaction.rows(_SQL["contents"], {"after": after, "limit": PAGE_ROWS})
        for arrival, object_id, meta, body, digest in rows:
            if content_digest(object_id, meta, body) != digest:
                yield Finding("contents", verify_contents.__doc__ or "", f"message {arrival} is not what arrived")
        if not rows:
            return
        after = rows[-1][0]


def verify(engine: Engine) -> Iterator[Finding]:
    """Every event of somebody else that is kept is what was signed."""
    after = b""
    while True:
        with engine.read() as transaction:
            rows = transaction.rows(_SQL["kept"], {"after": after, "limit": PAGE_ROWS})
        for event_id, raw in rows:
            if not _is_whole(event_id, raw):
                yield Finding("evidence", verify.__doc__ or "", f"event {event_id.hex()} is not what arrived")
        if not rows:
            return
        after = rows[-1][0]


def _is_whole(event_id: bytes, raw: bytes) -> bool:
    try:
        event = decode(raw)
        check_id(event)
    except Refused:
        return False
    return event.id == event_id.hex()
