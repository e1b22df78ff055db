"""The check of messages: each waiting one is compared with the digest written when it was accepted."""

from collections.abc import Iterator

from holdfast.relay.accepted import digest
from holdfast.store.engine import Engine
from holdfast.store.finding import Finding
from holdfast.store.statements import Statements

_SQL = Statements(__package__, "message_check.sql")

PAGE_MESSAGES = 100


def verify(engine: Engine) -> Iterator[Finding]:
    """A message that somebody waits for is byte for byte what was accepted."""
    after = 0
    while True:
        with engine.read() as transaction:
            page = transaction.rows(_SQL["waiting"], {"after": after, "limit": PAGE_MESSAGES})
        for seq, message_id, event_id, event, known in page:
            if known is not None and bytes(known) != digest(bytes(event_id), bytes(event)):
                yield Finding("message", verify.__doc__ or "", f"message {message_id} at position {seq} was changed")
        if not page:
            return
        after = page[-1][0]
