"""An author's documents in a home, inside a transaction: edits made here, and snapshots that relays bring.

The clock of an edit made here dominates everything known here. A snapshot that comes is applied if it dominates all versions
known here, ignored if one of them dominates it, and a conflict otherwise. So nothing that a person wrote is ever replaced by
an edit that did not know of it.
"""

import hashlib
from collections.abc import Iterable, Sequence

import msgspec

from holdfast.device import operations
from holdfast.device.author import Author
from holdfast.protocol import document, keys, snapshot
from holdfast.protocol.clock import DEVICES_MAX, VectorClock, dominates
from holdfast.protocol.document import Content, Outcome, Ruling, Version
from holdfast.protocol.event import Event, decode, encode, verify
from holdfast.protocol.history import Draft, Kind
from holdfast.protocol.refusal import Refusal, Refused
from holdfast.protocol.schedule import SECOND
from holdfast.protocol.sealing import NONCE_BYTES
from holdfast.protocol.snapshot import Operation, Snapshot
from holdfast.store import history
from holdfast.store.engine import Transaction, Value
from holdfast.store.statements import Statements
from holdfast.store.world import Random

SQL = Statements(__package__, "feed_documents.sql")

FEED = "feed"  # the destination kind of snapshots; its ref in the history is the author, in the operation log the relay
VERSIONS_KEPT = 10  # superseded versions of one document
SEEN_CHARACTERS_MIN = 8  # of a version's id, of which a caller may give the beginning

CURRENT, _GONE = "current", "gone"


class Writer(msgspec.Struct, frozen=True):
    """Who edits: an author, in a home."""

    author: Author
    device: str  # the home's public key

    def device_id(self, transaction: Transaction) -> str:
        """The device id under which this home counts its edits in clocks; another one after each new epoch."""
        return document.device_id(self.author.pubkey, self.device, operations.epoch(transaction))


class Edit(msgspec.Struct, frozen=True, kw_only=True):
    """A change that a person wants: the new text, or None to delete. `seen` are the ids of the versions it replaces."""

    name: str
    body: str | None
    seen: tuple[str, ...] | None = None


class Edited(msgspec.Struct, frozen=True):
    """The result of an edit; `event` is None if nothing had to be changed."""

    event_id: bytes
    d: str
    event: bytes | None


class Arrived(msgspec.Struct, frozen=True):
    """A signed snapshot: decoded, what it says, and its bytes."""

    event: Event
    said: Snapshot
    raw: bytes

    @property
    def event_id(self) -> bytes:
        return bytes.fromhex(self.event.id)


class _Standing(msgspec.Struct, frozen=True):
    """The versions of a document that others are judged by: the current ones, and those that `give_up` marked as gone."""

    current: tuple[Version, ...]
    gone: tuple[Version, ...]

    @property
    def clocks(self) -> list[VectorClock]:
        return [version.clock for version in (*self.current, *self.gone)]

    @property
    def is_conflict(self) -> bool:
        return document.is_conflict(version.o for version in self.current)


def object_id(d: str) -> bytes:
    """The object id of a document's snapshots in the operation log."""
    return hashlib.sha256(d.encode()).digest()


def read_arrived(raw: bytes, author: str) -> Arrived:
    """Decode and verify a snapshot that a relay brought; refuses one that is not a document signed by this author."""
    event = decode(raw)
    if event.pubkey != author or event.kind != document.DOCUMENT_KIND:
        raise Refused(Refusal.KIND_UNSUPPORTED, f"event {event.id} is no document of this author")
    verify(event)
    return Arrived(event, snapshot.from_event(event), raw)


def read_kept(raw: bytes) -> Arrived:
    """Decode a snapshot that was verified before it was kept here."""
    event = decode(raw)
    return Arrived(event, snapshot.from_event(event), raw)


