"""Receipts and fates of own sends: kept once, told once, and believed only about what was sent to whoever speaks."""

from typing import Any

import msgspec
import pytest

from holdfast.device import receipts
from holdfast.device.forks import Fork, kept_through
from holdfast.device.outbox import Item
from holdfast.device.receipts import FateKind, Taken
from holdfast.protocol.event import encode
from holdfast.protocol.fate import Fact
from holdfast.protocol.history import Kind
from holdfast.protocol.receipt import Receipted, ReceiptStatus
from holdfast.wire.client import Fate
from tests.device.desk import LOG, NEW_LOG, START, Desk
from tests.people import MESH

THIRD_LOG = b"\x0c" * 16


def _lines(desk: Desk) -> list[tuple[Any, ...]]:
    return desk.rows("SELECT sequence, recipient, status, was_stored, received_at FROM send_receipt ORDER BY 1, 2")


def test_the_lines_of_a_receipt_survive_the_outbox() -> None:
    lines = (
        Receipted("ab" * 32, True, ReceiptStatus.STORED),
        Receipted("cd" * 32, False, ReceiptStatus.DUPLICATE),
    )
    assert receipts.decode(receipts.encode(lines)) == lines


# receipts


def test_a_receipt_is_kept_as_it_was_signed_and_told_line_by_line(desk: Desk) -> None:
    one, two = desk.relay(desk.sent()), desk.relay(desk.sent())
    event = desk.receipt(desk.bob, (one, "stored"), (two, "unreadable"), was_stored=False)
    desk.now += 7
    assert desk.take(event, desk.bob, "relay-9") == Taken(taken=2)
    assert _lines(desk) == [
        (one.sequence, "member-bob", "stored", 0, START + 7),
        (two.sequence, "member-bob", "unreadable", 0, START + 7),
    ]
    assert desk.rows("SELECT event, sender, message_id FROM receipt") == [(encode(event), "member-bob", "relay-9")]
    entries = desk.entries(Kind.RECEIPT)
    assert [(entry.client_message_id, entry.sequence, entry.event_id, entry.reason) for entry in entries] == [
        (one.client_message_id, one.sequence, one.event_id, "stored"),
        (two.client_message_id, two.sequence, two.event_id, "unreadable"),
    ]
    assert {(entry.mesh, entry.message_id, entry.recipient, entry.was_stored) for entry in entries} == {
        (MESH, "relay-9", "member-bob", False)
    }
    assert {entry.detail for entry in entries} == {bytes.fromhex(event.id)}
    assert {entry.epoch for entry in entries} == {one.epoch} != {None}


def test_a_receipt_that_comes_again_changes_nothing(desk: Desk) -> None:
    one = desk.relay(desk.sent())
    event = desk.receipt(desk.bob, (one, "stored"))
    desk.take(event, desk.bob)
    before = (_lines(desk), desk.entries())
    desk.now += 1
    assert desk.take(event, desk.bob, "another name") == Taken(repeated=1)
    assert (_lines(desk), desk.entries()) == before


def test_the_first_word_of_a_recipient_counts(desk: Desk) -> None:
    one, two = desk.relay(desk.sent()), desk.relay(desk.sent())
    desk.take(desk.receipt(desk.bob, (one, "unreadable")), desk.bob)
    assert desk.take(desk.receipt(desk.bob, (one, "stored"), (two, "stored")), desk.bob) == Taken(taken=1, repeated=1)
    assert [(line[0], line[2]) for line in _lines(desk)] == [(one.sequence, "unreadable"), (two.sequence, "stored")]


def test_each_reader_of_a_topic_speaks_for_itself(desk: Desk) -> None:
    post = desk.relay(desk.sent("@news"))
    desk.take(desk.receipt(desk.bob, (post, "stored")), desk.bob)
    desk.take(desk.receipt(desk.carol, (post, "unreadable")), desk.carol)
    assert [(line[1], line[2]) for line in _lines(desk)] == [("member-bob", "stored"), ("member-carol", "unreadable")]


def test_a_line_about_what_went_to_somebody_else_is_reported_and_the_others_count(desk: Desk) -> None:
    to_bob, to_carol = desk.relay(desk.sent("bob")), desk.relay(desk.sent("carol"))
    event = desk.receipt(desk.bob, (to_carol, "stored"), (to_bob, "stored"), ("ee" * 32, "stored"))
    taken = desk.take(event, desk.bob)
    assert taken == Taken(taken=1, forged=((to_carol.event_id or b"").hex(),), unknown=("ee" * 32,))
    assert [line[0] for line in _lines(desk)] == [to_bob.sequence]
    assert len(desk.entries(Kind.RECEIPT)) == 1


