"""What arrives: one row per message, the receipt that is owed, and what is reported; then what readers do with it."""

import hashlib
import itertools
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.device import arrivals, inbox, outbox
from holdfast.device.arrivals import Outcome
from holdfast.device.inbox import HANDLER_ATTEMPTS_MAX, RETENTION_DAYS, Acknowledged, ReportKind
from holdfast.device.outbox import Item
from holdfast.device.sending import Attempt
from holdfast.protocol.event import Event
from holdfast.protocol.history import Kind
from holdfast.protocol.outbox import Status
from holdfast.protocol.payload import Payload
from holdfast.protocol.receipt import RECEIPTED_MAX
from holdfast.protocol.refusal import Refusal, Refused
from holdfast.protocol.schedule import DAY, SECOND
from tests.device.desk import LOG, NEW_LOG, START, Desk
from tests.people import MESH, Person

OTHER_EPOCH = b"\x99" * 16


def _in_place(person: Person, epoch: bytes | None, sequence: int) -> None:
    """Let a person's next event be signed in this place of its log."""
    person.sequences = itertools.count(sequence)
    person.epoch = epoch


def _reports(desk: Desk) -> list[tuple[ReportKind, str, int | None]]:
    found = desk.look(inbox.reports)
    return [(report.kind, report.sender, report.sequence) for report in found]


def _everything(desk: Desk) -> list[Any]:
    tables = ("inbox", "inbox_duplicate", "inbox_mention", "sender_epoch", "operation_log", "history")
    return [desk.rows(f"SELECT * FROM {table}") for table in tables]


# one message


def test_a_message_becomes_a_row_an_entry_and_a_receipt(desk: Desk) -> None:
    event = desk.bob.message(
        desk.me, client_message_id="hi", reply_to="mine", mentions=(desk.me.member,), expires_at=START + DAY
    )
    content = Payload(body=b"hello", meta=b'{"a":1}', object_id=b"\xab" * 32)
    arrived = desk.arrival(event, payload=content, was_stored=False)
    (stored,) = desk.store(arrived)
    assert (stored.seq, stored.outcome, stored.client_message_id) == (arrived.seq, Outcome.STORED, "hi")
    message = desk.message(stored.id or "")
    assert (message.sender, message.sender_name, message.sender_pubkey) == ("member-bob", "bob", desk.bob.key)
    assert (message.body, message.meta, message.object_id) == (b"hello", b'{"a":1}', b"\xab" * 32)
    assert (message.reply_to, message.mentions, message.expires_at) == ("mine", (desk.me.member,), START + DAY)
    assert (message.topic, message.was_stored, message.replayed) == (None, False, False)
    assert (message.received_at, message.sent_at) == (START, event.created_at * SECOND)
    (entry,) = desk.entries(Kind.STORED)
    assert (entry.mesh, entry.sender, entry.recipient) == (MESH, "member-bob", desk.me.member)
    assert (entry.message_id, entry.client_message_id, entry.event_id) == (
        arrived.message_id,
        "hi",
        bytes.fromhex(event.id),
    )
    assert (entry.destination_kind, entry.destination_ref) == ("dm", desk.me.member)
    assert (entry.size, entry.was_stored, entry.reason) == (len(arrived.raw), False, "stored")
    assert entry.detail == LOG + arrived.seq.to_bytes(8, "big")
    assert desk.receipts_owed() == [("member-bob", [(event.id, False, "stored")])]


def test_a_row_that_cannot_be_written_owes_no_receipt(desk: Desk) -> None:
    def store_and_fail(tx: Any) -> None:
        arrivals.store(tx, desk.facts, desk.now, desk.random, [desk.arrival(desk.bob.message(desk.me))])
        raise RuntimeError

    before = _everything(desk)
    with pytest.raises(RuntimeError):
        desk.do(store_and_fail)
    assert _everything(desk) == before