def put(transaction: Transaction, now: int, random: Random, writer: Writer, edit: Edit) -> Edited:
    """Make, change or delete a document; refuses one in conflict."""
    document.check_name(edit.name)
    d = document.document_id(writer.author.secret, edit.name)
    known = _standing(transaction, d)
    if known.is_conflict:
        versions = len(known.current)
        raise Refused(Refusal.DOCUMENT_CONFLICTED, f"document {edit.name} has {versions} versions side by side")
    _check_readable(transaction, writer.author, known, edit)
    is_there = any(version.o is Operation.PUT for version in known.current)
    if edit.body is None and not is_there:
        raise Refused(Refusal.NOT_FOUND, f"there is no document {edit.name}")
    if is_there and edit.body is not None:
        opened = _opened(transaction, writer.author, known.current[0])
        if opened is not None and opened.body == edit.body:
            return Edited(known.current[0].event_id, d, None)
    return _write(transaction, now, random, writer, edit, known, Outcome.EDITED)


def resolve(transaction: Transaction, now: int, random: Random, writer: Writer, edit: Edit) -> Edited:
    """End a conflict: the text, or the deletion, supersedes all current versions."""
    document.check_name(edit.name)
    known = _standing(transaction, document.document_id(writer.author.secret, edit.name))
    if not known.current:
        raise Refused(Refusal.NOT_FOUND, f"there is no document {edit.name}")
    if not known.is_conflict:
        raise Refused(Refusal.DOCUMENT_NOT_CONFLICTED, f"document {edit.name} is not in conflict")
    _check_readable(transaction, writer.author, known, edit)
    return _write(transaction, now, random, writer, edit, known, Outcome.RESOLVED)


def apply(transaction: Transaction, now: int, author: Author, arrived: Sequence[Arrived]) -> list[Ruling | None]:
    """Apply snapshots in order; returns the ruling on each, None for one that is known already."""
    wanted = sorted({(one.event_id,) for one in arrived})
    known = {event_id for (event_id,) in transaction.lookup(SQL["known"], ("event_id",), wanted)}
    rulings: list[Ruling | None] = []
    for one in arrived:
        ruling = None
        if one.event_id not in known:
            for told in _without_twin(transaction, author, one):
                ruling = _apply(transaction, now, author, told)
        rulings.append(ruling)
        known.add(one.event_id)
    return rulings


def is_ahead(transaction: Transaction, writer: Writer, arrived: Iterable[Arrived]) -> bool:
    """Whether a snapshot has edits of this home that this home does not know: then the home went back in time."""
    own = writer.device_id(transaction)
    for one in arrived:
        counter = dict(one.said.clock.entries).get(own, 0)
        if counter:
            known = transaction.rows(SQL["clocks"], {"d": one.said.d})
            if counter > max((dict(read_clock(clock).entries).get(own, 0) for (clock,) in known), default=0):
                return True
    return False


def unsent(transaction: Transaction) -> list[bytes]:
    """The ids of current edits made here that some relay is not known to have."""
    return [event_id for (event_id,) in transaction.rows(SQL["unsent"])]


def sign_anew(transaction: Transaction, now: int, random: Random, writer: Writer, event_id: bytes) -> Edited | None:
    """Write an edit of this home once more, with its present device id and date.

    None if the edit is no longer current; it may even be trimmed, and still wait in the log. If the document's clock is full,
    the text is written to a document of its own.
    """
    kept = transaction.rows(SQL["event_of"], {"event_id": event_id})
    if not kept:
        return None
    ((raw, d),) = kept
    known = _standing(transaction, d)
    old = tuple(version for version in known.current if version.event_id == event_id)
    content = open_event(writer.author, decode(raw), d)
    if not old or content is None:
        return None
    edit = Edit(name=content.name, body=content.body)
    try:
        return _write(transaction, now, random, writer, edit, _Standing(old, ()), Outcome.EDITED)
    except Refused as refused:
        if refused.refusal is not Refusal.DOCUMENT_FULL:
            raise
        return _write_beside(transaction, now, random, writer, edit, event_id)


def _write_beside(
    transaction: Transaction, now: int, random: Random, writer: Writer, edit: Edit, event_id: bytes
) -> Edited | None:
    """Write an edit whose document has a full clock to a document of its own, unless that was done before.

    Under its old counter it could be mistaken for an edit that this home forgot, and be hidden by that edit's successors.
    """
    ending = f" ({event_id.hex()[:SEEN_CHARACTERS_MIN]})"
    name = edit.name[: document.NAME_CHARACTERS_MAX - len(ending)] + ending
    known = _standing(transaction, document.document_id(writer.author.secret, name))
    if edit.body is None or known.current:
        return None
    return _write(transaction, now, random, writer, Edit(name=name, body=edit.body), known, Outcome.EDITED)


