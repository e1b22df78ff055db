"""Which of the facts known about a message and one recipient is shown as its state.

The source closest to the recipient wins: a receipt beats the relay's history, the relay's history beats the sender giving
up, and giving up beats the steps that only say how far the message had come. So a receipt overrides everything before
it. The facts are a set that the caller keeps: when a restored relay that had lost a message accepts it again, the
caller removes `rolled_back`.
"""

from enum import StrEnum

from holdfast.protocol.receipt import ReceiptStatus
from holdfast.protocol.tables import total


class Fact(StrEnum):
    """Something known about a message and one recipient."""

    # the steps of a delivery
    ACCEPTED = "accepted"
    RELAYED = "relayed"
    DELIVERED = "delivered"  # the relay's word that the recipient acknowledged
    APPLIED = "applied"
    # signed by the recipient: proof that it has the message, or of what it did with it instead
    RECEIPT = "receipt"
    UNREADABLE = "unreadable"  # the recipient has it and could not open it
    DUPLICATE = "duplicate"  # the recipient did not keep it: it has another message under this id
    # endings at the sender
    DEAD = "dead"
    ABORTED = "aborted"
    # endings at the relay
    EXPIRED = "expired"
    DROPPED = "dropped"
    QUARANTINED = "quarantined"
    MODERATED = "moderated"
    FULL = "full"
    BLOCKED = "blocked"
    ROLLED_BACK = "rolled_back"  # a restored relay lost it, and has not accepted it again


LADDER = (Fact.ACCEPTED, Fact.RELAYED, Fact.DELIVERED, Fact.APPLIED)

# The strongest first. A delivery row closes once, so two relay facts meet only when a restored relay closed it twice.
PRECEDENCE = (
    Fact.APPLIED,
    Fact.RECEIPT,
    Fact.UNREADABLE,
    Fact.DUPLICATE,
    Fact.DELIVERED,
    Fact.MODERATED,
    Fact.QUARANTINED,
    Fact.DROPPED,
    Fact.EXPIRED,
    Fact.BLOCKED,
    Fact.FULL,
    Fact.ABORTED,  # after dead: a requeue is what an operator did about it
    Fact.DEAD,
    Fact.ROLLED_BACK,
    Fact.RELAYED,
    Fact.ACCEPTED,
)

# The fact that a receipt proves. Only a stored message is shown as delivered, though the relay closes all three as such.
RECEIPTS = total(
    {
        ReceiptStatus.STORED: Fact.RECEIPT,
        ReceiptStatus.UNREADABLE: Fact.UNREADABLE,
        ReceiptStatus.DUPLICATE: Fact.DUPLICATE,
    },
    ReceiptStatus,
)

_RANKS = total({fact: rank for rank, fact in enumerate(PRECEDENCE)}, Fact)


def shown(facts: frozenset[Fact]) -> Fact:
    """The state to show for these facts; a receipt of a stored message is shown as `delivered`."""
    if not facts:
        raise ValueError("a message of which nothing is known has no state")
    strongest = min(facts, key=_RANKS.__getitem__)
    return Fact.DELIVERED if strongest is Fact.RECEIPT else strongest
