"""What the next batch reads: of each history the entries between the lake's position and the end of the log.

A restored log goes on under another id, and has an entry that says where it left the old one. A log that ends before the lake's
position, has another entry there, or lost unread entries by pruning cannot be read without a gap: that becomes a finding, not an error.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from holdfast.pipeline import checkpoint, pages
from holdfast.pipeline.checkpoint import Checkpoint
from holdfast.pipeline.pages import Place
from holdfast.pipeline.table import Range
from holdfast.protocol.history import Kind, Restored
from holdfast.store import faults, notes

RELAY = "relay:"
DEVICE = "device:"

BATCH_ENTRIES_MAX = 5_000_000
"""How many entries one batch reads at most, over all histories; the rest is left to the next one. A batch costs some seconds whatever it reads."""

SEARCH_ENTRIES = 100_000
"""How many entries are looked through at once for the one that tells of a restoration."""


class OtherHistory(faults.Fault):
    what = "this is not the log that the lake has read, and it has no entry that says it was restored from that one"
    remedy = (
        "Correct the address, begin another lake for this log, or set this one aside with `holdfast pipeline backfill --anew` "
        "and run again. If the relay was restored a second time from one backup, this log left an older one than the lake has read."
    )


class SourceTwice(faults.Fault):
    what = "two of the given addresses show the same history"
    remedy = "Name each relay and each device once."


@dataclass(frozen=True)
class Source:
    """A history, and where it is read."""

    origin: str
    place: Place
    head: pages.Head
    acknowledged: Checkpoint | None = None  # the relay's checkpoint for the consumer that our token names


@dataclass(frozen=True)
class Mark:
    """Where the lake stands in one history."""

    origin: str
    log_id: bytes
    seq: int
    chain: bytes | None


LakeChain = Callable[[str, bytes, int], bytes | None]
"""Gives the chain of the lake's entry at a position of a log, by origin and log id; None if the lake has none there."""


class Loss(msgspec.Struct, frozen=True):
    """Something that planning found wrong with a log, with the columns of a finding."""

    origin: str
    kind: str
    key: str
    detail: str
    seq: int | None
    is_violation: bool


@dataclass(frozen=True)
class Plan:
    """A batch as it is planned: what it reads, and how."""

    number: int
    ranges: tuple[Range, ...]
    losses: tuple[Loss, ...]
    full: bool
    is_behind: bool = False  # more waits than it reads; nothing is compared before a batch has caught up
    rebuild: tuple[str, ...] = ()  # tables that are first computed anew from all that the lake has

    @property
    def entries(self) -> int:
        return sum(one.until - one.after for one in self.ranges)

    def encode(self) -> bytes:
        return notes.write(self)

    @classmethod
    def decode(cls, raw: bytes) -> "Plan":
        return notes.read(raw, cls)


def find_devices(places: Sequence[Place]) -> list[Source]:
    """Ask devices for their identities and the ends of their logs."""
    return _as_they_stand([(_device_origin(place), place) for place in places])


def find_sources(relay: Place, devices: Sequence[Place]) -> list[Source]:
    """Ask a relay and devices for their identities and the ends of their logs."""
    named = [(_device_origin(place), place) for place in devices]
    return _as_they_stand([(_relay_origin(relay), relay), *named])


def renewed(sources: Sequence[Source]) -> list[Source]:
    """The same histories as they stand now."""
    return _as_they_stand([(source.origin, source.place) for source in sources])


def _as_they_stand(named: Sequence[tuple[str, Place]]) -> list[Source]:
    """Sources with their current heads, relays also with their current checkpoints; a history that is named twice is refused."""
    origins = [origin for origin, _ in named]
    for origin in origins:
        if origins.count(origin) > 1:
            raise SourceTwice(origin)
    found = {}
    # The relay last, so that its head covers everything that it signed for the devices asked before.
    for origin, place in sorted(named, key=lambda one: one[0].startswith(RELAY)):
        head = pages.read_head(place)
        found[origin] = Source(origin, place, head, checkpoint.find(place) if origin.startswith(RELAY) else None)
    return [found[origin] for origin in origins]


def _relay_origin(place: Place) -> str:
    document = pages.read_document(place, "/", "application/nostr+json")
    return RELAY + _member(place, document, "pubkey")