def give_up(transaction: Transaction, now: int, author: Author, event_id: bytes, seq: int) -> bool:
    """Mark a version as gone, since a deletion that a relay has forgotten dominates it; returns whether it was current."""
    if not transaction.run(SQL["give_up"], {"event_id": event_id}):
        return False
    ((d,),) = transaction.rows(SQL["document_of"], {"event_id": event_id})
    draft = Draft(
        kind=Kind.COMPACTED,
        destination_kind=FEED,
        destination_ref=author.pubkey,
        event_id=event_id,
        reason="deleted",
        detail=seq.to_bytes(8, "big") + d.encode(),
    )
    history.append(transaction, now, [draft])
    return True


def write_clock(clock: VectorClock) -> str:
    """A clock as the store has it."""
    return msgspec.json.encode(clock.entries).decode()


def read_clock(text: str) -> VectorClock:
    return VectorClock(msgspec.json.decode(text, type=tuple[tuple[str, int], ...]))


def _standing(transaction: Transaction, d: str) -> _Standing:
    found: dict[str, list[Version]] = {CURRENT: [], _GONE: []}
    for event_id, o, clock, status in transaction.rows(SQL["standing"], {"d": d}):
        found[status].append(Version(event_id, Operation(o), read_clock(clock)))
    return _Standing(tuple(found[CURRENT]), tuple(found[_GONE]))


def _check_readable(transaction: Transaction, author: Author, known: _Standing, edit: Edit) -> None:
    """Refuse an edit that would replace versions other than those it names, or one that cannot be read here."""
    current = {version.event_id.hex() for version in known.current}
    if edit.seen is not None and {_meant(seen, current) for seen in edit.seen} != current:
        raise Refused(Refusal.DOCUMENT_CHANGED, f"document {edit.name} is not what was seen")
    if edit.seen is None and any(_opened(transaction, author, version) is None for version in known.current):
        detail = (
            f"document {edit.name} has a version that cannot be read here; name it as seen to replace it all the same"
        )
        raise Refused(Refusal.UNREADABLE, detail)


def _meant(seen: str, current: Iterable[str]) -> str | None:
    """The one version whose id begins like this; None if there is none, or more than one."""
    found = [event_id for event_id in current if event_id.startswith(seen)]
    return found[0] if len(found) == 1 and len(seen) >= SEEN_CHARACTERS_MIN else None


def _opened(transaction: Transaction, author: Author, version: Version) -> Content | None:
    """The content of a version; None if it cannot be opened here."""
    ((raw, d),) = transaction.rows(SQL["event_of"], {"event_id": version.event_id})
    return open_event(author, decode(raw), d)


def open_event(author: Author, event: Event, d: str) -> Content | None:
    """The content of a snapshot; None if it cannot be opened here."""
    try:
        return document.open_content(author.sealing_key, author.secret, event, d)
    except Refused:
        return None


