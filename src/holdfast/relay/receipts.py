"""Receipts at the relay: which of the messages named in a receipt it may confirm.

A line counts if the message was sent by the receipt's destination, was delivered to the signer or otherwise closed for it,
and has no receipt yet. Lines that do not count are ignored; the others of the same receipt still count.
"""

import msgspec

from holdfast.protocol.delivery import State
from holdfast.protocol.receipt import Receipt
from holdfast.protocol.refusal import Refusal, Refused

Place = tuple[str, str, bytes]
"""A delivery as a receipt names it: mesh, recipient, id of the event."""


class Receiptable(msgspec.Struct):
    """A delivery that its recipient may confirm by a receipt, once, even within a batch."""

    seq: int
    sender: str
    state: str
    receipted_at: int | None


def places(receipt: Receipt, signer: str) -> list[Place]:
    """The keys by which the deliveries that a receipt names are looked up."""
    return [(receipt.head.mesh, signer, bytes.fromhex(line.message_id)) for line in receipt.messages]


def judge(
    receipt: Receipt, signer: str, known: dict[Place, Receiptable], now: int
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """The positions that the receipt confirms, and the ids that it may not confirm; refused if it confirms nothing."""
    taken: list[Receiptable] = []
    untaken: list[str] = []
    for line, place in zip(receipt.messages, places(receipt, signer), strict=True):
        found = known.get(place)
        if found is None or found.sender != receipt.destination.ref or found.receipted_at is not None:
            untaken.append(line.message_id)
        elif found.state == State.OPEN:
            raise Refused(Refusal.RECEIPT_EARLY, f"message {line.message_id} is not acknowledged yet")
        else:
            taken.append(found)
    if not taken:
        raise Refused(Refusal.RECEIPT_UNKNOWN, f"member {signer} has nothing to receipt among {len(untaken)} messages")
    for found in taken:
        found.receipted_at = now
    return tuple(found.seq for found in taken), tuple(untaken)
