"""Which of the facts known about a message and one recipient is shown as its state.

Who was closer to the recipient knows better: the recipient's own word beats the relay's history, the relay's history
beats the sender's giving up, and giving up beats a rung of the ladder that only says how far it had come. So a receipt
overrides everything that was thought before it. The facts are a set that the caller keeps: when a restored relay that had
lost a message accepts it anew, the caller takes `rolled_back` out.
"""

from enum import StrEnum

from holdfast.protocol.receipt import ReceiptStatus
from holdfast.protocol.tables import total


class Fact(StrEnum):
    """Something that is known to have happened."""

    # the ladder
    ACCEPTED = "accepted"
    RELAYED = "relayed"
    DELIVERED = "delivered"  # the relay's word that the recipient acknowledged
    APPLIED = "applied"
    # signed by the recipient: proof of delivery, or of what became of the message instead
    RECEIPT = "receipt"
    UNREADABLE = "unreadable"  # the recipient has it and could not open it
    DUPLICATE = "duplicate"  # the recipient did not keep it: it has another message under this id
    # side exits at the sender
    DEAD = "dead"
    ABORTED = "aborted"
    # side exits at the relay
    EXPIRED = "expired"
    DROPPED = "dropped"
    QUARANTINED = "quarantined"
    MODERATED = "moderated"
    FULL = "full"
    BLOCKED = "blocked"
    ROLLED_BACK = "rolled_back"  # a restored relay lost it, and has not accepted it anew


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

# What a receipt is evidence of. Only a message that was stored is shown as delivered, though the relay calls all three so.
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
    """The state to show for these facts; a receipt of a stored message is shown as what it proves."""
    if not facts:
        raise ValueError("a message of which nothing is known has no state")
    strongest = min(facts, key=_RANKS.__getitem__)
    return Fact.DELIVERED if strongest is Fact.RECEIPT else strongest