def _write(
    transaction: Transaction,
    now: int,
    random: Random,
    writer: Writer,
    edit: Edit,
    known: _Standing,
    outcome: Outcome,
) -> Edited:
    author = writer.author
    content = Content(version=document.CONTENT_VERSION, name=edit.name, body=edit.body)
    sealed = document.seal_content(author.sealing_key, content, random(NONCE_BYTES))
    o = Operation.DELETE if edit.body is None else Operation.PUT
    clock = document.successor(known.clocks, writer.device_id(transaction))
    d = document.document_id(author.secret, edit.name)
    event = document.sign_snapshot(author.secret, now // SECOND, d, o, clock, sealed, random(keys.AUX_BYTES))
    arrived = Arrived(event, snapshot.from_event(event), encode(event))
    ruling = Ruling(outcome, tuple(version.event_id for version in known.current))
    _keep(transaction, now, author, arrived, edit.name, ruling, known, is_own=True)
    return Edited(arrived.event_id, d, arrived.raw)


def has_twin(transaction: Transaction, author: Author, arrived: Iterable[Arrived]) -> bool:
    """Whether a snapshot came that is not known here, while another one with the same clock is."""
    return any([one] != _without_twin(transaction, author, one) for one in arrived)


def _without_twin(transaction: Transaction, author: Author, arrived: Arrived) -> list[Arrived]:
    """The snapshots to apply for one: itself, or if another one here has the same clock, both with clocks set apart."""
    said = arrived.said
    same: dict[str, Value] = {"d": said.d, "clock": write_clock(said.clock), "event_id": arrived.event_id}
    twins = transaction.rows(SQL["twins"], same)
    is_full = len(said.clock.entries) == DEVICES_MAX  # no entry is left by which to set it apart
    if is_full or _is_known(transaction, arrived) or not (twins or _had_twin(transaction, arrived)):
        return [arrived]
    known = _standing(transaction, said.d).clocks
    both = (*(read_kept(raw) for raw, status in twins if status == CURRENT), arrived)
    apart = [_apart(author, one) for one in both]
    if any(clock == apart[-1].said.clock or dominates(clock, apart[-1].said.clock) for clock in known):
        return [arrived]  # both were set apart before
    return apart


def _had_twin(transaction: Transaction, arrived: Arrived) -> bool:
    """Whether another edit with this clock was made here that is trimmed already, but still waits for a relay."""
    said = arrived.said
    if not any(dominates(clock, said.clock) for clock in _standing(transaction, said.d).clocks):
        return False
    waiting = transaction.rows(SQL["waiting_of_document"], {"object_id": object_id(said.d)})
    made = (read_kept(raw) for (raw,) in waiting)
    return any(one.said.clock == said.clock and one.event_id != arrived.event_id for one in made)


def _is_known(transaction: Transaction, arrived: Arrived) -> bool:
    return bool(transaction.rows(SQL["document_of"], {"event_id": arrived.event_id}))


def _apart(author: Author, arrived: Arrived) -> Arrived:
    event = document.set_apart(author.secret, arrived.event, arrived.said.clock)
    return Arrived(event, snapshot.from_event(event), encode(event))


def _apply(transaction: Transaction, now: int, author: Author, arrived: Arrived) -> Ruling:
    said = arrived.said
    known = _standing(transaction, said.d)
    ruling = document.judge(said.clock, said.o, known.current, [version.clock for version in known.gone])
    if ruling.outcome is not Outcome.DOMINATED:
        opened = open_event(author, arrived.event, said.d)
        name = None if opened is None else opened.name
        _keep(transaction, now, author, arrived, name, ruling, known, is_own=False)
        if ruling.outcome is Outcome.CONFLICT:
            transaction.run(SQL["tell_deletions"], {"d": said.d})
    return ruling


def _keep(
    transaction: Transaction,
    now: int,
    author: Author,
    arrived: Arrived,
    name: str | None,
    ruling: Ruling,
    known: _Standing,
    *,
    is_own: bool,
) -> None:
    """Store a version as current, and mark those that it supersedes."""
    said = arrived.said
    transaction.run(
        SQL["keep_snapshot"],
        {
            "event_id": arrived.event_id,
            "d": said.d,
            "name": name,
            "o": said.o.value,
            "clock": write_clock(said.clock),
            "created_at": said.created_at,
            "now": now,
            "is_own": int(is_own),
            "event": arrived.raw,
        },
    )
    outlived = [version.event_id for version in known.gone if dominates(said.clock, version.clock)]
    for event_id in (*ruling.superseded, *outlived):
        transaction.run(SQL["supersede"], {"event_id": event_id, "by": arrived.event_id})
    for (event_id,) in transaction.rows(SQL["trim"], {"d": said.d, "kept": VERSIONS_KEPT}):
        transaction.run(SQL["forget_sightings"], {"event_id": event_id})
    transaction.run(SQL["try_again"], {"d": said.d})
    history.append(transaction, now, [_draft(author, arrived, ruling.outcome)])


def _draft(author: Author, arrived: Arrived, outcome: Outcome) -> Draft:
    """The history entry of a snapshot: as in a relay's history, with the outcome for its document as reason."""
    return Draft(
        kind=Kind.SNAPSHOT,
        destination_kind=FEED,
        destination_ref=author.pubkey,
        event_id=arrived.event_id,
        size=len(arrived.raw),
        reason=outcome.value,
        detail=snapshot.detail(arrived.said),
    )
