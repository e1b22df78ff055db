"""Takes a caller's request to send: from its bytes to a row of the operation log, and the answer.

A request is checked first; one that fails does not consume its id. Then the id is looked up: a repeated request is answered
from the row that the first one made, even if its destination is gone by now. Only for a new row are names resolved and times
compared with the clock.
"""

from collections.abc import Sequence
from typing import Any, Protocol, Self

import msgspec

from holdfast.device import operations, scheduled
from holdfast.device.ipc_documents import TOPIC_SIGN
from holdfast.device.operations import Address, Facts
from holdfast.device.together import Shared
from holdfast.protocol import idempotency, payload, ulid
from holdfast.protocol.envelope import MENTIONS_MAX
from holdfast.protocol.fingerprint import (
    NO_OBJECT,
    OBJECT_ID_BYTES,
    DestinationKind,
    Priority,
    Request,
    fingerprint,
    fingerprint_prefix,
)
from holdfast.protocol.idempotency import ANSWERS, Field, Fingerprint, compared
from holdfast.protocol.outbox import Status
from holdfast.protocol.payload import Payload
from holdfast.protocol.refusal import REFUSALS, Refusal, Refused, problem
from holdfast.protocol.schedule import DAY
from holdfast.protocol.tags import REFERENCE, check_hex, check_range, shown
from holdfast.store.engine import Transaction
from holdfast.store.statements import Statements
from holdfast.store.world import Clock, Random, iso_time

_SQL = Statements(__package__, "send.sql")

NAME_CHARACTERS_MAX = 256  # of a destination or mention as a caller writes it; the longest that exists has 65
SCHEDULE_DAYS_MAX = 366  # how far ahead a send may be scheduled

_NO_FINGERPRINT = bytes(32)  # of rows that no request made, so that no request matches them


class Resolver(Protocol):
    """Resolves the destinations that callers write."""

    def resolve(self, to: str) -> tuple[str, str]:
        """The destination kind and ref of a caller's text; raises Refused if there is no such destination."""


