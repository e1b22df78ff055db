"""Generated deliveries: what waits for members, how they take it, what expires, and the receipts that they owe."""

from collections import deque
from collections.abc import Iterable

from holdfast.cli.generate_people import Accepted, Kept, Member, Send, Waiting
from holdfast.cli.generate_stage import Stage
from holdfast.protocol import event, keys, receipt
from holdfast.protocol.envelope import Destination
from holdfast.protocol.fingerprint import DestinationKind
from holdfast.protocol.history import Kind
from holdfast.protocol.receipt import RECEIPT_KIND, RECEIPTED_MAX, Receipted, ReceiptStatus
from holdfast.protocol.schedule import SECOND

# How often something happens, of a hundred thousand.
_UNREADABLE = 300
_UNAPPLIED = 3_000
_PARKED = 500


class Deliveries:
    """From the relay's queues to those whom messages are for, and their word back."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    def queue(self, accepted: Accepted, members: Iterable[Member], live: list[Waiting], online: "set[Member]") -> None:
        expires_at = self._stage.relay.expiry(accepted.send)
        for member in members:
            waiting = Waiting(member, accepted, expires_at)
            member.queue_count += not waiting.is_receipt
            if member in online and not member.queue:
                live.append(waiting)
            else:
                least = member.expires_next_at if member.queue else expires_at
                member.expires_next_at = min(least, expires_at)
                member.queue.append(waiting)

    def acknowledge(self, live: list[Waiting], patience: float) -> None:
        """Those who are there acknowledge what they were just sent; some need a moment longer, and all keep the order."""
        slow: set[Member] = set()
        left = []
        for waiting in live:
            if (
                waiting.accepted.at == self._stage.relay.at
                or waiting.member in slow
                or self._stage.random.random() < patience
            ):
                slow.add(waiting.member)
                left.append(waiting)
            else:
                self.deliver(waiting, was_stored=False)
        live[:] = left

    def deliver(self, waiting: Waiting, *, was_stored: bool) -> None:
        """The recipient stores, then acknowledges."""
        home = waiting.member.home
        if waiting.is_receipt:
            if home is not None:
                for kept, status in waiting.accepted.send.lines:
                    home.receipted(waiting.accepted, kept, status, self._stage.relay.at)
            self.close(waiting, Kind.DELIVERED, was_stored=was_stored)
            return
        if home is not None:
            home.stored(waiting, self._stage.relay.at, was_stored, _status(waiting.accepted), self._stage.relay.log_id)
            self._apply(waiting)
        self.close(waiting, Kind.DELIVERED, was_stored=was_stored)

    def _apply(self, waiting: Waiting) -> None:
        home = waiting.member.home
        if home is None or _status(waiting.accepted) != "stored" or self._stage.happens(_UNAPPLIED):
            return
        if self._stage.happens(_PARKED):
            home.parked(waiting, self._stage.relay.at)
        else:
            home.applied(waiting, self._stage.relay.at)

    def close(self, waiting: Waiting, kind: Kind, *, was_stored: bool | None = None, reason: str | None = None) -> None:
        kept = self._stage.relay.close(waiting, kind, was_stored=was_stored, reason=reason)
        sender = waiting.accepted.send.sender
        if kind is Kind.DELIVERED and not waiting.is_receipt and sender.revoked_at is None:
            waiting.member.unreceipted.setdefault(sender, []).append(kept)
        else:
            self._stage.relay.put_delivery(waiting, kind.value, kept.closed_at, was_stored)

    def expire(self, member: Member) -> None:
        if not member.queue or member.expires_next_at > self._stage.relay.at:
            return
        left: deque[Waiting] = deque()
        for waiting in member.queue:
            if waiting.expires_at <= self._stage.relay.at:
                self.close(waiting, Kind.EXPIRED)
            else:
                left.append(waiting)
        member.queue = left
        member.expires_next_at = min((waiting.expires_at for waiting in left), default=0)

    def receipt(self, online: list[Member], live: list[Waiting]) -> None:
        """Members tell senders what they have: one receipt for up to fifty messages."""
        there = set(online)
        for member in online:
            owed, member.unreceipted = member.unreceipted, {}
            for sender, kept in owed.items():
                for start in range(0, len(kept), RECEIPTED_MAX):
                    self._publish_receipt(member, sender, kept[start : start + RECEIPTED_MAX], live, there)

    def _publish_receipt(
        self, member: Member, sender: Member, kept: list[Kept], live: list[Waiting], online: "set[Member]"
    ) -> None:
        lines = tuple((one, _status(one.waiting.accepted)) for one in kept)
        send = self._enqueued_receipt(member, sender, lines)
        self._stage.attempt(send)
        accepted = self._stage.accept(send, [(sender.member, "queued")])
        for one in kept:
            self._stage.relay.put_delivery(
                one.waiting, "delivered", one.closed_at, one.was_stored, self._stage.relay.at
            )
        self.queue(accepted, [sender], live, online)

    def _enqueued_receipt(self, member: Member, sender: Member, lines: tuple[tuple[Kept, str], ...]) -> Send:
        """A receipt in its device's log, where it is from the moment on that a message arrived."""
        send = self._signed_receipt(member, sender, lines)
        self._stage.enqueue(send)
        if member.home is not None:
            for kept, _ in lines:
                member.home.inbox.receipt(kept.waiting.accepted.send.event_id, send.sequence)
        return send

    def owe(self, member: Member) -> None:
        """What a member's device has not told of yet waits there, whether or not anybody will take it."""
        owed = {} if member.home is None else member.home.inbox.owed()
        for sender, kept in owed.items():
            for start in range(0, len(kept), RECEIPTED_MAX):
                some = kept[start : start + RECEIPTED_MAX]
                self._enqueued_receipt(member, sender, tuple((one, _status(one.waiting.accepted)) for one in some))

    def _signed_receipt(self, member: Member, sender: Member, lines: tuple[tuple[Kept, str], ...]) -> Send:
        head = member.next_head(self._stage.relay.mint())
        said = receipt.Receipt(
            head=head,
            destination=Destination(DestinationKind.DM, sender.member),
            messages=tuple(
                Receipted(kept.waiting.accepted.send.event_id.hex(), kept.was_stored, ReceiptStatus(status))
                for kept, status in lines
            ),
        )
        aux = self._stage.random.randbytes(keys.AUX_BYTES)
        signed = receipt.sign_receipt(member.secret, self._stage.relay.at // SECOND, said, aux)
        raw = event.encode(signed)
        return Send(
            sender=member,
            sequence=head.sequence,
            client_message_id=head.client_message_id,
            destination_kind="dm",
            destination_ref=sender.member,
            event_id=bytes.fromhex(signed.id),
            event=raw,
            enqueued_at=self._stage.relay.at,
            epoch=member.epoch,
            kind=RECEIPT_KIND,
            log_kind="receipt",
            detail=raw,
            lines=lines,
        )

    def forget_receipts(self, member: Member) -> None:
        """Neither can it sign any more nor does anybody owe it a receipt."""
        for other in member.mesh.members:
            owed = [kept for whom, ones in other.unreceipted.items() if member in (other, whom) for kept in ones]
            self.put_kept(owed)
            other.unreceipted = {whom: ones for whom, ones in other.unreceipted.items() if member not in (other, whom)}

    def put_kept(self, owed: Iterable[Kept]) -> None:
        for kept in owed:
            self._stage.relay.put_delivery(kept.waiting, "delivered", kept.closed_at, kept.was_stored)


def _status(accepted: Accepted) -> str:
    """What became of a message at whoever got it; a few could not be opened, and the same few for everybody."""
    return "unreadable" if int.from_bytes(accepted.send.event_id[:4], "big") % 100_000 < _UNREADABLE else "stored"
