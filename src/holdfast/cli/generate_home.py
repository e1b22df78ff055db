"""The device's side of generated traffic: a home whose history and operation log say what its relay saw of it."""

from pathlib import Path
from random import Random

import msgspec

from holdfast.cli.generate_book import Book
from holdfast.cli.generate_inbox import HANDLER_ATTEMPTS, Inbox
from holdfast.cli.generate_people import Accepted, Kept, Member, Send, Waiting
from holdfast.device import database, operations
from holdfast.device.home import Home, Membership
from holdfast.device.sending import NO_OBJECT, Attempt, encode_anchor
from holdfast.protocol import ulid
from holdfast.protocol.anchor import Anchor
from holdfast.protocol.history import Draft, Kind
from holdfast.protocol.outbox import Status
from holdfast.store.engine import Value
from holdfast.store.sqlite import SqliteEngine

BLOB = b"generated"

_OPERATION = (
    *("sequence", "object_id", "blob", "digest", "status", "enqueued_at", "attempts", "next_attempt_at", "last_error"),
    *("delivered_at", "id", "client_message_id", "destination_kind", "destination_ref", "event"),
    *("broker_message_id", "history_id", "aborted_at", "aborted_by", "superseded_by"),
)


class HomeBook(Book):
    """A home's database in the making."""

    def __init__(self, path: Path, random: Random, starts_at: int) -> None:
        self._home = Home(path)
        with self._home.entered(create=True):
            self.secret = self._home.secret(random.randbytes)
            engine = SqliteEngine(self._home.database)
            database.prepare(engine, lambda: starts_at, random.randbytes)
        super().__init__(engine)
        self.epoch = operations.epoch(self.transaction)
        self._random = random
        self._pending: dict[int, Send] = {}
        self.inbox = Inbox(self)

    def keep(self, member: Member, relay_pubkey: str, joined_by: str) -> None:
        """Write down whose home this is."""
        self._home.keep(
            Membership(
                relay="http://127.0.0.1:7447",
                relay_pubkey=relay_pubkey,
                mesh=member.mesh.mesh,
                mesh_name=member.mesh.name,
                member=member.member,
                member_name=member.name,
                client_message_id=joined_by,
            )
        )

    def enqueued(self, send: Send) -> None:
        send.row_id = ulid.mint(send.enqueued_at, self._random.randbytes(ulid.RANDOM_BYTES))
        self._pending[send.sequence] = send
        draft = Draft(
            kind=Kind.ENQUEUED,
            mesh=send.sender.mesh.mesh,
            client_message_id=send.client_message_id,
            epoch=send.epoch,
            sequence=send.sequence,
            destination_kind=send.log_kind,
            destination_ref=send.destination_ref,
            size=len(BLOB),
        )
        self.tell(send.enqueued_at, draft)

    def attempted(self, send: Send, at: int) -> None:
        """An attempt begins."""
        send.is_tried = True
        self.tell(at, _draft(send, Kind.ATTEMPTED, detail=Attempt(send.attempts + 1).encode()))

    def put_back(self, send: Send, at: int, reason: str, detail: str) -> None:
        """It ended without a yes."""
        send.attempts += 1
        send.last_error = f"{reason}: {detail}"
        told = Attempt(send.attempts, send.last_error).encode()
        self.tell(at, _draft(send, Kind.ATTEMPTED, reason=reason, detail=told))

    def relayed(self, accepted: Accepted, at: int, anchor: Anchor) -> None:
        """The relay's yes, with its signature."""
        send = accepted.send
        send.attempts += 1
        send.last_error = None
        self.tell(at, _draft(send, Kind.RELAYED, message_id=accepted.message_id, detail=encode_anchor(anchor)))
        self._settle(send, Status.DONE, at, delivered_at=at, accepted=accepted)

    def dead(self, send: Send, at: int, reason: str, detail: str) -> None:
        """Given up."""
        send.attempts += int(send.is_tried)
        send.last_error = f"{reason}: {detail}"
        told = Attempt(send.attempts, send.last_error).encode()
        self.tell(at, _draft(send, Kind.DEAD, reason=reason, detail=told))
        self._settle(send, Status.DEAD, at)

    def aborted(self, send: Send, at: int, successor: Send) -> None:
        """Retired for another row."""
        self.tell(at, _draft(send, Kind.ABORTED, detail=successor.row_id.encode()))
        self._settle(send, Status.ABORTED, at, superseded_by=successor.row_id)

    def stored(self, waiting: Waiting, at: int, was_stored: bool, status: str, relay_log_id: bytes) -> None:
        """A message arrived and is on this disk."""
        accepted = waiting.accepted
        send = accepted.send
        draft = msgspec.structs.replace(
            _received(waiting, Kind.STORED, reason=status, detail=relay_log_id + accepted.seq.to_bytes(8, "big")),
            epoch=send.epoch,
            sequence=send.sequence,
            destination_kind=send.destination_kind,
            destination_ref=send.destination_ref,
            size=len(send.event),
            was_stored=was_stored,
        )
        self.tell(at, draft)
        self.inbox.store(waiting, at, was_stored, status, relay_log_id)

    def applied(self, waiting: Waiting, at: int) -> None:
        """The application has it."""
        self.tell(at, _received(waiting, Kind.APPLIED))
        self.inbox.apply(waiting.accepted.send.event_id, at)

    def parked(self, waiting: Waiting, at: int) -> None:
        """The application could not take it, and will not be asked again."""
        error = "the handler raised ValueError"
        detail = HANDLER_ATTEMPTS.to_bytes(8, "big") + error.encode()
        self.tell(at, _received(waiting, Kind.PARKED, reason="handler_failed", detail=detail))
        self.inbox.park(waiting.accepted.send.event_id, at, error)

    def receipted(self, accepted: Accepted, kept: Kept, status: str, at: int) -> None:
        """Somebody's receipt for a message of this device arrived."""
        own = kept.waiting.accepted.send
        draft = Draft(
            kind=Kind.RECEIPT,
            mesh=own.sender.mesh.mesh,
            message_id=accepted.message_id,
            client_message_id=own.client_message_id,
            epoch=own.epoch,
            sequence=own.sequence,
            recipient=accepted.send.sender.member,
            event_id=own.event_id,
            was_stored=kept.was_stored,
            reason=status,
            detail=accepted.send.event_id,
        )
        self.tell(at, draft)

    def put_pending(self) -> None:
        """The rows of what still waits."""
        for send in list(self._pending.values()):
            self._settle(send, Status.PENDING, send.enqueued_at)
        self.flush()
        operations.recount(self.transaction)

    def _settle(
        self,
        send: Send,
        status: Status,
        at: int,
        *,
        delivered_at: int | None = None,
        accepted: Accepted | None = None,
        superseded_by: str | None = None,
    ) -> None:
        del self._pending[send.sequence]
        is_aborted = status is Status.ABORTED
        row: dict[str, Value] = {
            "sequence": send.sequence,
            "object_id": NO_OBJECT,
            "blob": BLOB,
            "digest": operations.blob_digest(send.sequence, NO_OBJECT, BLOB),
            "status": status.value,
            "enqueued_at": send.enqueued_at,
            "attempts": send.attempts,
            "next_attempt_at": at,
            "last_error": send.last_error,
            "delivered_at": delivered_at,
            "id": send.row_id,
            "client_message_id": send.client_message_id,
            "destination_kind": send.log_kind,
            "destination_ref": send.destination_ref,
            "event": send.event if send.is_tried else None,
            "broker_message_id": None if accepted is None else accepted.message_id,
            "history_id": None if accepted is None else accepted.seq,
            "aborted_at": at if is_aborted else None,
            "aborted_by": "device" if is_aborted else None,
            "superseded_by": superseded_by,
        }
        self.put("operation_log", _OPERATION, tuple(row[column] for column in _OPERATION))


def _received(waiting: Waiting, kind: Kind, *, reason: str | None = None, detail: bytes = b"") -> Draft:
    send = waiting.accepted.send
    return Draft(
        kind=kind,
        mesh=send.sender.mesh.mesh,
        message_id=waiting.accepted.message_id,
        client_message_id=send.client_message_id,
        sender=send.sender.member,
        recipient=waiting.member.member,
        event_id=send.event_id,
        reason=reason,
        detail=detail,
    )


def _draft(send: Send, kind: Kind, *, message_id: str | None = None, reason: str | None = None, detail: bytes) -> Draft:
    tried = send.is_tried
    return Draft(
        kind=kind,
        mesh=send.sender.mesh.mesh if tried else None,
        message_id=message_id,
        client_message_id=send.client_message_id,
        epoch=send.epoch if tried else None,
        sequence=send.sequence,
        destination_kind=send.log_kind,
        destination_ref=send.destination_ref,
        event_id=send.event_id if tried else None,
        size=len(send.event) if tried else None,
        reason=reason,
        detail=detail,
    )
