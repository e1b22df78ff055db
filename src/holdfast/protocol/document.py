"""Documents on the author's side: named texts sealed into snapshots, and what an arriving snapshot changes.

A relay knows a document by a digest of its name that only the author's key can compute, so it never learns the name. The
clock of an edit covers everything that its home knew. So of two edits one dominates the other, or they are a conflict
that a person must resolve; until then the document is read-only.
"""

import hashlib
from collections.abc import Iterable, Sequence
from enum import StrEnum
from functools import reduce

import msgspec
import rfc8785
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.hmac import HMAC

from holdfast.protocol import clock as clocks
from holdfast.protocol import sealing
from holdfast.protocol.clock import DEVICES_MAX, VectorClock, dominates
from holdfast.protocol.event import Event, sign_event
from holdfast.protocol.keys import AUX_BYTES, public_key
from holdfast.protocol.payload import PAYLOAD_BYTES_MAX
from holdfast.protocol.refusal import Refusal, Refused
from holdfast.protocol.snapshot import Operation
from holdfast.protocol.tags import check_type, shown

DOCUMENT_KIND = 44_201  # a kind of the sync range
NAME_CHARACTERS_MAX = 256
CONTENT_VERSION = 1
DEVICE_ID_CHARACTERS = 32

_NAME_KEY = b"holdfast document name 1\x00"
_DEVICE = b"holdfast document device 1\x00"
_APART = b"holdfast document apart 1\x00"


