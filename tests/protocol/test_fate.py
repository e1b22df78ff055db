"""Which fact is shown: every set of facts there can be."""

import itertools

import pytest

from holdfast.protocol.fate import LADDER, RECEIPTS, Fact, shown
from holdfast.protocol.receipt import ReceiptStatus

SAID_BY_RECIPIENT = ["unreadable", "duplicate"]
CLOSED_AT_RELAY = ["moderated", "quarantined", "dropped", "expired", "blocked", "full"]


def rule(facts: set[str]) -> str:
    """The rule in words, one question after the other."""
    if "applied" in facts:
        return "applied"
    if "receipt" in facts:
        return "delivered"
    for word in [*SAID_BY_RECIPIENT, "delivered", *CLOSED_AT_RELAY]:
        if word in facts:
            return word
    if "aborted" in facts:
        return "aborted"
    if "dead" in facts:
        return "dead"
    if "rolled_back" in facts:
        return "rolled_back"
    return "relayed" if "relayed" in facts else "accepted"


def every_set() -> list[frozenset[Fact]]:
    sizes = range(1, len(Fact) + 1)
    return [frozenset(chosen) for size in sizes for chosen in itertools.combinations(Fact, size)]


def test_every_set_of_facts_has_one_state() -> None:
    sets = every_set()
    assert len(sets) == 2 ** len(Fact) - 1
    wrong = [facts for facts in sets if shown(facts) != rule({fact.value for fact in facts})]
    assert wrong == []


def test_the_ladder_is_climbed_rung_by_rung() -> None:
    climbed = [shown(frozenset(LADDER[: height + 1])) for height in range(len(LADDER))]
    assert climbed == ["accepted", "relayed", "delivered", "applied"]


@pytest.mark.parametrize("exit_", ["dead", "aborted", "expired", "dropped"])
def test_a_side_exit_is_shown_over_how_far_the_message_had_come(exit_: str) -> None:
    assert shown(frozenset({Fact.ACCEPTED, Fact.RELAYED, Fact(exit_)})) == exit_


@pytest.mark.parametrize("exit_", ["expired", "dead", "aborted", "quarantined", "moderated", "rolled_back"])
def test_a_receipt_is_proof_whatever_was_thought_before(exit_: str) -> None:
    assert shown(frozenset({Fact.ACCEPTED, Fact.RELAYED, Fact(exit_), Fact.RECEIPT})) is Fact.DELIVERED


def test_a_message_that_a_restored_relay_lost_is_not_relayed_until_it_is_accepted_anew() -> None:
    lost = frozenset({Fact.ACCEPTED, Fact.RELAYED, Fact.ROLLED_BACK})
    assert shown(lost) is Fact.ROLLED_BACK
    assert shown(lost - {Fact.ROLLED_BACK}) is Fact.RELAYED


@pytest.mark.parametrize(
    ("status", "state"), [("stored", "delivered"), ("unreadable", "unreadable"), ("duplicate", "duplicate")]
)
def test_a_receipt_is_shown_as_what_it_says_although_the_relay_calls_it_delivered(status: str, state: str) -> None:
    known = frozenset({Fact.ACCEPTED, Fact.RELAYED, Fact.DELIVERED})
    assert shown(known | {RECEIPTS[ReceiptStatus(status)]}) == state


def test_a_receipt_is_never_a_state_of_its_own() -> None:
    assert Fact.RECEIPT not in {shown(facts) for facts in every_set()}


def test_of_nothing_there_is_nothing_to_show() -> None:
    with pytest.raises(ValueError, match="nothing is known"):
        shown(frozenset())