def test_a_post_to_a_topic_is_of_that_topic(desk: Desk) -> None:
    desk.store(desk.arrival(desk.bob.post("news")))
    (message,) = desk.inbox(topic="news")
    assert message.topic == "news"
    assert desk.entries(Kind.STORED)[0].destination_kind == "topic"


def test_receipts_are_grouped_by_sender_and_not_too_many_in_one(desk: Desk) -> None:
    many = [desk.arrival(desk.bob.message(desk.me)) for _ in range(RECEIPTED_MAX + 1)]
    other = desk.arrival(desk.carol.message(desk.me), desk.carol)
    desk.store(*many[:3], other, *many[3:])
    owed = desk.receipts_owed()
    assert [(to, len(lines)) for to, lines in owed] == [("member-bob", 50), ("member-bob", 1), ("member-carol", 1)]
    assert [line[0] for _, lines in owed[:2] for line in lines] == [arrived.event.id for arrived in many]


# the same again


@pytest.mark.parametrize("replayed", [False, True])
def test_the_same_event_again_changes_nothing_and_makes_no_second_receipt(desk: Desk, replayed: bool) -> None:
    event = desk.bob.message(desk.me)
    desk.store(desk.arrival(event))
    before = _everything(desk)
    (again,) = desk.store(desk.arrival(event, replayed=replayed, was_stored=False))
    assert (again.outcome, again.id) == (Outcome.REPEATED, None)
    assert _everything(desk) == before


def _newest(desk: Desk) -> Item:
    return desk.look(outbox.page)[-1]


def test_a_receipt_that_a_restored_relay_did_not_know_is_owed_again_with_the_message_that_comes_again(
    desk: Desk,
) -> None:
    event = desk.bob.message(desk.me)
    desk.store(desk.arrival(event, body=None, was_stored=False))
    first = desk.refuse(_newest(desk), Refusal.RECEIPT_UNKNOWN)
    assert desk.store(desk.arrival(event, log_id=NEW_LOG))[0].outcome is Outcome.REPEATED
    again = _newest(desk)
    assert (first.status, again.status) == (Status.DEAD, Status.PENDING)
    assert desk.receipts_owed() == [("member-bob", [(event.id, False, "unreadable")])] * 2  # as it was said first
    desk.store(desk.arrival(event, log_id=NEW_LOG))
    desk.relay(again, log_id=NEW_LOG)
    desk.store(desk.arrival(event, log_id=NEW_LOG))
    assert _newest(desk).id == again.id


def test_a_receipt_is_owed_again_once_though_the_message_comes_twice_at_a_time(desk: Desk) -> None:
    """No receipt can be signed that names a message twice: it would end the daemon at every start."""
    event = desk.bob.message(desk.me)
    desk.store(desk.arrival(event))
    desk.refuse(_newest(desk), Refusal.RECEIPT_UNKNOWN)
    desk.store(desk.arrival(event), desk.arrival(event))
    assert desk.receipts_owed()[1:] == [("member-bob", [(event.id, True, "stored")])]


def test_a_receipt_that_may_have_been_refused_while_the_message_came_again_is_owed_again(desk: Desk) -> None:
    event = desk.bob.message(desk.me)
    desk.store(desk.arrival(event))
    first = desk.claim(_newest(desk))
    desk.store(desk.arrival(event))  # of the same log: whatever is said of the receipt, it is not that
    assert _newest(desk).id == first.id
    desk.store(desk.arrival(event, log_id=NEW_LOG))
    desk.settle(first, Refusal.RECEIPT_UNKNOWN)
    again = _newest(desk)
    assert (again.id != first.id, again.status) == (True, Status.PENDING)


def test_the_receipt_for_evidence_is_owed_again_like_any_other(desk: Desk) -> None:
    first, second = (desk.bob.message(desk.me, body, client_message_id="one") for body in (b"one", b"two"))
    desk.store(desk.arrival(first, body=b"one"))
    desk.store(desk.arrival(second, body=b"two"))
    desk.refuse(_newest(desk), Refusal.RECEIPT_UNKNOWN)
    desk.store(desk.arrival(second, body=b"two", log_id=NEW_LOG))
    assert desk.receipts_owed()[1:] == [("member-bob", [(second.id, True, "duplicate")])] * 2


