"""Checks that the versions of documents are what was signed, and are current exactly as their clocks say."""

from collections import defaultdict
from collections.abc import Iterator

import msgspec

from holdfast.device import feed_documents
from holdfast.protocol import event as events
from holdfast.protocol.clock import VectorClock, dominates
from holdfast.protocol.refusal import Refused
from holdfast.store.engine import Engine, Row, Transaction
from holdfast.store.finding import Finding
from holdfast.store.statements import Statements

_SQL = Statements(__package__, "feed_verify.sql")

PAGE_DOCUMENTS = 100


def verify(engine: Engine) -> Iterator[Finding]:
    """Every version of a document is what was signed, and current exactly if nothing that is known dominates it."""
    after: str | None = ""
    while after is not None:
        with engine.read() as transaction:
            versions, after = _page(transaction, after)
        for d, known in versions.items():
            for detail in _wrong(d, known):
                yield Finding("documents", verify.__doc__ or "", detail)


def raise_fallen(transaction: Transaction) -> None:
    """Make versions current again whose successors were lost with a damaged file, if none that is left dominates them."""
    after: str | None = ""
    while after is not None:
        versions, after = _page(transaction, after)
        for known in versions.values():
            clocks = [feed_documents.read_clock(clock) for _, _, clock, *_ in known]
            for event_id, _, text, *_ in known:
                clock = feed_documents.read_clock(text)
                if not any(dominates(other, clock) for other in clocks):
                    transaction.run(_SQL["raise"], {"event_id": event_id})


def _page(transaction: Transaction, after: str) -> tuple[dict[str, list[Row]], str | None]:
    """The versions of the next documents, and the document after which to go on; None at the end."""
    names = transaction.rows(_SQL["documents"], {"after": after, "limit": PAGE_DOCUMENTS})
    versions: dict[str, list[Row]] = defaultdict(list)
    for d, *rest in transaction.lookup(_SQL["versions"], ("d",), names):
        versions[d].append(tuple(rest))
    return versions, names[-1][0] if names else None


def _wrong(d: str, versions: list[Row]) -> Iterator[str]:
    clocks: dict[bytes, VectorClock] = {}
    for event_id, o, clock, *_, raw in versions:
        try:
            kept = feed_documents.read_kept(raw)
            events.verify(kept.event)  # the signature as well, because others who get the version from us check it
            clocks[event_id] = feed_documents.read_clock(clock)
        except (Refused, msgspec.DecodeError) as error:
            yield f"version {event_id.hex()} of {d} cannot be read: {error}"
            continue
        if (kept.event_id, kept.said.d, kept.said.o, kept.said.clock) != (event_id, d, o, clocks[event_id]):
            yield f"version {event_id.hex()} of {d} is not what was signed"
    for event_id, _, _, status, superseded_by, _ in versions:
        if event_id in clocks:
            yield from _misplaced(d, event_id, status, superseded_by, clocks)


def _misplaced(
    d: str, event_id: bytes, status: str, superseded_by: bytes | None, clocks: dict[bytes, VectorClock]
) -> Iterator[str]:
    clock = clocks[event_id]
    newer = [other for other, known in clocks.items() if dominates(known, clock)]
    if status != "superseded" and newer:
        yield f"version {event_id.hex()} of {d} is {status}, and {newer[0].hex()} knew of it"
    # The version that superseded it may be trimmed, but then a later one that dominates both is here.
    if status == "superseded" and not newer:
        yield f"version {event_id.hex()} of {d} is superseded, and nothing here knew of it"
    if superseded_by in clocks and superseded_by not in newer:
        yield f"version {event_id.hex()} of {d} is said to be superseded by {superseded_by.hex()}, which did not know of it"
