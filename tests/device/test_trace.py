"""What a trace shows of a message, from the end that sent it and from the end that received it."""

from typing import Any

import msgspec
import pytest

from holdfast.device import arrivals, inbox, outbox, receipts, requeue, scheduled, trace
from holdfast.device.forks import Fork
from holdfast.device.outbox import Item
from holdfast.device.trace import Received, Sent, Trace
from holdfast.protocol.fate import Fact
from holdfast.protocol.outbox import RelayWord
from holdfast.protocol.payload import Payload
from holdfast.protocol.reaction import FaultKind
from holdfast.protocol.refusal import Refusal
from holdfast.wire.client import Fate
from tests.device.desk import LOG, NEW_LOG, START, Desk


def _trace(desk: Desk, name: str) -> Trace:
    found = desk.look(lambda tx: trace.trace(tx, name))
    assert found is not None
    return found


def _sent(desk: Desk, item: Item) -> Sent:
    found = _trace(desk, item.client_message_id).sent
    assert found is not None
    assert _trace(desk, item.id).sent == found
    return found


def _rungs(found: Sent | Received | trace.AtRecipient) -> list[tuple[str, int]]:
    return [(rung.what, rung.at - START) for rung in found.rungs]


def _fate(desk: Desk, item: Item, kind: str, recipient: str = "member-bob", **more: Any) -> None:
    fate = Fate(
        seq=30,
        at=desk.now,
        kind=kind,
        client_message_id=item.client_message_id,
        recipient=recipient,
        event_id=(item.event_id or b"").hex(),
        **more,
    )
    assert desk.do(lambda tx: receipts.take_fates(tx, desk.now, LOG, 40, [fate])).taken == 1


def test_nothing_is_known_of_an_unknown_id(desk: Desk) -> None:
    assert desk.look(lambda tx: trace.trace(tx, "nothing")) is None


def test_every_rung_of_a_send_is_shown_with_its_time(desk: Desk) -> None:
    item = desk.sent()
    desk.now += 1
    item = desk.claim(item)
    desk.now += 1
    item = desk.settle(item, FaultKind.TIMEOUT, "no answer")
    desk.now += 1
    item = desk.claim(item)
    desk.now += 1
    item = desk.settle(item, Refusal.QUEUE_FULL, "bob has too much")
    desk.now += 1
    item = desk.relay(item)
    desk.now += 1
    _fate(desk, item, "delivered", was_stored=True)
    desk.now += 1
    desk.take(desk.receipt(desk.bob, (item, "stored")), desk.bob)
    found = _sent(desk, item)
    assert _rungs(found) == [
        ("accepted", 0),
        ("attempted", 1),
        ("attempted", 2),
        ("attempted", 3),
        ("attempted", 4),
        ("attempted", 5),
        ("relayed", 5),
    ]
    assert [(rung.attempt, rung.reason) for rung in found.rungs[1:6]] == [
        (1, None),
        (1, "timeout"),
        (2, None),
        (2, "queue_full"),
        (3, None),
    ]
    assert found.rungs[4].detail == "queue_full: bob has too much"
    (bob,) = found.recipients
    assert (bob.member, bob.state, _rungs(bob)) == ("member-bob", Fact.DELIVERED, [("delivered", 6), ("receipt", 7)])
    assert [rung.was_stored for rung in bob.rungs] == [True, True]
    assert found.state is Fact.DELIVERED
    assert (found.status, found.broker_message_id) == ("done", item.broker_message_id)


def test_a_send_that_was_tried_very_often_shows_its_beginning_and_its_end(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace, "RUNGS_MAX", 3)
    item = desk.sent()
    for _ in range(4):
        desk.now += 1
        item = desk.settle(desk.claim(item), FaultKind.TIMEOUT)
    desk.now += 1
    item = desk.relay(item)
    assert _rungs(_sent(desk, item)) == [("accepted", 0), ("attempted", 4), ("attempted", 5), ("relayed", 5)]


@pytest.mark.parametrize(
    ("fate", "receipt", "state"),
    [
        (None, None, Fact.RELAYED),
        ("expired", None, Fact.EXPIRED),
        ("delivered", None, Fact.DELIVERED),
        ("expired", "stored", Fact.DELIVERED),
        ("delivered", "unreadable", Fact.UNREADABLE),
        ("delivered", "duplicate", Fact.DUPLICATE),
        ("blocked", None, Fact.BLOCKED),
    ],
)
def test_who_was_closer_to_the_recipient_is_believed(
    desk: Desk, fate: str | None, receipt: str | None, state: Fact
) -> None:
    item = desk.relay(desk.sent())
    if fate is not None:
        _fate(desk, item, fate)
    if receipt is not None:
        desk.take(desk.receipt(desk.bob, (item, receipt)), desk.bob)
    assert _sent(desk, item).state is state


