"""Which of the facts known about a message and one recipient is shown as its state.

Who was closer to the recipient knows better: the recipient's own word beats the relay's history, the relay's history
beats the sender's giving up, and giving up beats a rung of the ladder that only says how far it had come. So a receipt
overrides everything that was thought before it, and no fact is ever hidden by an older guess.
"""

from enum import StrEnum

from holdfast.protocol.tables import total


class Fact(StrEnum):
    """Something that is known to have happened."""

    # the ladder
    ACCEPTED = "accepted"
    RELAYED = "relayed"
    DELIVERED = "delivered"  # the relay's word that the recipient acknowledged
    APPLIED = "applied"
    # proof of delivery, signed by the recipient
    RECEIPT = "receipt"
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
    ROLLED_BACK = "rolled_back"  # a restored relay lost it; `relayed` holds again once it was taken anew


class Witness(StrEnum):
    """Whose word a fact is."""

    RECIPIENT = "recipient"
    RELAY = "relay"
    SENDER = "sender"


LADDER = (Fact.ACCEPTED, Fact.RELAYED, Fact.DELIVERED, Fact.APPLIED)

# The strongest first. A delivery row closes once, so two relay facts meet only when a restored relay closed it twice.
PRECEDENCE = (
    Fact.APPLIED,
    Fact.RECEIPT,
    Fact.DELIVERED,
    Fact.MODERATED,
    Fact.QUARANTINED,
    Fact.DROPPED,
    Fact.EXPIRED,
    Fact.BLOCKED,
    Fact.FULL,
    Fact.ABORTED,  # after dead: a requeue is what an operator did about it
    Fact.DEAD,
    Fact.RELAYED,
    Fact.ROLLED_BACK,
    Fact.ACCEPTED,
)

WITNESSES = total(
    {
        Fact.APPLIED: Witness.RECIPIENT,
        Fact.RECEIPT: Witness.RECIPIENT,
        Fact.DELIVERED: Witness.RELAY,
        Fact.MODERATED: Witness.RELAY,
        Fact.QUARANTINED: Witness.RELAY,
        Fact.DROPPED: Witness.RELAY,
        Fact.EXPIRED: Witness.RELAY,
        Fact.BLOCKED: Witness.RELAY,
        Fact.FULL: Witness.RELAY,
        Fact.ABORTED: Witness.SENDER,
        Fact.DEAD: Witness.SENDER,
        Fact.RELAYED: Witness.RELAY,
        Fact.ROLLED_BACK: Witness.RELAY,
        Fact.ACCEPTED: Witness.SENDER,
    },
    Fact,
)

_RANKS = total({fact: rank for rank, fact in enumerate(PRECEDENCE)}, Fact)


def shown(facts: frozenset[Fact]) -> Fact:
    """The state to show for these facts; a receipt is shown as what it proves."""
    if not facts:
        raise ValueError("a message of which nothing is known has no state")
    strongest = min(facts, key=_RANKS.__getitem__)
    return Fact.DELIVERED if strongest is Fact.RECEIPT else strongest
