"""The receipt: a recipient's signed statement to one sender about each of its messages, an event of kind 4202.

A receipt is not sealed, because the relay must see which deliveries it is about. It is a send of the recipient's device
like any other, with the head of an envelope, and goes to the sender like a direct message. A message is named by the id of
its event: sender, relay and recipient all know it, and it commits the recipient to the very bytes that it stored.
"""

from enum import StrEnum

import msgspec

from holdfast.protocol.envelope import (
    DESTINATION_TAGS,
    HEAD_TAGS,
    Destination,
    Head,
    check_kind,
    destination_from_tags,
    destination_to_tags,
    head_from_tags,
    head_to_tags,
)
from holdfast.protocol.event import Event, sign_event
from holdfast.protocol.fingerprint import DestinationKind
from holdfast.protocol.refusal import Refusal, Refused
from holdfast.protocol.tags import TagRule, Tags, check_distinct, check_hex, check_type, read_choice, read_tags, shown

RECEIPT_KIND = 4202
RECEIPTED_MAX = 50  # messages in one receipt
MESSAGE_ID_BYTES = 32

RECEIPT_TAGS = (*HEAD_TAGS, *DESTINATION_TAGS, TagRule("r", least=0, most=None, values=3))


class ReceiptStatus(StrEnum):
    """What the recipient did with a message. Each is final: a message gets one receipt."""

    STORED = "stored"  # opened, and on the recipient's disk
    UNREADABLE = "unreadable"  # on the recipient's disk, but sealed with a key it lacks, or broken inside
    DUPLICATE = "duplicate"  # not kept: another event of this sender with this client_message_id was there first


_TRUTHS = {"true": True, "false": False}


class Receipted(msgspec.Struct, frozen=True):
    """One message: its event's id in hex, whether it had waited at the relay, and what the recipient did with it."""

    message_id: str
    was_stored: bool
    status: ReceiptStatus

    def __post_init__(self) -> None:
        check_hex(self.message_id, "message_id", MESSAGE_ID_BYTES)
        check_type(self.was_stored, bool, "was_stored")
        check_type(self.status, ReceiptStatus, "status")


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """One recipient's statement to one sender about 1 to 50 messages, in the order in which it stored them."""

    head: Head
    destination: Destination  # the member who sent the messages
    messages: tuple[Receipted, ...]

    def __post_init__(self) -> None:
        check_type(self.head, Head, "head")
        check_type(self.destination, Destination, "destination")
        check_type(self.messages, tuple, "messages")
        if self.destination.kind is not DestinationKind.DM:
            raise Refused(Refusal.MALFORMED, f"a receipt goes to a dm, not to a {self.destination.kind}")
        if not self.messages:
            raise Refused(Refusal.MALFORMED, "a receipt needs at least one message")
        if len(self.messages) > RECEIPTED_MAX:
            raise Refused(
                Refusal.TOO_LARGE,
                f"a receipt has {len(self.messages)} messages, at most {RECEIPTED_MAX} allowed",
            )
        check_distinct((message.message_id for message in self.messages), "message_id")


def to_tags(receipt: Receipt) -> Tags:
    """The tags of a receipt."""
    return (
        *head_to_tags(receipt.head),
        *destination_to_tags(receipt.destination),
        *(
            ("r", message.message_id, str(message.was_stored).lower(), message.status.value)
            for message in receipt.messages
        ),
    )


def from_event(event: Event) -> Receipt:
    """The receipt in an event; its id and signature are checked elsewhere."""
    check_kind(event, RECEIPT_KIND)
    if event.content:
        raise Refused(Refusal.MALFORMED, f"a receipt has no content, this one has {len(event.content)} characters")
    found = read_tags(event.tags, RECEIPT_TAGS)
    return Receipt(
        head=head_from_tags(found),
        destination=destination_from_tags(found),
        messages=tuple(_receipted(*values) for values in found["r"]),
    )


def sign_receipt(secret: bytes, created_at: int, receipt: Receipt, aux: bytes) -> Event:
    """The signed event of a receipt."""
    return sign_event(secret, created_at, RECEIPT_KIND, to_tags(receipt), "", aux)


def _receipted(message_id: str, was_stored: str, status: str) -> Receipted:
    if was_stored not in _TRUTHS:
        raise Refused(Refusal.MALFORMED, f"was_stored {shown(was_stored)} is not one of {', '.join(_TRUTHS)}")
    return Receipted(message_id, _TRUTHS[was_stored], read_choice(ReceiptStatus, status, "status"))
