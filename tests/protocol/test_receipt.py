"""The receipt: one word per message, of one recipient to one sender, in one spelling."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.protocol import event as events
from holdfast.protocol.envelope import Destination, Head
from holdfast.protocol.event import Event
from holdfast.protocol.fingerprint import DestinationKind
from holdfast.protocol.receipt import (
    RECEIPT_TAGS,
    RECEIPTED_MAX,
    Receipt,
    Receipted,
    ReceiptStatus,
    from_event,
    sign_receipt,
    to_tags,
)
from holdfast.protocol.refusal import Refusal, Refused
from holdfast.protocol.tags import INTEGER_MAX

BOB = (2).to_bytes(32, "big")
AUX = bytes(32)
AT_S = 1_700_000_000
FIRST, SECOND, THIRD = (f"{number:064x}" for number in (1, 2, 0xF))

RECEIPT = Receipt(
    head=Head(mesh="home", client_message_id="01HQX5N5T8J9V0ABCDEFGHJKMN", epoch=bytes(range(16)), sequence=12),
    destination=Destination(DestinationKind.DM, "alice"),
    messages=(
        Receipted(SECOND, True, ReceiptStatus.STORED),
        Receipted(FIRST, False, ReceiptStatus.UNREADABLE),
        Receipted(THIRD, True, ReceiptStatus.DUPLICATE),
    ),
)

receipted = st.builds(
    Receipted,
    st.binary(min_size=32, max_size=32).map(bytes.hex),
    st.booleans(),
    st.sampled_from(ReceiptStatus),
)
receipt_values = st.builds(
    Receipt,
    head=st.builds(
        Head,
        mesh=st.just("home"),
        client_message_id=st.text("abc:/", min_size=1, max_size=8),
        epoch=st.binary(min_size=16, max_size=16),
        sequence=st.integers(0, INTEGER_MAX),
    ),
    destination=st.builds(Destination, st.just(DestinationKind.DM), st.text("ab9", min_size=1, max_size=8)),
    messages=st.lists(receipted, min_size=1, max_size=8, unique_by=lambda message: message.message_id).map(tuple),
)


def event_with(tags: Sequence[Sequence[str]], content: str = "", kind: int = 4202) -> Event:
    return Event("0" * 64, "0" * 64, AT_S, kind, tuple(tuple(tag) for tag in tags), content, "0" * 128)


@given(receipt_values)
def test_a_receipt_survives_its_event(receipt: Receipt) -> None:
    event = events.decode(events.encode(sign_receipt(BOB, AT_S, receipt, AUX)))
    events.verify(event)
    assert from_event(event) == receipt
    assert to_tags(from_event(event)) == event.tags
    assert event.content == ""


def test_the_golden_receipt_has_not_changed(golden: Callable[[str, object], None]) -> None:
    event = sign_receipt(BOB, AT_S, RECEIPT, AUX)
    golden("receipt.json", {"three messages": events.encode(event).decode()})
    (stored,) = json.loads((Path(__file__).parent / "golden" / "receipt.json").read_text()).values()
    events.verify(events.decode(stored))
    assert from_event(events.decode(stored)) == RECEIPT


def test_a_receipt_has_one_tag_per_message() -> None:
    assert to_tags(RECEIPT)[6:] == (
        ("r", SECOND, "true", "stored"),
        ("r", FIRST, "false", "unreadable"),
        ("r", THIRD, "true", "duplicate"),
    )
    assert [rule.name for rule in RECEIPT_TAGS[:6]] == [tag[0] for tag in to_tags(RECEIPT)[:6]]


def test_the_largest_receipt_fits_into_an_event() -> None:
    largest = Receipt(
        head=Head(mesh="m" * 64, client_message_id="~" * 128, epoch=b"\xff" * 16, sequence=INTEGER_MAX),
        destination=Destination(DestinationKind.DM, "x" * 64),
        messages=tuple(Receipted(f"{number:064x}", False, ReceiptStatus.UNREADABLE) for number in range(RECEIPTED_MAX)),
    )
    assert len(largest.messages) == 50
    assert from_event(sign_receipt(BOB, events.CREATED_AT_MAX_S, largest, AUX)) == largest


TAGS = to_tags(RECEIPT)
HEAD_AND_DESTINATION = TAGS[:6]


def with_message(*values: str) -> list[Sequence[str]]:
    return [*HEAD_AND_DESTINATION, ("r", *values)]


BAD_TAGS = [
    ([], Refusal.MALFORMED, "tag 'mesh' is missing"),
    (TAGS[1:], Refusal.MALFORMED, "tag 'mesh' is missing"),
    (TAGS[:3] + TAGS[4:], Refusal.MALFORMED, "tag 'sequence' is missing"),
    (TAGS[:5] + TAGS[6:], Refusal.MALFORMED, "tag 'destination_ref' is missing"),
    (HEAD_AND_DESTINATION, Refusal.MALFORMED, "a receipt needs at least one message"),
    ([*TAGS, ("e", FIRST)], Refusal.MALFORMED, "unknown tag 'e'"),
    ([*TAGS, ("priority", "now")], Refusal.MALFORMED, "unknown tag 'priority'"),
    ([TAGS[-1], *TAGS[:-1]], Refusal.MALFORMED, "tag 'mesh' stands after 'r'"),
    ([TAGS[0], *TAGS], Refusal.MALFORMED, "tag 'mesh' stands 2 times, at most 1 allowed"),
    (
        [*TAGS[:4], ("destination_kind", "topic"), *TAGS[5:]],
        Refusal.MALFORMED,
        "a receipt goes to a dm, not to a topic",
    ),
    (
        [*TAGS[:4], ("destination_kind", "queue"), *TAGS[5:]],
        Refusal.MALFORMED,
        "a receipt goes to a dm, not to a queue",
    ),
    (with_message(FIRST, "true"), Refusal.MALFORMED, "tag 'r' has 3 elements, it must have 4"),
    (with_message(FIRST, "true", "stored", ""), Refusal.MALFORMED, "tag 'r' has 5 elements, it must have 4"),
    (
        with_message("", "true", "stored"),
        Refusal.MALFORMED,
        "message_id has 0 characters, 64 hex digits are needed",
    ),
    (
        with_message("F" * 64, "true", "stored"),
        Refusal.MALFORMED,
        f"message_id '{'F' * 40}...' is not lower-case hex",
    ),
    (with_message(FIRST, "1", "stored"), Refusal.MALFORMED, "was_stored '1' is not one of true, false"),
    (with_message(FIRST, "True", "stored"), Refusal.MALFORMED, "was_stored 'True' is not one of true, false"),
    (with_message(FIRST, "", "stored"), Refusal.MALFORMED, "was_stored '' is not one of true, false"),
    (
        with_message(FIRST, "true", "applied"),
        Refusal.MALFORMED,
        "status 'applied' is not one of stored, unreadable, duplicate",
    ),
    (
        [*with_message(FIRST, "true", "stored"), ("r", FIRST, "false", "unreadable")],
        Refusal.MALFORMED,
        f"message_id '{FIRST[:40]}...' stands twice",
    ),
    (
        [*HEAD_AND_DESTINATION, *(("r", f"{number:064x}", "true", "stored") for number in range(51))],
        Refusal.TOO_LARGE,
        "a receipt has 51 messages, at most 50 allowed",
    ),
]


@pytest.mark.parametrize(("tags", "refusal", "detail"), BAD_TAGS)
def test_malformed_receipts_are_refused_with_the_reason(
    tags: Sequence[Sequence[str]], refusal: Refusal, detail: str
) -> None:
    with pytest.raises(Refused) as refused:
        from_event(event_with(tags))
    assert (refused.value.refusal, refused.value.detail) == (refusal, detail)


def test_a_receipt_has_no_content_and_its_own_kind() -> None:
    with pytest.raises(Refused, match="malformed: a receipt has no content, this one has 1 characters"):
        from_event(event_with(TAGS, content=" "))
    with pytest.raises(Refused, match="kind_unsupported: event is of kind 4201, not 4202"):
        from_event(event_with(TAGS, kind=4201))


def test_a_receipt_that_could_not_be_read_cannot_be_made() -> None:
    with pytest.raises(Refused, match="at least one message"):
        msgspec.structs.replace(RECEIPT, messages=())
    with pytest.raises(Refused, match="stands twice"):
        msgspec.structs.replace(RECEIPT, messages=(RECEIPT.messages[0],) * 2)


WRONG_TYPES: list[tuple[Callable[[], object], str]] = [
    (lambda: Receipted(FIRST, "true", ReceiptStatus.STORED), "was_stored is of type str, not bool"),  # type: ignore[arg-type] # the point
    (lambda: Receipted(FIRST, 1, ReceiptStatus.STORED), "was_stored is of type int, not bool"),  # type: ignore[arg-type] # likewise
    (lambda: Receipted(FIRST, True, "stored"), "status is of type str, not ReceiptStatus"),  # type: ignore[arg-type] # likewise
    (lambda: Receipted(bytes(32), True, ReceiptStatus.STORED), "message_id is of type bytes, not str"),  # type: ignore[arg-type] # likewise
    (lambda: msgspec.structs.replace(RECEIPT, messages=list(RECEIPT.messages)), "messages is of type list, not tuple"),
    (lambda: msgspec.structs.replace(RECEIPT, head=None), "head is of type NoneType, not Head"),
    (lambda: msgspec.structs.replace(RECEIPT, destination="alice"), "destination is of type str, not Destination"),
]


@pytest.mark.parametrize(("make", "detail"), WRONG_TYPES)
def test_values_of_other_types_are_refused(make: Callable[[], object], detail: str) -> None:
    with pytest.raises(Refused) as refused:
        make()
    assert (refused.value.refusal, refused.value.detail) == (Refusal.MALFORMED, detail)