def _device_origin(place: Place) -> str:
    document = pages.read_document(place, "/v1/health")
    return f"{DEVICE}{_member(place, document, 'mesh')}/{_member(place, document, 'member')}"


def _member(place: Place, document: Mapping[str, Any], name: str) -> str:
    value = document.get(name)
    if not isinstance(value, str) or not value:
        raise pages.SourceError(f"{place.url} does not say its {name}: is it a Holdfast, and has it joined a mesh?")
    return value


def make_plan(
    batch: int,
    sources: Sequence[Source],
    marks: Mapping[str, Mark],
    lake_chain: LakeChain,
    *,
    full: bool,
    entries_max: int = BATCH_ENTRIES_MAX,
    uncompared: Collection[str] = (),
) -> Plan:
    """Plan a batch. If more entries wait than it may read, the histories share the limit, and what one does not need goes to the others.

    Histories are compared with the state of now, most of which has changed since the entries of a batch that is far behind. Such a
    batch compares nothing; the one that catches up compares everything, if a history was left `uncompared`.
    """
    found = [_range(source, marks.get(source.origin), lake_chain) for source in sources]
    wanted = [one.until - one.after for one, _ in found]
    widths = _shares(wanted, entries_max)
    ranges = [
        Range(one.origin, one.log_id, one.after, one.after + width, one.chain)
        for (one, _), width in zip(found, widths, strict=True)
    ]
    losses = [loss for _, lost in found for loss in lost]
    losses += [loss for source in sources for loss in _acknowledged_unread(source, marks.get(source.origin))]
    is_whole = widths == wanted
    is_owed = any(source.origin in uncompared for source in sources)
    return Plan(batch, tuple(ranges), tuple(losses), is_whole and (full or is_owed), is_behind=not is_whole)