class Send(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A request to send, as the caller wrote it. Times are microseconds."""

    to: str  # a member's name, id or key, or @ and a topic's name
    message: str
    client_message_id: str | None = None
    object_id: str | None = None  # 32 bytes in hex
    priority: Priority = Priority.NEXT
    meta: dict[str, Any] | None = None
    reply_to: str | None = None
    mentions: tuple[str, ...] = ()  # members, named as in `to`
    expires_at: int | None = None
    not_before: int | None = None


class Answer(msgspec.Struct, frozen=True):
    """The answer to a caller: HTTP status, JSON body, and the refusal, if it is one."""

    http_status: int
    body: dict[str, object]
    refusal: Refusal | None = None


class Prepared(msgspec.Struct, frozen=True):
    """A request that passed all checks that need neither its id nor its destination, with its fingerprint."""

    request: Send
    request_fingerprint: bytes
    content: Payload


class _Row(msgspec.Struct, frozen=True):
    """What the look-up finds under a client_message_id."""

    request_fingerprint: bytes | None
    status: str
    broker_message_id: str | None
    history_id: int | None
    last_error: str | None
    successor: str | None  # the id under which a requeue sent the content again


def chosen_id(header: str | None, body: str | None) -> str | None:
    """The id of a request, from its Idempotency-Key header, bare or quoted, or its client_message_id; None to mint one."""
    if header is None:
        return body
    header = header.strip()
    if header.startswith('"'):
        if len(header) < len('""') or not header.endswith('"'):
            raise Refused(Refusal.MALFORMED, f"Idempotency-Key {shown(header)} has only one quotation mark")
        header = header[1:-1]
    REFERENCE.check(header, "Idempotency-Key")
    if body is not None and body != header:
        raise Refused(
            Refusal.IDEMPOTENCY_KEYS_DIFFER, f"Idempotency-Key {shown(header)}, client_message_id {shown(body)}"
        )
    return header


def refused(error: Refused) -> Answer:
    """A refusal as an answer."""
    return Answer(REFUSALS[error.refusal].http_status, problem(error.refusal, error.detail), error.refusal)


def prepare(request: Send) -> Prepared:
    """Check everything that depends on the request alone, and compute its fingerprint."""
    if request.client_message_id is not None:
        REFERENCE.check(request.client_message_id, "client_message_id")
    if request.reply_to is not None:
        REFERENCE.check(request.reply_to, "reply_to")
    _check_names(request)
    _check_times(request)
    object_id = _object_id(request.object_id)
    body = _body(request.message)
    content = Payload(object_id=object_id, meta=payload.canonical_meta(request.meta), body=body)
    kind, ref = written_destination(request.to)
    asked = Request(
        destination_kind=kind,
        destination_ref=ref,
        body=body,
        reply_to=request.reply_to,
        priority=request.priority,
        meta=request.meta,
        object_id=object_id,
        mentions=request.mentions,
        expires_at=request.expires_at,
        not_before=request.not_before,
    )
    return Prepared(request, fingerprint(asked), content)


def written_destination(to: str) -> tuple[DestinationKind, str]:
    """The destination kind and name in a caller's text, by its form alone; the fingerprint covers these."""
    if to.startswith(TOPIC_SIGN):
        return DestinationKind.TOPIC, to.removeprefix(TOPIC_SIGN)
    return DestinationKind.DM, to


def send(
    transaction: Transaction, facts: Facts, directory: Resolver, now: int, random: Random, request: Send
) -> Answer:
    """Take a request; returns the answer, which may be a refusal."""
    try:
        prepared = prepare(request)
    except Refused as error:
        return refused(error)
    return accept(transaction, facts, directory, now, random, prepared)


def accept(
    transaction: Transaction,
    facts: Facts,
    directory: Resolver,
    now: int,
    random: Random,
    prepared: Prepared,
    no_room: Refused | None = None,
) -> Answer:
    """Write a new row for a request, unless there is no room; if its id has a row already, answer from that."""
    return Taking(facts, directory, lambda: now, random, prepared, no_room)(transaction)


class Taking(Shared[Answer]):
    """A request to take; requests of one moment are looked up and written together."""

    def __init__(
        self,
        facts: Facts,
        directory: Resolver,
        clock: Clock,
        random: Random,
        prepared: Prepared,
        no_room: Refused | None = None,
    ) -> None:
        self._facts = facts
        self._directory = directory
        self._clock = clock
        self._random = random
        self._prepared = prepared
        self._no_room = no_room

    @classmethod
    def together(cls, transaction: Transaction, requests: Sequence[Self]) -> list[Answer]:
        clock, random = requests[0]._clock, requests[0]._random
        now = clock()
        chosen = (request._prepared.request.client_message_id for request in requests)
        known = _called(transaction, [one for one in chosen if one is not None])
        appending = operations.Appending(transaction, now, random)
        answers = [request._take(transaction, now, known, appending) for request in requests]
        appending.write()
        return answers

    def _take(
        self, transaction: Transaction, now: int, known: "dict[str, _Row]", appending: operations.Appending
    ) -> Answer:
        prepared = self._prepared
        # A minted id is not looked up; if it were taken all the same, the unique index would refuse its row.
        client_message_id = prepared.request.client_message_id or ulid.mint(now, self._random(ulid.RANDOM_BYTES))
        row = known.get(client_message_id)
        if row is None:
            if self._no_room is not None:
                return refused(self._no_room)
            answer = ANSWERS[None, compared(None, prepared.request_fingerprint)]
            try:
                address = _address(self._facts, self._directory, now, prepared, client_message_id)
            except Refused as error:
                return refused(error)
            _insert(transaction, now, prepared, address, appending)
            # A repetition of this id in the same batch must find this row.
            known[client_message_id] = _Row(prepared.request_fingerprint, Status.PENDING.value, None, None, None, None)
            return _answer(answer, client_message_id, None)
        found = compared(row.request_fingerprint or _NO_FINGERPRINT, prepared.request_fingerprint)
        return _answer(ANSWERS[Status(row.status), found], client_message_id, row, is_same=found is Fingerprint.MATCHES)


def is_used(transaction: Transaction, client_message_id: str) -> bool:
    """Whether an id has been used; ids are never released."""
    return bool(_called(transaction, [client_message_id]))


def _called(transaction: Transaction, client_message_ids: Sequence[str]) -> dict[str, _Row]:
    wanted = [(client_message_id,) for client_message_id in client_message_ids]
    rows = transaction.lookup(_SQL["called"], ("client_message_id",), wanted)
    return {client_message_id: _Row(*rest) for client_message_id, *rest in rows}


def _address(facts: Facts, directory: Resolver, now: int, prepared: Prepared, client_message_id: str) -> Address:
    """The address of a new request; refuses unknown destinations and times that have passed."""
    request = prepared.request
    if request.expires_at is not None and request.expires_at <= now:
        raise Refused(Refusal.MALFORMED, f"expires_at {iso_time(request.expires_at)} has passed")
    if request.not_before is not None and request.not_before > now + SCHEDULE_DAYS_MAX * DAY:
        ahead = f"not_before {iso_time(request.not_before)} is more than {SCHEDULE_DAYS_MAX} days ahead"
        raise Refused(Refusal.MALFORMED, ahead)
    kind, ref = directory.resolve(request.to)
    return Address(
        destination_kind=kind,
        destination_ref=ref,
        mesh=facts.mesh,
        client_message_id=client_message_id,
        priority=request.priority,
        reply_to=request.reply_to,
        mentions=_members(directory, request.mentions),
        expires_at=request.expires_at,
        request_fingerprint=prepared.request_fingerprint,
        request=kept(request),
    )


def kept(request: Send) -> bytes:
    """The request without its content, which a requeue with other content needs for the new fingerprint."""
    return msgspec.json.encode(msgspec.structs.replace(request, message="", meta=None, client_message_id=None))


def _members(directory: Resolver, mentions: tuple[str, ...]) -> tuple[str, ...]:
    """The ids of the members that a request mentions, each once, in order."""
    found: dict[str, None] = {}
    for mention in mentions:
        kind, ref = directory.resolve(mention)
        if kind != DestinationKind.DM:
            raise Refused(Refusal.MALFORMED, f"mention {shown(mention)} is not a member")
        found[ref] = None
    return tuple(found)


def _insert(
    transaction: Transaction, now: int, prepared: Prepared, address: Address, appending: operations.Appending
) -> None:
    not_before = prepared.request.not_before
    if not_before is None or not_before <= now:
        appending.message(prepared.content, address)
    else:
        scheduled.keep(transaction, now, not_before, prepared.content, address)


def _answer(answer: idempotency.Answer, client_message_id: str, row: _Row | None, *, is_same: bool = False) -> Answer:
    carried = {} if row is None else _carried(answer, row)
    if answer.conflict is None:
        status = {} if answer.status is None else {"status": answer.status}
        return Answer(answer.http_status, {"client_message_id": client_message_id, **status, **carried})
    refusal = Refusal.IDEMPOTENCY_KEY_REUSED
    detail = f"client_message_id {shown(client_message_id)} belongs to an earlier request"
    if is_same and row is not None and row.successor is not None:
        detail = f"client_message_id {shown(client_message_id)} was retired by a requeue: the message goes on as {row.successor}."
    told = {"client_message_id": client_message_id, "conflict": answer.conflict, **carried}
    return Answer(answer.http_status, problem(refusal, detail, **told), refusal)


def _carried(answer: idempotency.Answer, row: _Row) -> dict[str, object]:
    values: dict[Field, object] = {
        Field.DUPLICATE: True,
        Field.BROKER_MESSAGE_ID: row.broker_message_id,
        Field.HISTORY_ID: row.history_id,
        Field.REASON: row.last_error or "",
        Field.DAEMON_FINGERPRINT_PREFIX: fingerprint_prefix(row.request_fingerprint or _NO_FINGERPRINT),
    }
    return {field.value: values[field] for field in answer.carries}


def _check_names(request: Send) -> None:
    if len(request.mentions) > MENTIONS_MAX:
        raise Refused(Refusal.TOO_LARGE, f"{len(request.mentions)} mentions, at most {MENTIONS_MAX} allowed")
    for what, name in (("to", request.to), *(("mention", mention) for mention in request.mentions)):
        if not name.removeprefix(TOPIC_SIGN):
            raise Refused(Refusal.MALFORMED, f"{what} names nobody")
        if len(name) > NAME_CHARACTERS_MAX:
            raise Refused(
                Refusal.MALFORMED, f"{what} has {len(name)} characters, at most {NAME_CHARACTERS_MAX} are allowed"
            )


def _check_times(request: Send) -> None:
    for what, at in (("expires_at", request.expires_at), ("not_before", request.not_before)):
        if at is not None:
            check_range(at, what, 1)
    if request.expires_at is not None and request.expires_at <= (request.not_before or 0):
        raise Refused(Refusal.MALFORMED, "expires_at is not after not_before")


def _object_id(text: str | None) -> bytes:
    if text is None:
        return NO_OBJECT
    check_hex(text, "object_id", OBJECT_ID_BYTES)
    return bytes.fromhex(text)


def _body(message: str) -> bytes:
    try:
        return message.encode()
    except UnicodeEncodeError as error:
        raise Refused(Refusal.MALFORMED, "message is not valid Unicode") from error