def test_the_same_event_twice_in_one_batch_is_one_message(desk: Desk) -> None:
    event = desk.bob.message(desk.me)
    stored = desk.store(desk.arrival(event), desk.arrival(event))
    assert [each.outcome for each in stored] == [Outcome.STORED, Outcome.REPEATED]
    assert len(desk.receipts_owed()[0][1]) == 1


def test_another_event_under_a_used_id_is_evidence_and_no_message(desk: Desk) -> None:
    first = desk.bob.message(desk.me, b"one", client_message_id="same")
    second = desk.bob.message(desk.me, b"two", client_message_id="same")
    desk.store(desk.arrival(first, body=b"one"))
    (stored,) = desk.store(desk.arrival(second, body=b"two"))
    assert (stored.outcome, stored.id, stored.equivocates) == (Outcome.DUPLICATE, None, None)
    assert [message.body for message in desk.inbox()] == [b"one"]
    assert [entry.reason for entry in desk.entries(Kind.STORED)] == ["stored", "duplicate"]
    assert desk.receipts_owed()[1] == ("member-bob", [(second.id, True, "duplicate")])
    before = _everything(desk)
    assert desk.store(desk.arrival(second, body=b"two"))[0].outcome is Outcome.REPEATED
    assert _everything(desk) == before


def test_an_id_belongs_to_its_sender_alone(desk: Desk) -> None:
    stored = desk.store(
        desk.arrival(desk.bob.message(desk.me, client_message_id="same")),
        desk.arrival(desk.carol.message(desk.me, client_message_id="same"), desk.carol),
    )
    assert [each.outcome for each in stored] == [Outcome.STORED, Outcome.STORED]
    assert len(desk.look(lambda tx: inbox.called(tx, "same"))) == 2


# what is not for this device


def test_what_is_for_somebody_else_is_refused_and_leaves_nothing(desk: Desk) -> None:
    before = _everything(desk)
    elsewhere = Person("bob", mesh="01OTHER").message(desk.me)
    events = [desk.bob.message(desk.carol), elsewhere, desk.bob.create_topic("news")]
    stored = desk.store(*map(desk.arrival, events))
    assert [each.outcome for each in stored] == [Outcome.REFUSED] * 3
    assert [each.detail.partition(":")[0] for each in stored] == [
        "destination_unknown",
        "mesh_unknown",
        "kind_unsupported",
    ]
    assert _everything(desk) == before


# what is reported about senders


def _follow(person: Person, me: Person, desk: Desk, previous: int | None, body: bytes = b"x") -> arrivals.Arrival:
    return desk.arrival(person.message(me, body), payload=Payload(body=body, previous_sequence=previous))


def test_a_message_whose_predecessor_never_came_shows_a_hole_until_it_comes(desk: Desk) -> None:
    lost = desk.bob.message(desk.me, b"lost")
    (first,) = desk.store(_follow(desk.bob, desk.me, desk, previous=0))
    assert first.missing_sequence == 0
    (second,) = desk.store(_follow(desk.bob, desk.me, desk, previous=1))
    assert second.missing_sequence is None
    assert _reports(desk) == [(ReportKind.HOLE, "member-bob", 0)]
    desk.store(desk.arrival(lost, replayed=True))
    assert _reports(desk) == []


def test_a_first_message_without_predecessor_shows_no_hole(desk: Desk) -> None:
    assert desk.store(_follow(desk.bob, desk.me, desk, previous=None))[0].missing_sequence is None
    assert _reports(desk) == []


def test_what_was_posted_before_this_device_read_a_topic_is_no_hole(desk: Desk) -> None:
    def post(previous: int) -> Any:
        return desk.arrival(desk.bob.post("news"), payload=Payload(body=b"x", previous_sequence=previous))

    _in_place(desk.bob, None, 7)
    desk.store(desk.arrival(desk.bob.message(desk.me)))  # 7, to this member: not of the topic
    (first,) = desk.store(post(previous=5))  # 8
    assert first.missing_sequence is None
    _in_place(desk.bob, None, 12)
    (later,) = desk.store(post(previous=10))
    assert later.missing_sequence == 10
    assert _reports(desk) == [(ReportKind.HOLE, "member-bob", 10)]


