"""What others signed and this device keeps: messages that arrived, and receipts. A changed byte makes it worthless, and shows."""

from collections.abc import Iterator

from holdfast.protocol.event import check_id, decode
from holdfast.protocol.refusal import Refused
from holdfast.store.engine import Engine
from holdfast.store.finding import Finding
from holdfast.store.statements import Statements

_SQL = Statements(__package__, "evidence.sql")

PAGE_ROWS = 100  # events that one read transaction of a long walk takes


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