def _shares(wanted: Sequence[int], most: int) -> list[int]:
    """How much of `most` each gets: those who want least come first, so that the others can share what they leave."""
    shares = [0] * len(wanted)
    for done, number in enumerate(sorted(range(len(wanted)), key=lambda number: wanted[number])):
        shares[number] = min(wanted[number], -(-most // (len(wanted) - done)))
        most -= shares[number]
    return shares


def waiting_entries(sources: Sequence[Source], marks: Mapping[str, Mark]) -> int:
    """How many entries the lake lacks, by the heads of the logs."""
    return sum(
        max(0, source.head.seq - (marks[source.origin].seq if source.origin in marks else 0)) for source in sources
    )


def _range(source: Source, mark: Mark | None, lake_chain: LakeChain) -> tuple[Range, list[Loss]]:
    head = source.head
    if mark is None:
        return _first_range(source)
    if mark.log_id != head.log_id:
        return _restored_range(source, mark, lake_chain)
    return _truncated(source, mark, lake_chain) if head.seq < mark.seq else _range_behind(source, mark)


def _truncated(source: Source, mark: Mark, lake_chain: LakeChain) -> tuple[Range, list[Loss]]:
    """Nothing is read of a log that ends before the lake's position. Its position is the last up to which it is the lake's."""
    head = source.head
    detail = f"the log ends at {head.seq}, and the lake has its entries up to {mark.seq}"
    chain, last = _chain_at(source, head.seq), head.seq
    if chain is not None and chain != lake_chain(mark.origin, mark.log_id, head.seq):
        # It has grown since it was cut off. Where the two part is not known.
        last = head.anchor_seq
    # The key is what was lost, not where the log ends: a log that grows afterwards is no new finding.
    return _nothing(mark), [_loss(source, "log_truncated", f"{mark.seq}", detail, last)]


def _nothing(mark: Mark) -> Range:
    """The range of a history that is not read any further."""
    return Range(mark.origin, mark.log_id, mark.seq, mark.seq, mark.chain)


def _range_behind(source: Source, mark: Mark) -> tuple[Range, list[Loss]]:
    """The range after the lake's position; if the log has another entry there than the lake, nothing, and a loss."""
    chain = _chain_at(source, mark.seq) if mark.chain is not None else None
    if chain is None or chain == mark.chain:
        return _range_after(source, mark.seq, mark.chain)
    return _rewritten(source, mark, mark.seq)


def _rewritten(source: Source, mark: Mark, seq: int) -> tuple[Range, list[Loss]]:
    """Nothing is read of a log whose entry at a position is not the lake's."""
    detail = (
        f"entry {seq} of the log has another chain than the lake's entry {seq}: the log was cut off and has grown again, or "
        "was altered, somewhere up to there"
    )
    # Where the two part is not known, so everything that the relay still has is in doubt.
    return _nothing(mark), [_loss(source, "log_rewritten", f"{seq}", detail, source.head.anchor_seq + 1)]


def _chain_at(source: Source, seq: int) -> bytes | None:
    """The chain of one entry of a log; None if it is not there any more: then the next entry is compared with the lake's (`chain_break`)."""
    if seq <= source.head.anchor_seq:
        return None
    try:
        found = pages.read_pages(source.place, "history", seq - 1, seq, ("seq", "chain"), source.head.log_id, gaps=True)
        chains = [chain for page in found for batch in page.batches for chain in batch.column("chain").to_pylist()]
    except (pages.RangePruned, pages.OtherLog):  # since its head was read
        return None
    return chains[0] if chains else None


def _range_after(source: Source, seq: int, chain: bytes | None) -> tuple[Range, list[Loss]]:
    """The range after a position; a loss if part of it was pruned."""
    head = source.head
    if head.anchor_seq <= seq:
        return Range(source.origin, head.log_id, seq, head.seq, chain), []
    detail = f"the entries {seq + 1} to {head.anchor_seq} were pruned before the lake had read them"
    loss = _loss(source, "pruned_unread", f"{seq + 1}-{head.anchor_seq}", detail, None)
    return Range(source.origin, head.log_id, head.anchor_seq, head.seq, None), [loss]


def _first_range(source: Source) -> tuple[Range, list[Loss]]:
    head = source.head
    losses = []
    if head.anchor_seq:
        detail = f"the entries up to {head.anchor_seq} were pruned before this lake began"
        losses = [_loss(source, "began_late", f"1-{head.anchor_seq}", detail, None, is_violation=False)]
    return Range(source.origin, head.log_id, head.anchor_seq, head.seq, None), losses


def _acknowledged_unread(source: Source, mark: Mark | None) -> list[Loss]:
    """A finding if a relay's checkpoint is past this lake's position: the relay may then prune what this lake lacks."""
    told, known = source.acknowledged, 0 if mark is None else mark.seq
    if told is None or told.log_id != source.head.log_id or told.seq <= known:
        return []
    detail = (
        f"the relay was told by {told.consumer} that its entries are kept up to {told.seq}, and this lake has them up to {known}: "
        "another lake uses the same token, or this one was begun again or put back from an older copy"
    )
    return [_loss(source, "acknowledged_unread", f"{told.consumer}/{told.seq}", detail, None, is_violation=False)]


def _restored_range(source: Source, mark: Mark, lake_chain: LakeChain) -> tuple[Range, list[Loss]]:
    """The range of a restored log after the point where it left the log that the lake has read."""
    fork = _fork_from(source, mark.log_id)
    if mark.seq <= fork.fork_seq:
        return _range_behind(source, mark)
    if lake_chain(mark.origin, mark.log_id, fork.fork_seq) not in (None, fork.fork_chain):
        return _rewritten(source, mark, fork.fork_seq)
    return _range_after(source, fork.fork_seq, fork.fork_chain)


def _fork_from(source: Source, log_id: bytes) -> Restored:
    """The entry of the restoration that left a given log, searched from the end: restorations are rare, and then recent."""
    until = source.head.seq
    while until > source.head.anchor_seq:
        after = max(source.head.anchor_seq, until - SEARCH_ENTRIES)
        for page in pages.read_pages(
            source.place, "history", after, until, ("seq", "kind", "detail"), source.head.log_id, gaps=True
        ):
            for batch in page.batches:
                for row in batch.to_pylist():
                    if row["kind"] == Kind.RESTORED:
                        found = Restored.decode(row["detail"])
                        if found.old_log_id == log_id:
                            return found
        until = after
    raise OtherHistory(source.place.url, f"log {source.head.log_id.hex()}, the lake has read {log_id.hex()}")


def _loss(source: Source, kind: str, key: str, detail: str, seq: int | None, *, is_violation: bool = True) -> Loss:
    return Loss(source.origin, kind, f"{source.origin}/{key}", detail, seq, is_violation)