def test_a_message_of_another_destination_fills_no_hole(desk: Desk) -> None:
    desk.store(desk.arrival(desk.bob.post("news")))  # 0
    (stored,) = desk.store(_follow(desk.bob, desk.me, desk, previous=0))
    assert stored.missing_sequence == 0


def test_a_message_that_came_under_a_taken_id_fills_its_hole(desk: Desk) -> None:
    desk.store(desk.arrival(desk.bob.message(desk.me, b"first", client_message_id="same")))
    (second,) = desk.store(desk.arrival(desk.bob.message(desk.me, b"second", client_message_id="same")))
    assert second.outcome is Outcome.DUPLICATE
    (third,) = desk.store(_follow(desk.bob, desk.me, desk, previous=1))
    assert third.missing_sequence is None
    assert _reports(desk) == []


def test_a_sender_with_a_new_epoch_was_reset(desk: Desk) -> None:
    before = desk.bob.message(desk.me)
    (first,) = desk.store(desk.arrival(before))
    assert first.reset_from is None
    old = hashlib.sha256(b"bob").digest()[:16]
    _in_place(desk.bob, OTHER_EPOCH, 0)
    (second, third) = desk.store(
        desk.arrival(desk.bob.message(desk.me, client_message_id="again")), desk.arrival(desk.bob.message(desk.me))
    )
    assert (second.reset_from, third.reset_from) == (old.hex(), None)
    assert second.equivocates is None  # the same sequence, in another epoch
    assert _reports(desk) == [(ReportKind.RESET, "member-bob", None)]


@pytest.mark.parametrize("same_id", [False, True])
def test_two_events_in_one_place_are_kept_and_reported(desk: Desk, same_id: bool) -> None:
    first = desk.bob.message(desk.me, b"one", client_message_id="one")
    _in_place(desk.bob, None, 0)
    second = desk.bob.message(desk.me, b"two", client_message_id="one" if same_id else "two")
    desk.store(desk.arrival(first, body=b"one"))
    desk.now += 1
    (stored,) = desk.store(desk.arrival(second, body=b"two"))
    assert stored.equivocates == first.id
    assert stored.outcome is (Outcome.DUPLICATE if same_id else Outcome.STORED)
    assert _reports(desk) == [(ReportKind.EQUIVOCATION, "member-bob", 0)]
    assert desk.look(inbox.reports)[0].event_id == bytes.fromhex(second.id)
    kept = desk.rows("SELECT event FROM inbox UNION ALL SELECT event FROM inbox_duplicate")
    assert {raw for (raw,) in kept} == {desk.arrival(first).raw, desk.arrival(second).raw}


def test_equivocations_are_looked_for_without_reading_the_messages(desk: Desk) -> None:
    statement = "EXPLAIN QUERY PLAN " + inbox._SQL["equivocations"]
    steps = [step[-1] for step in desk.look(lambda tx: tx.rows(statement, {"limit": 50}))]
    assert all("by_sequence" in step for step in steps if " inbox" in step), steps


# unreadable ones


def _unreadable(desk: Desk, event: Event, **more: Any) -> str:
    (stored,) = desk.store(desk.arrival(event, body=None, **more))
    assert stored.outcome is Outcome.UNREADABLE
    return stored.id or ""