def test_each_reader_of_a_topic_has_its_own_state(desk: Desk) -> None:
    item = desk.relay(desk.sent("@news"))
    assert (_sent(desk, item).state, _sent(desk, item).recipients) == (Fact.RELAYED, ())
    _fate(desk, item, "full", "member-carol")
    desk.take(desk.receipt(desk.bob, (item, "stored")), desk.bob)
    found = _sent(desk, item)
    assert [(each.member, each.state) for each in found.recipients] == [
        ("member-bob", Fact.DELIVERED),
        ("member-carol", Fact.FULL),
    ]
    assert found.state is Fact.RELAYED


def test_what_was_given_up_shows_why_and_what_took_its_place(desk: Desk) -> None:
    item = desk.refuse(desk.sent())
    found = _sent(desk, item)
    assert (found.state, found.rungs[-1].what, found.rungs[-1].reason) == (Fact.DEAD, "dead", "may_not_post")
    word = RelayWord.NOT_COMMITTED
    desk.do(lambda tx: requeue.requeue(tx, desk.facts, desk.now, desk.random, item.id, word=word))
    found = _sent(desk, item)
    assert found.state is Fact.ABORTED
    assert found.rungs[-1].what == "aborted"
    assert found.rungs[-1].detail == found.superseded_by == desk.item(item.id).superseded_by is not None


def test_a_receipt_overrides_giving_up(desk: Desk) -> None:
    item = desk.refuse(desk.sent())
    desk.take(desk.receipt(desk.bob, (item, "stored")), desk.bob)
    assert _sent(desk, item).state is Fact.DELIVERED


def test_what_a_restored_relay_lost_is_shown_until_it_takes_it_again(desk: Desk) -> None:
    item = desk.relay(desk.sent(), history_id=9)
    desk.do(lambda tx: outbox.roll_back(tx, desk.facts, desk.now, [Fork(LOG, 3)]))
    found = _sent(desk, item)
    assert (found.state, found.rungs[-1].what) == (Fact.ROLLED_BACK, "rolled_back")
    desk.relay(desk.item(item.id), log_id=NEW_LOG)
    assert _sent(desk, item).state is Fact.RELAYED


def test_a_scheduled_send_shows_when_it_was_asked_for_and_when_it_left(desk: Desk) -> None:
    desk.send(client_message_id="later", not_before=START + 10)
    waiting = _trace(desk, "later").sent
    assert waiting is not None
    assert (waiting.sequence, waiting.status, waiting.state, waiting.not_before) == (
        None,
        "pending",
        Fact.ACCEPTED,
        START + 10,
    )
    assert _rungs(waiting) == [("accepted", 0)]
    desk.now += 12
    desk.do(lambda tx: scheduled.release(tx, desk.facts, desk.now, desk.random))
    found = _sent(desk, desk.item("later"))
    assert (found.sequence, _rungs(found), found.not_before) == (0, [("accepted", 0), ("released", 12)], START + 10)


def test_every_rung_of_a_message_that_arrived_is_shown(desk: Desk) -> None:
    (stored,) = desk.store(desk.arrival(desk.bob.post("news", client_message_id="theirs"), body=None))
    name = stored.id or ""

    def state() -> tuple[str, list[tuple[str, int]]]:
        (found,) = _trace(desk, name).received
        assert _trace(desk, "theirs").received == (found,)
        return found.state, _rungs(found)

    assert state() == ("unreadable", [("stored", 0)])
    desk.now += 1
    desk.do(lambda tx: arrivals.reopen(tx, desk.facts, desk.now, [(name, Payload(body=b"x"))]))
    assert state() == ("stored", [("stored", 0), ("opened", 1)])
    desk.now += 1
    for _ in range(inbox.HANDLER_ATTEMPTS_MAX):
        desk.do(lambda tx: inbox.fail(tx, desk.facts, desk.now, name, "it raised"))
    assert state() == ("parked", [("stored", 0), ("opened", 1), ("parked", 2)])
    desk.now += 1
    desk.do(lambda tx: inbox.acknowledge(tx, desk.facts, desk.now, [name]))
    assert state()[0] == "applied"
    assert state()[1][-1] == ("applied", 3)


def test_an_id_that_was_both_sent_and_received_shows_both(desk: Desk) -> None:
    desk.sent(client_message_id="same")
    desk.store(
        desk.arrival(desk.bob.message(desk.me, client_message_id="same")),
        desk.arrival(desk.carol.message(desk.me, client_message_id="same"), desk.carol),
    )
    found = _trace(desk, "same")
    assert found.sent is not None
    assert _rungs(found.sent) == [("accepted", 0)]
    assert [received.sender for received in found.received] == ["member-bob", "member-carol"]


def test_a_document_leaves_out_what_is_not_known(desk: Desk) -> None:
    item = desk.relay(desk.sent())
    shown: Any = msgspec.json.decode(msgspec.json.encode(trace.document(_trace(desk, item.id))))
    assert shown["received"] == []
    assert shown["sent"]["state"] == "relayed"
    assert shown["sent"]["rungs"][0] == {"what": "accepted", "at": START}
    assert shown["sent"]["recipients"] == [{"member": "member-bob", "state": "relayed", "rungs": []}]