class Content(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The plaintext of a snapshot. A deletion has no body."""

    version: int
    name: str
    body: str | None = None


class Outcome(StrEnum):
    """What a snapshot did to its document."""

    EDITED = "edited"  # it was made in this home
    APPLIED = "applied"  # it arrived, and knew of all current ones
    CONFLICT = "conflict"  # it arrived, and did not know of some current one
    RESOLVED = "resolved"  # it ended a conflict
    DOMINATED = "dominated"  # a known one already covers it


class Version(msgspec.Struct, frozen=True):
    """The part of a known snapshot that `judge` needs."""

    event_id: bytes
    o: Operation
    clock: VectorClock


class Ruling(msgspec.Struct, frozen=True):
    """The decision on an arriving snapshot: what it does to the document, and which current ones it replaces."""

    outcome: Outcome
    superseded: tuple[bytes, ...] = ()


def check_name(name: str) -> None:
    """Refuse a name that is not allowed for a document."""
    check_type(name, str, "a document's name")
    if not 1 <= len(name) <= NAME_CHARACTERS_MAX:
        raise Refused(Refusal.MALFORMED, f"a document's name has 1 to {NAME_CHARACTERS_MAX} characters")
    if not name.isprintable() or name != name.strip():
        raise Refused(
            Refusal.MALFORMED, f"name {shown(name)} has a space at an end, or a character that cannot be seen"
        )


def document_id(secret: bytes, name: str) -> str:
    """The `d` tag of an author's document of this name."""
    check_type(name, str, "a document's name")
    digest = HMAC(hashlib.sha256(_NAME_KEY + secret).digest(), SHA256())
    try:
        digest.update(name.encode())
    except UnicodeEncodeError as error:
        raise Refused(Refusal.MALFORMED, f"name {shown(name)} is not valid Unicode") from error
    return digest.finalize().hex()


def device_id(author: str, device: str, epoch: bytes) -> str:
    """A home's device id in an author's vector clocks. It changes with each restoration, so that no counter is used twice."""
    named = bytes.fromhex(author) + bytes.fromhex(device) + epoch
    return hashlib.sha256(_DEVICE + named).hexdigest()[:DEVICE_ID_CHARACTERS]


def is_conflict(current: Iterable[Operation]) -> bool:
    """Whether current snapshots conflict: there are several, and not all of them are deletions."""
    operations = list(current)
    return len(operations) > 1 and Operation.PUT in operations


def judge(clock: VectorClock, o: Operation, current: Sequence[Version], gone: Sequence[VectorClock] = ()) -> Ruling:
    """Decide what an unknown snapshot does. `gone` are the clocks of dominated ones that are no longer kept."""
    if any(dominates(known.clock, clock) for known in current) or any(
        known == clock or dominates(known, clock) for known in gone
    ):
        return Ruling(Outcome.DOMINATED)
    superseded = tuple(known.event_id for known in current if dominates(clock, known.clock))
    left = [known.o for known in current if known.event_id not in superseded]
    if is_conflict([*left, o]):
        return Ruling(Outcome.CONFLICT, superseded)
    was_one = is_conflict(known.o for known in current)
    return Ruling(Outcome.RESOLVED if was_one else Outcome.APPLIED, superseded)


def successor(known: Sequence[VectorClock], device: str) -> VectorClock:
    """The clock of an edit made on `device` by somebody who knew all of `known`: merged, and incremented once.

    An entry of a full clock cannot be dropped: without it, the edit would conflict with what that device did.
    """
    named = {name for clock in known for name, _ in clock.entries} | {device}
    if len(named) > DEVICES_MAX:
        detail = f"with this one {len(named)} devices have edited the document, and a clock holds {DEVICES_MAX}"
        raise Refused(Refusal.DOCUMENT_FULL, detail)
    return clocks.increment(reduce(clocks.merge, known, VectorClock()), device)


def sealing_key(secret: bytes) -> bytes:
    """The key that seals an author's documents: the conversation key of the author's key with itself."""
    return sealing.conversation_key(secret, public_key(secret))


def seal_content(key: bytes, content: Content, nonce: bytes) -> str:
    """The sealed content of a snapshot. Refuses what no home could open."""
    if content.body is not None:
        check_type(content.body, str, "a document's text")
    try:
        plaintext = rfc8785.dumps(msgspec.to_builtins(content))
    except rfc8785.CanonicalizationError as error:
        raise Refused(Refusal.MALFORMED, "the text is not valid Unicode") from error
    if len(plaintext) > PAYLOAD_BYTES_MAX:
        detail = f"the document takes {len(plaintext)} bytes, at most {PAYLOAD_BYTES_MAX} allowed"
        raise Refused(Refusal.TOO_LARGE, detail)
    return sealing.seal(key, plaintext, nonce)


def open_content(key: bytes, secret: bytes, event: Event, d: str) -> Content:
    """The content of a snapshot. Refuses content that another key sealed, or that names another document."""
    try:
        content = msgspec.json.decode(sealing.open_sealed(key, event.content), type=Content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refused(Refusal.UNREADABLE, f"a snapshot's content: {error}") from error
    if content.version != CONTENT_VERSION:
        raise Refused(Refusal.UNREADABLE, f"version {content.version} of a document is not known here")
    if document_id(secret, content.name) != d:
        raise Refused(Refusal.UNREADABLE, "a snapshot's content is of another document")
    return content


def sign_snapshot(
    secret: bytes, created_at: int, d: str, o: Operation, clock: VectorClock, sealed: str, aux: bytes
) -> Event:
    """The signed event of a snapshot."""
    tags = (("d", d), ("o", o.value), *clocks.to_tags(clock))
    return sign_event(secret, created_at, DOCUMENT_KIND, tags, sealed, aux)


def set_apart(secret: bytes, event: Event, clock: VectorClock) -> Event:
    """The same snapshot signed again under a counter of its own. Every home makes the same event, so that all agree.

    Two edits share a clock when a home was restored from a copy without noticing. A later edit that knew of one of them
    would seem to have known of both, and the other would be lost.
    """
    device = hashlib.sha256(_APART + bytes.fromhex(event.id)).hexdigest()[:DEVICE_ID_CHARACTERS]
    kept = (tag for tag in event.tags if tag[0] != clocks.CLOCK_TAG)
    tags = (*kept, *clocks.to_tags(clocks.increment(clock, device)))
    return sign_event(secret, event.created_at, event.kind, tags, event.content, bytes(AUX_BYTES))