def test_what_cannot_be_opened_is_kept_receipted_and_opened_when_a_key_comes(desk: Desk) -> None:
    event = desk.bob.post("news", mentions=(desk.me.member,))
    name = _unreadable(desk, event)
    assert desk.receipts_owed() == [("member-bob", [(event.id, True, "unreadable")])]
    assert [message.status for message in desk.inbox(unapplied=True)] == ["unreadable"]  # which no handler is given
    (sealed,) = desk.look(lambda tx: arrivals.unreadable(tx, topic="news"))
    assert (sealed.id, sealed.event, sealed.sender) == (name, desk.arrival(event).raw, "member-bob")
    assert desk.look(lambda tx: arrivals.unreadable(tx, topic="other")) == []
    assert desk.look(lambda tx: arrivals.unreadable(tx, after=sealed.arrival)) == []
    desk.now += 5
    content = Payload(body=b"at last", meta=b'{"a":1}', previous_sequence=None)
    assert desk.do(lambda tx: arrivals.reopen(tx, desk.facts, desk.now, [(name, content)])) == [name]
    message = desk.message(name)
    assert (message.status, message.body, message.opened_at) == ("stored", b"at last", START + 5)
    assert [(message.id, message.status) for message in desk.inbox(unapplied=True)] == [(name, "stored")]
    assert desk.look(arrivals.unreadable) == []
    (entry,) = desk.entries(Kind.OPENED)
    assert (entry.event_id, entry.sender) == (bytes.fromhex(event.id), "member-bob")
    assert len(desk.receipts_owed()) == 1


def test_a_message_is_opened_once(desk: Desk) -> None:
    name = _unreadable(desk, desk.bob.post("news"))
    for content in (Payload(body=b"first"), Payload(body=b"second")):
        desk.do(partial(arrivals.reopen, facts=desk.facts, now=desk.now, opened=[(name, content)]))
    assert desk.message(name).body == b"first"
    assert len(desk.entries(Kind.OPENED)) == 1


def test_a_hole_shows_when_the_message_that_names_it_is_opened(desk: Desk) -> None:
    name = _unreadable(desk, desk.bob.message(desk.me))
    assert _reports(desk) == []
    content = Payload(body=b"x", previous_sequence=77)
    desk.do(lambda tx: arrivals.reopen(tx, desk.facts, desk.now, [(name, content)]))
    assert _reports(desk) == [(ReportKind.HOLE, "member-bob", 77)]


# replayed ones


def test_what_is_replayed_is_kept_and_fires_nothing(desk: Desk) -> None:
    (replayed,) = desk.store(desk.arrival(desk.bob.message(desk.me), replayed=True))
    (new,) = desk.store(desk.arrival(desk.bob.message(desk.me)))
    assert [message.replayed for message in desk.inbox()] == [True, False]
    assert [message.id for message in desk.inbox(unapplied=True)] == [new.id]
    assert sum(len(lines) for _, lines in desk.receipts_owed()) == 2
    assert replayed.outcome is Outcome.STORED


def test_what_is_replayed_unreadable_fires_nothing_when_it_is_opened(desk: Desk) -> None:
    name = _unreadable(desk, desk.bob.message(desk.me), replayed=True)
    desk.do(lambda tx: arrivals.reopen(tx, desk.facts, desk.now, [(name, Payload(body=b"x"))]))
    assert desk.inbox(unapplied=True) == []


# what readers do


def _three(desk: Desk) -> list[str]:
    stored = desk.store(*(desk.arrival(desk.bob.message(desk.me)) for _ in range(3)))
    return [each.id or "" for each in stored]


def test_pages_come_in_the_order_of_arrival_and_go_on_where_they_ended(desk: Desk) -> None:
    names = _three(desk)
    first = desk.inbox(limit=2)
    second = desk.inbox(after=first[-1].arrival, limit=2)
    assert [message.id for message in (*first, *second)] == names
    assert desk.inbox(after=second[-1].arrival) == []