def test_a_receipt_that_proves_nothing_is_not_kept(desk: Desk) -> None:
    to_carol = desk.relay(desk.sent("carol"))
    assert desk.take(desk.receipt(desk.bob, (to_carol, "stored")), desk.bob).taken == 0
    assert desk.rows("SELECT * FROM receipt") == []
    assert desk.entries(Kind.RECEIPT) == []


def test_nobody_receipts_a_receipt(desk: Desk) -> None:
    desk.store(desk.arrival(desk.bob.message(desk.me)))
    ((name,),) = desk.rows("SELECT id FROM operation_log")
    ours = desk.relay(desk.item(name))
    assert desk.take(desk.receipt(desk.bob, (ours, "stored")), desk.bob).forged == ((ours.event_id or b"").hex(),)


def test_a_receipt_for_somebody_else_or_of_another_kind_is_refused(desk: Desk) -> None:
    one = desk.relay(desk.sent())
    elsewhere = desk.receipt(desk.bob, (one, "stored"), mesh="01OTHER")
    assert "somebody else" in desk.take(elsewhere, desk.bob).refused
    assert desk.take(desk.bob.message(desk.me), desk.bob).refused
    assert _lines(desk) == []


# fates


def _fate(item: Item, kind: str = "expired", recipient: str = "member-bob", **more: Any) -> Fate:
    values = {
        "seq": 30,
        "at": START + 3,
        "kind": kind,
        "client_message_id": item.client_message_id,
        "recipient": recipient,
        "event_id": (item.event_id or b"").hex(),
        **more,
    }
    return Fate(**values)


def _take(desk: Desk, *fates: Fate, through: int = 40, log_id: bytes = LOG) -> Taken:
    return desk.do(lambda tx: receipts.take_fates(tx, desk.now, log_id, through, fates))


def _fates(desk: Desk) -> list[tuple[Any, ...]]:
    return desk.rows("SELECT sequence, recipient, kind, at, was_stored, reason, history_id FROM fate ORDER BY 1, 2, 3")


def _after(desk: Desk, log_id: bytes, *forks: Fork) -> int:
    return desk.look(lambda tx: receipts.fates_after(tx, log_id, forks))


def test_fates_are_kept_once_and_append_nothing(desk: Desk) -> None:
    one, post = desk.relay(desk.sent()), desk.relay(desk.sent("@news"))
    before = desk.entries()
    told = (
        _fate(one, reason="age"),
        _fate(post, "delivered", "member-carol", was_stored=True, seq=31),
        _fate(post, "full", "member-bob", seq=32),
    )
    assert _take(desk, *told) == Taken(taken=3)
    assert _take(desk, *told) == Taken(repeated=3)
    assert _fates(desk) == [
        (one.sequence, "member-bob", "expired", START + 3, None, "age", 30),
        (post.sequence, "member-bob", "full", START + 3, None, None, 32),
        (post.sequence, "member-carol", "delivered", START + 3, 1, None, 31),
    ]
    assert desk.entries() == before


def test_fates_that_cannot_be_ours_are_reported_and_left_out(desk: Desk) -> None:
    one = desk.relay(desk.sent())
    unknown = msgspec.structs.replace(_fate(one), client_message_id="never")
    wrong = _fate(one, event_id="ee" * 32)
    taken = _take(desk, unknown, _fate(one, recipient="member-carol"), wrong, _fate(one, "vanished"))
    assert taken == Taken(forged=(one.client_message_id,) * 2, unknown=("never", one.client_message_id))
    assert _fates(desk) == []


def test_every_fate_is_a_fact_that_can_be_shown() -> None:
    assert {Fact(kind.value) for kind in FateKind} <= set(Fact)


def test_the_cursor_goes_forward_in_one_log_and_starts_where_a_new_one_forked(desk: Desk) -> None:
    assert _after(desk, LOG) == 0
    _take(desk, through=40)
    _take(desk, through=30)
    assert _after(desk, LOG) == 40
    assert _after(desk, NEW_LOG, Fork(LOG, 25)) == 25
    assert _after(desk, NEW_LOG, Fork(LOG, 60)) == 40
    assert _after(desk, THIRD_LOG, Fork(LOG, 35), Fork(NEW_LOG, 20)) == 20
    assert _after(desk, NEW_LOG) == 0
    _take(desk, through=26, log_id=NEW_LOG)
    assert _after(desk, NEW_LOG, Fork(LOG, 25)) == 26


@pytest.mark.parametrize(
    ("log_id", "kept"),
    [(LOG, 20), (NEW_LOG, 20), (THIRD_LOG, 50), (b"\x0d" * 16, None)],
)
def test_what_a_log_has_kept_is_what_all_later_restorations_left(log_id: bytes, kept: int | None) -> None:
    assert kept_through(log_id, [Fork(LOG, 30), Fork(NEW_LOG, 20), Fork(THIRD_LOG, 50)]) == kept