def test_filters_add_up(desk: Desk) -> None:
    mentioned = (desk.me.member,)
    desk.store(
        desk.arrival(desk.bob.message(desk.me)),
        desk.arrival(desk.bob.post("news", mentions=mentioned)),
        desk.arrival(desk.carol.post("news"), desk.carol),
        desk.arrival(desk.carol.message(desk.me, mentions=(*mentioned, "member-x")), desk.carol),
    )
    desk.now += 10
    desk.store(desk.arrival(desk.bob.post("other")))

    def arrived(**filters: Any) -> list[int]:
        return [message.arrival for message in desk.inbox(**filters)]

    assert arrived(topic="news") == [2, 3]
    assert arrived(sender="member-bob") == [1, 2, 5]
    assert arrived(mentions_of=desk.me.member) == [2, 4]
    assert arrived(mentions_of="member-x") == [4]
    assert arrived(topic="news", sender="member-carol") == [3]
    assert arrived(since=START + 10) == [5]
    assert arrived(topic="nothing") == []


def test_an_acknowledged_message_is_applied_once(desk: Desk) -> None:
    one, two, three = _three(desk)
    desk.now += 1
    asked = [one, two, one, "unknown"]
    done = desk.do(lambda tx: inbox.acknowledge(tx, desk.facts, desk.now, asked))
    assert done == Acknowledged((one, two), (), ("unknown",))
    again = desk.do(lambda tx: inbox.acknowledge(tx, desk.facts, desk.now + 1, [two, three]))
    assert again == Acknowledged((three,), (two,), ())
    assert [message.applied_at for message in desk.inbox()] == [START + 1, START + 1, START + 2]
    assert desk.inbox(unapplied=True) == []
    entries = desk.entries(Kind.APPLIED)
    assert [(entry.sender, entry.recipient, entry.mesh) for entry in entries] == [
        ("member-bob", desk.me.member, MESH)
    ] * 3


def test_a_message_whose_handler_keeps_failing_is_parked_and_shown(desk: Desk) -> None:
    one, two, three = _three(desk)

    def fail() -> inbox.Message:
        desk.now += 1
        return desk.do(lambda tx: inbox.fail(tx, desk.facts, desk.now, two, "it raised"))

    for attempt in range(1, HANDLER_ATTEMPTS_MAX):
        message = fail()
        assert (message.handler_attempts, message.parked_at) == (attempt, None)
        assert len(desk.inbox(unapplied=True)) == 3
    assert fail().parked_at == desk.now
    assert [message.id for message in desk.inbox(unapplied=True)] == [one, three]
    assert [message.id for message in desk.inbox(parked=True)] == [two]
    assert fail().handler_attempts == HANDLER_ATTEMPTS_MAX
    (entry,) = desk.entries(Kind.PARKED)
    assert entry.reason == "handler_failed"
    assert Attempt.decode(entry.detail) == Attempt(HANDLER_ATTEMPTS_MAX, "it raised")
    desk.do(lambda tx: inbox.acknowledge(tx, desk.facts, desk.now, [two]))
    assert desk.inbox(parked=True) == []


def test_a_failure_after_the_acknowledgement_counts_for_nothing(desk: Desk) -> None:
    one, *_ = _three(desk)
    desk.do(lambda tx: inbox.acknowledge(tx, desk.facts, desk.now, [one]))
    assert desk.do(lambda tx: inbox.fail(tx, desk.facts, desk.now, one, "late")).handler_attempts == 0


def test_a_failure_of_what_is_not_here_is_refused(desk: Desk) -> None:
    with pytest.raises(Refused) as refused:
        desk.do(lambda tx: inbox.fail(tx, desk.facts, desk.now, "unknown", "x"))
    assert refused.value.refusal is Refusal.NOT_FOUND


def test_a_document_shows_bytes_as_text_or_in_base64(desk: Desk) -> None:
    content = Payload(body="héllo".encode(), meta=b'{"a":[1]}')
    desk.store(
        desk.arrival(desk.bob.message(desk.me), payload=content),
        desk.arrival(desk.bob.message(desk.me), body=b"\xff\x00"),
        desk.arrival(desk.bob.message(desk.me), body=None),
    )
    text, data, sealed = (inbox.document(message) for message in desk.inbox())
    assert (text["body"], text["meta"], "body_base64" in text) == ("héllo", {"a": [1]}, False)
    assert (data["body"], data["body_base64"]) == (None, "/wA=")
    assert (sealed["body"], sealed["object_id"], sealed["status"]) == (None, None, "unreadable")
    assert text["epoch"] == hashlib.sha256(b"bob").hexdigest()[:32]


def test_what_nobody_has_acted_on_is_listed_without_reading_what_somebody_has(desk: Desk) -> None:
    filters = {"since": None, "topic": None, "sender": None, "mentions_of": None, "parked": 0}
    statement = "EXPLAIN QUERY PLAN " + inbox._SQL["page_of_unapplied"]
    steps = [step[-1] for step in desk.look(lambda tx: tx.rows(statement, {**filters, "after": 0, "limit": 50}))]
    assert steps[0].startswith("SEARCH inbox USING INDEX inbox_undone"), steps


# retention


def test_old_messages_lose_their_content_and_stay_known(desk: Desk) -> None:
    event = desk.bob.message(desk.me, client_message_id="old")
    other = desk.bob.message(desk.me, b"x", client_message_id="old")
    desk.store(desk.arrival(event), desk.arrival(other))
    sealed = _unreadable(desk, desk.bob.post("news"))
    desk.now += RETENTION_DAYS * DAY
    assert desk.do(lambda tx: inbox.prune(tx, desk.now)) == 0
    desk.now += 1
    desk.store(desk.arrival(desk.bob.message(desk.me, client_message_id="new")))
    assert desk.do(lambda tx: inbox.prune(tx, desk.now, limit=1)) == 1
    assert desk.do(lambda tx: inbox.prune(tx, desk.now)) == 1
    assert [message.body for message in desk.inbox()] == [None, None, b"hello"]
    assert desk.rows("SELECT count(event) FROM inbox_duplicate") == [(0,)]
    assert desk.look(arrivals.unreadable) == []
    assert desk.do(lambda tx: arrivals.reopen(tx, desk.facts, desk.now, [(sealed, Payload(body=b"x"))])) == []
    outcomes = [desk.store(desk.arrival(again))[0].outcome for again in (event, other)]
    third = desk.bob.message(desk.me, b"y", client_message_id="old")
    assert [*outcomes, desk.store(desk.arrival(third))[0].outcome] == [
        Outcome.REPEATED,
        Outcome.REPEATED,
        Outcome.DUPLICATE,
    ]


# any deliveries, compared with sets


@settings(max_examples=40, deadline=None)
@given(
    batches=st.lists(
        st.lists(st.tuples(st.integers(0, 5), st.booleans(), st.booleans()), max_size=4), min_size=1, max_size=5
    )
)
def test_any_deliveries_have_one_effect_per_message(
    tmp_path_factory: pytest.TempPathFactory, batches: list[list[tuple[int, bool, bool]]]
) -> None:
    desk = Desk(Path(tmp_path_factory.mktemp("any")) / "device.db")
    events = [
        (person, person.message(desk.me, body, client_message_id=name))
        for person in (desk.bob, desk.carol)
        for name, body in (("same", b"1"), ("same", b"2"), ("own", b"3"))
    ]
    seen: set[str] = set()
    owners: dict[tuple[str, str], str] = {}
    for batch in batches:
        brought = [(*events[number], readable, replayed) for number, readable, replayed in batch]
        stored = desk.store(
            *(
                desk.arrival(event, person, b"x" if readable else None, replayed=replayed)
                for person, event, readable, replayed in brought
            )
        )
        for (person, event, readable, _), told in zip(brought, stored, strict=True):
            key = (person.member, event.tags[1][1])
            if event.id in seen:
                expected = Outcome.REPEATED
            elif key in owners:
                expected = Outcome.DUPLICATE
            else:
                expected = Outcome.STORED if readable else Outcome.UNREADABLE
                owners[key] = event.id
            seen.add(event.id)
            assert told.outcome is expected
    assert {message.event_id.hex() for message in desk.inbox()} == set(owners.values())
    receipted = [line[0] for _, lines in desk.receipts_owed() for line in lines]
    assert sorted(receipted) == sorted(seen)
    desk.close()
