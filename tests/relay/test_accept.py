"""The accept, through the relay without its sockets."""

import asyncio
import hashlib
import itertools
import threading
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest

from holdfast.protocol import keys
from holdfast.protocol.action import (
    Block,
    RevokeMember,
    Unsubscribe,
)
from holdfast.protocol.administration import rotate_member_key
from holdfast.protocol.event import Event
from holdfast.protocol.history import Kind
from holdfast.protocol.refusal import Refusal
from holdfast.protocol.schedule import HOUR
from holdfast.relay import closing
from holdfast.relay.answer import Answer
from holdfast.relay.database import SCHEMA
from holdfast.relay.offer import Offer, read
from holdfast.relay.relay import Relay
from holdfast.relay.settings import Limits, Settings
from holdfast.store.check import check
from holdfast.store.sqlite import SqliteEngine
from tests.disk import Disk
from tests.people import MESH, Person, raw, secret_of
from tests.relay.place import SECRET, Place, Whose, make_topic


def test_a_message_is_accepted_with_everything_that_belongs_to_it(place: Place) -> None:
    place.settle()
    event = place.alice.message(place.bob, mentions=(place.carol.member,), reply_to="earlier")
    (answer,) = place.expect(201, event)
    members = answer.members
    entry = place.entries(Kind.ACCEPTED)[-1]
    assert members["client_message_id"] == entry.client_message_id
    assert (members["history_id"], members["broker_message_id"]) == (entry.seq, entry.message_id)
    assert (members["duplicate"], members["skipped"]) == (False, [])
    assert members["log_id"] == place.relay.head().log_id.hex()
    assert entry.recipients == ((place.bob.member, "queued"),)
    assert (entry.mentions, entry.size) == ((place.carol.member,), len(raw(event)))
    assert (entry.sender, entry.destination_kind, entry.destination_ref) == (place.alice.member, "dm", place.bob.member)
    assert place.rows("SELECT event FROM message WHERE kind = 4201") == [(raw(event),)]
    assert place.rows("SELECT member, state FROM delivery") == [(place.bob.member, "open")]
    assert place.rows("SELECT member FROM mention") == [(place.carol.member,)]
    assert place.rows("SELECT count(*) FROM dedupe WHERE message_id = (SELECT message_id FROM delivery)") == [(1,)]


def test_a_repetition_is_answered_with_what_was_said_first(place: Place) -> None:
    place.settle()
    event = place.alice.message(place.bob)
    (first,) = place.expect(201, event)
    before = place.dump()
    place.now += 5_000_000
    (again,) = place.expect(200, event)
    assert place.dump() == before
    assert again.members["duplicate"] is True
    assert (again.members["history_available"], again.members["first_seen_at"]) == (True, place.now - 5_000_000)
    for name in ("broker_message_id", "client_message_id", "history_id", "skipped", "log_id"):
        assert again.members[name] == first.members[name]


def test_a_repetition_within_one_request_is_one_message(place: Place) -> None:
    place.settle()
    event = place.alice.message(place.bob)
    other = place.alice.message(place.bob, b"other", client_message_id="taken")
    conflicting = place.alice.message(place.bob, b"yet another", client_message_id="taken")
    first, again, third, conflict = place.publish(event, event, other, conflicting)
    assert [answer.http_status for answer in (first, again, third, conflict)] == [201, 200, 201, 409]
    assert again.members["history_id"] == first.members["history_id"]
    assert conflict.members["conflict"] == "request_fingerprint_mismatch"
    assert conflict.members["broker_fingerprint_prefix"] == other.id[:16]
    assert len(place.entries(Kind.ACCEPTED)) == 2


def test_an_id_belongs_to_its_sender_alone(place: Place) -> None:
    place.settle()
    place.expect(201, place.alice.message(place.carol, client_message_id="same"))
    place.expect(201, place.bob.message(place.carol, client_message_id="same"))
    place.refused(Refusal.IDEMPOTENCY_KEY_REUSED, place.alice.message(place.bob, client_message_id="same"))


def test_a_repetition_is_answered_before_anything_can_refuse_it(place: Place) -> None:
    place.settle()
    event = place.alice.message(place.bob)
    place.expect(201, event)
    place.expect(201, *(place.carol.message(place.bob) for _ in range(4)))
    place.refused(Refusal.QUEUE_FULL, place.alice.message(place.bob))
    place.expect(200, event)
    place.expect(201, place.operator.administer(RevokeMember(member=place.bob.member)))
    place.expect(200, event)
    place.expect(201, place.operator.administer(RevokeMember(member=place.alice.member)))
    place.expect(200, event)


def test_a_full_queue_refuses_and_names_the_member(place: Place) -> None:
    place.settle()
    place.expect(201, *(place.alice.message(place.bob) for _ in range(5)))
    answer = place.refused(Refusal.QUEUE_FULL, place.alice.message(place.bob))
    assert answer.members["member"] == place.bob.member
    assert "5 messages wait" in answer.detail


def test_what_has_expired_makes_room_for_what_comes(place: Place) -> None:
    place.settle()
    soon = place.now + 60_000_000
    place.expect(201, *(place.alice.message(place.bob, expires_at=soon) for _ in range(2)))
    place.expect(201, *(place.alice.message(place.bob) for _ in range(3)))
    place.now = soon
    place.expect(201, place.alice.message(place.bob), place.alice.message(place.bob))
    place.refused(Refusal.QUEUE_FULL, place.alice.message(place.bob))
    assert len(place.entries(Kind.EXPIRED)) == 2
    assert place.rows(f"SELECT queue_count FROM member WHERE member = '{place.bob.member}'") == [(5,)]


def test_what_a_full_queue_refuses_costs_the_same_however_much_waits_in_it(tmp_path: Path) -> None:
    """A topic may have many subscribers who never come: no look along their queues finds what has not expired."""

    def steps_of_refusal(cap: int) -> int:
        engine = SqliteEngine(tmp_path / f"{cap}.db")
        limits = Limits(queue_messages_max=cap, messages_burst=1000)
        place = Place(tmp_path, Settings(limits=limits), engine).settle()
        place.expect(201, *(place.alice.message(place.bob) for _ in range(cap)))
        place.refused(Refusal.QUEUE_FULL, place.alice.message(place.bob))
        steps = itertools.count()
        engine._writer.set_progress_handler(lambda: next(steps) < 0, 10)
        place.one(place.alice.message(place.bob))
        asyncio.run(place.relay.close())
        return next(steps)

    assert steps_of_refusal(500) < 1.5 * steps_of_refusal(5)


def test_a_full_queue_looks_for_what_has_expired_again_when_the_next_time_has_come(place: Place) -> None:
    place.settle()
    hours = (1, 2, 3, 4, 5)
    for hour in hours:
        place.expect(201, place.alice.message(place.bob, expires_at=place.now + hour * HOUR))
    for _ in hours:
        place.refused(Refusal.QUEUE_FULL, place.alice.message(place.bob))
        place.now += HOUR
        place.expect(201, place.alice.message(place.bob))
    place.refused(Refusal.QUEUE_FULL, place.alice.message(place.bob))
    assert len(place.entries(Kind.EXPIRED)) == len(hours)


def test_a_receipt_takes_no_more_statements_for_fifty_messages_than_for_one(tmp_path: Path) -> None:
    """On PostgreSQL each is a journey to the server, while all other writers wait."""
    engine = SqliteEngine(tmp_path / "relay.db")
    place = Place(tmp_path, Settings(limits=Limits(messages_burst=1000)), engine).settle()
    events = [place.alice.message(place.bob) for _ in range(51)]
    seqs = [answer.members["history_id"] for answer in place.expect(201, *events)]
    with engine.write() as transaction:
        closing.acknowledge(transaction, place.now, MESH, place.bob.member, dict.fromkeys(seqs, True))

    def statements(receipt: Event) -> int:
        run: list[str] = []
        engine._writer.trace_v2(apsw.SQLITE_TRACE_STMT, lambda event: run.append(event["sql"]))
        place.expect(201, receipt)
        engine._writer.trace_v2(0, None)
        return len(run)

    one = statements(place.bob.receipt(place.alice, events[0].id))
    assert statements(place.bob.receipt(place.alice, *(event.id for event in events[1:]))) <= one
    assert place.rows("SELECT count(*) FROM delivery WHERE receipted_at IS NOT NULL") == [(51,)]
    asyncio.run(place.relay.close())


def test_items_behind_one_that_was_put_off_are_held_back(place: Place) -> None:
    place.settle()
    place.expect(201, *(place.carol.message(place.bob) for _ in range(5)))
    to_bob, again, to_carol = (
        place.alice.message(place.bob),
        place.alice.message(place.bob),
        place.alice.message(place.carol),
    )
    refusals = [answer.refusal for answer in place.publish(to_bob, to_carol, again)]
    assert refusals == [Refusal.QUEUE_FULL, None, Refusal.HELD_BACK]


def test_a_topic_reaches_every_subscriber_with_a_key_but_the_sender(place: Place) -> None:
    place.settle()
    make_topic(place, place.bob, place.alice)
    place.expect(201, place.carol.subscribe("news"))
    place.expect(201, place.alice.post("news"))
    assert place.entries(Kind.ACCEPTED)[-1].recipients == ((place.bob.member, "queued"),)


def test_a_topic_skips_full_subscribers_and_says_so_then_and_later(place: Place) -> None:
    place.settle()
    make_topic(place, place.bob, place.carol)
    place.expect(201, *(place.alice.message(place.bob) for _ in range(5)))
    event = place.alice.post("news")
    (answer,) = place.expect(201, event)
    assert answer.members["skipped"] == [place.bob.member]
    assert place.entries(Kind.ACCEPTED)[-1].recipients == (
        (place.bob.member, "full"),
        (place.carol.member, "queued"),
    )
    (again,) = place.expect(200, event)
    assert again.members["skipped"] == [place.bob.member]


def test_a_block_is_silent_to_the_sender_and_stands_in_the_history(place: Place) -> None:
    place.settle()
    place.expect(201, place.bob.administer(Block(member=place.alice.member)))
    (answer,) = place.expect(201, place.alice.message(place.bob))
    assert answer.members["skipped"] == []
    assert place.entries(Kind.ACCEPTED)[-1].recipients == ((place.bob.member, "blocked"),)
    assert place.rows("SELECT count(*) FROM delivery") == [(0,)]
    place.expect(201, place.carol.message(place.bob))


REFUSED: dict[str, tuple[Refusal, Any]] = {
    "a stranger": (Refusal.NOT_A_MEMBER, lambda p: Person("mallory").message(p.bob)),
    "an unknown mesh": (Refusal.MESH_UNKNOWN, lambda p: Person("mallory", mesh="nowhere").message(p.bob)),
    "an unknown member": (Refusal.DESTINATION_UNKNOWN, lambda p: p.alice.message(Person("nobody"))),
    "an unknown topic": (Refusal.DESTINATION_UNKNOWN, lambda p: p.alice.post("nothing")),
    "a key that is not the recipient's": (
        Refusal.STALE_KEY,
        lambda p: p.alice.message(p.bob, recipient_key=p.carol.key),
    ),
    "an event that has expired": (Refusal.MAX_AGE_PASSED, lambda p: p.alice.message(p.bob, expires_at=1)),
    "an operator who is no member": (Refusal.NOT_A_MEMBER, lambda p: p.operator.message(p.bob)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_message_that_cannot_be_taken_leaves_nothing_and_its_id_free(place: Place, name: str) -> None:
    refusal, make = REFUSED[name]
    place.settle()
    place.refused(refusal, make(place))


def test_an_event_from_the_future_is_put_off_and_an_ancient_one_refused(place: Place) -> None:
    place.settle()
    place.alice.now_s += 16 * 60
    place.refused(Refusal.CLOCK_AHEAD, place.alice.message(place.bob))
    place.alice.now_s -= 366 * 86_400
    place.refused(Refusal.EVENT_TOO_OLD, place.alice.message(place.bob))
    place.alice.now_s += 30 * 86_400
    place.expect(201, place.alice.message(place.bob))


def test_a_forged_or_broken_event_is_refused(place: Place) -> None:
    place.settle()
    event = place.alice.message(place.bob)
    place.refused(Refusal.BAD_SIGNATURE, msgspec.structs.replace(event, sig="0" * 128))
    place.refused(Refusal.BAD_EVENT_ID, msgspec.structs.replace(event, content=event.content[:-4] + "AAA="))
    place.refused(Refusal.KIND_UNSUPPORTED, _plain_event())
    (answer,) = asyncio.run(place.relay.publish([b'{"id": "x"']))
    assert answer.refusal is Refusal.MALFORMED


def _plain_event() -> Event:
    from holdfast.protocol.event import sign_event

    return sign_event(secret_of("alice"), 1_800_000_000, 1, (), "hello nostr", bytes(32))


def test_a_posting_needs_the_topics_current_key(place: Place) -> None:
    place.settle()
    place.expect(201, place.alice.create_topic("news"))
    place.refused(Refusal.WAITING_FOR_KEY, place.alice.post("news"))
    place.expect(201, place.alice.grant("news", 1, [place.alice]), place.alice.advance("news", 0))
    place.expect(201, place.alice.post("news"))
    place.refused(Refusal.MAY_NOT_POST, place.bob.post("news"))
    place.refused(Refusal.STALE_KEY, place.alice.post("news", key_epoch=2))


def test_a_subscriber_whose_key_is_not_granted_yet_is_put_off_with_all_behind_it(place: Place) -> None:
    """As after a restore: its relay has forgotten the grant, and a keeper who is back later grants it again."""
    place.settle()
    make_topic(place, place.carol)
    place.expect(201, place.bob.subscribe("news"))
    post, later = place.bob.post("news"), place.bob.post("news")
    place.refused(Refusal.WAITING_FOR_KEY, post)
    assert [answer.refusal for answer in place.publish(post, later)] == [Refusal.WAITING_FOR_KEY, Refusal.HELD_BACK]
    place.expect(201, place.alice.grant("news", 1, [place.bob]))
    place.expect(201, post, later)
    place.expect(
        201, place.bob.administer(Unsubscribe(topic="news")), place.alice.grant("news", 2, [place.alice, place.carol])
    )
    place.expect(201, place.alice.advance("news", 1))
    place.refused(Refusal.MAY_NOT_POST, place.bob.post("news"))


def test_every_answer_of_a_commit_carries_the_relays_signature_under_it(place: Place) -> None:
    place.settle()
    answers = place.expect(201, place.alice.message(place.bob), place.alice.message(place.carol))
    anchors = [answer.members["anchor"] for answer in answers]
    assert anchors[0] == anchors[1]
    anchor = anchors[0]
    entry = place.entries()[-1]
    assert (anchor["seq"], anchor["chain"]) == (entry.seq, entry.chain.hex())
    signed = b"holdfast anchor 1\x00" + bytes.fromhex(anchor["log_id"]) + entry.seq.to_bytes(8, "big") + entry.chain
    assert keys.verify(Whose.pubkey, hashlib.sha256(signed).digest(), bytes.fromhex(anchor["sig"]))


def test_a_fast_sender_is_put_off_but_its_repetitions_are_free(tmp_path: Path) -> None:
    place = Place(tmp_path / "relay.db", Settings(limits=Limits(messages_burst=4, messages_per_s=1)))
    place.settle()  # alice has published three, bob and carol one each
    place.now += 10_000_000
    events = [place.alice.message(place.bob) for _ in range(6)]
    refusals = [answer.refusal for answer in place.publish(*events)]
    assert refusals == [None] * 4 + [Refusal.RATE_LIMITED, Refusal.HELD_BACK]
    place.expect(200, *events[:4])
    answer = place.refused(Refusal.RATE_LIMITED, events[4])
    assert answer.retry_after_s == 1
    place.expect(201, place.carol.message(place.bob))
    place.now += 2_000_000
    place.expect(201, events[4], events[5])
    asyncio.run(place.relay.close())


def test_a_member_has_one_pace_through_all_its_keys(tmp_path: Path) -> None:
    place = Place(tmp_path / "relay.db", Settings(limits=Limits(messages_burst=6, messages_per_s=0.001))).settle()
    key, taken = place.bob, 0
    for number in range(3):
        new = Person(f"bobs-key-{number}")
        rotation = key.administer(rotate_member_key(new.secret, MESH, place.bob.member, bytes(32)))
        answers = place.publish(*(key.message(place.carol) for _ in range(4)), rotation)
        taken += sum(answer.accepted for answer in answers)
        key = new
    assert taken == 6, "a burst, of which one was a new key"
    place.expect(201, *(place.carol.message(place.alice) for _ in range(6)))
    asyncio.run(place.relay.close())


def test_whoever_has_a_members_old_key_cannot_use_up_its_pace(tmp_path: Path) -> None:
    """The key may have been replaced because it was stolen."""
    place = Place(tmp_path / "relay.db", Settings(limits=Limits(messages_burst=6, messages_per_s=0.001))).settle()
    new = Person("bobs-new-key")
    place.expect(201, place.bob.administer(rotate_member_key(new.secret, MESH, place.bob.member, bytes(32))))
    stolen = place.publish(*(place.bob.message(to) for to in (place.alice, place.carol) * 4))
    assert not any(answer.accepted for answer in stolen)
    place.expect(201, *(new.message(place.carol) for _ in range(5)))
    asyncio.run(place.relay.close())


def test_a_commit_that_fails_is_answered_to_nobody_and_signed_for_nobody() -> None:
    disk = Disk()
    place = Place(Path("relay"), Settings(), SqliteEngine("relay", vfs=disk.boot(), exclusive=True)).settle()
    first = place.alice.message(place.bob)
    (before,) = place.expect(201, first)

    def full(step: int, what: str) -> None:
        if what == "write":
            raise apsw.FullError("no space")

    disk.trouble = full
    lost = place.alice.message(place.bob)
    answer = place.one(lost)
    assert (answer.refusal, answer.http_status) == (Refusal.UNAVAILABLE, 503)
    (again,) = place.expect(200, first)
    assert again.members["anchor"] == before.members["anchor"]
    disk.trouble = lambda step, what: None
    place.expect(201, lost)

    def broken(step: int, what: str) -> None:
        if what == "sync":
            raise apsw.IOError("failed")

    disk.trouble = broken
    assert place.one(place.alice.message(place.bob)).refusal is Refusal.UNAVAILABLE
    disk.trouble = lambda step, what: None
    assert not place.relay.ready, "after a failed sync nobody knows what the disk holds"
    assert place.one(place.alice.message(place.bob)).refusal is Refusal.UNAVAILABLE
    place.engine.close()


def test_a_power_cut_loses_no_answer_that_was_given() -> None:
    for cut in range(1, 60, 3):
        disk = Disk()
        place = Place(Path("relay"), Settings(), SqliteEngine("relay", vfs=disk.boot(), exclusive=True)).settle()
        start = disk.steps

        def trouble(step: int, what: str, disk: Disk = disk, last: int = start + cut) -> None:
            if step == last:
                disk.cut()

        disk.trouble = trouble
        said = {}
        for _ in range(12):
            event = place.alice.message(place.carol)
            answer = place.one(event)
            if disk.off:
                break
            said[raw(event)] = answer.members["broker_message_id"]
        else:
            disk.cut()
        disk.trouble = lambda step, what: None
        engine = SqliteEngine("relay", vfs=disk.boot(), exclusive=True)
        again = Relay(engine, Settings(), Whose, clock=place.clock, random=place.random, inline=True)
        answers = asyncio.run(again.publish(list(said)))
        assert [(a.http_status, a.members["broker_message_id"]) for a in answers] == [(200, i) for i in said.values()]
        assert list(check(engine, SCHEMA)) == []
        engine.close()


def test_in_a_lane_where_something_was_put_off_only_repetitions_are_answered(place: Place) -> None:
    place.settle()
    known, new, elsewhere = (
        place.alice.message(place.bob),
        place.alice.message(place.bob),
        place.alice.message(place.carol),
    )
    place.expect(201, known)
    offer = read(raw(new))
    assert isinstance(offer, Offer)
    held = frozenset({offer.lane})
    answers = asyncio.run(place.relay.publish([raw(known), raw(new), raw(elsewhere)], held=held))
    assert [answer.http_status for answer in answers] == [200, 424, 201]


def test_one_key_has_one_pace_in_whatever_mesh_it_claims(tmp_path: Path) -> None:
    place = Place(tmp_path / "relay.db", Settings(limits=Limits(messages_burst=10, messages_per_s=1)))
    stranger = Person("mallory")
    events = []
    for number in range(15):
        stranger.mesh = f"mesh-{number}"
        events.append(stranger.join(SECRET))
    refusals = [answer.refusal for answer in place.publish(*events)]
    assert refusals[:10] == [Refusal.MESH_UNKNOWN] * 10
    assert refusals[10:] == [Refusal.RATE_LIMITED] * 5


def test_what_an_array_changes_decides_what_follows_in_it(place: Place) -> None:
    """Who was a stranger when the array came may be a member two events later."""
    founding, invitation, joining = place.alice.found_mesh(), place.alice.invite(SECRET), place.bob.join(SECRET)
    answers = place.publish(founding, invitation, joining, place.bob.message(place.alice), local=True)
    assert [answer.http_status for answer in answers] == [201, 201, 201, 201]


def test_more_offers_than_one_look_up_takes_are_all_taken(tmp_path: Path) -> None:
    limits = Limits(queue_messages_max=1_000_000, messages_burst=1_000_000)
    place = Place(tmp_path / "relay.db", Settings(limits=limits)).settle()
    events = [raw(place.alice.message(place.bob)) for _ in range(1_200)]
    answers = asyncio.run(place.relay.publish(events))
    assert {answer.http_status for answer in answers} == {201}
    asyncio.run(place.relay.close())


def test_whoever_leaves_before_the_answer_costs_the_others_nothing(place: Place) -> None:
    place.settle()
    relay = Relay(place.engine, Settings(), Whose, clock=place.clock, random=place.random)
    left, stayed = place.alice.message(place.bob), place.alice.message(place.bob)

    async def scene() -> list[int]:
        leaving = asyncio.create_task(relay.publish([raw(left)]))
        staying = asyncio.create_task(relay.publish([raw(stayed)]))
        await asyncio.sleep(0)  # both have asked
        leaving.cancel()
        answers = [*await staying, *await relay.publish([raw(left)])]
        await relay.off_the_loop(relay._writer.close)
        return [answer.http_status for answer in answers]

    assert asyncio.run(scene()) == [201, 200], "what was begun is finished, once"


def test_what_is_published_does_not_wait_for_those_who_read(place: Place) -> None:
    """Somebody may ask for the feed on many subscriptions at once: the senders' signatures are checked meanwhile."""
    place.settle()
    relay = Relay(place.engine, Settings(), Whose, clock=place.clock, random=place.random)
    go_on = threading.Event()

    async def publish() -> list[Answer]:
        readers = [asyncio.create_task(relay.off_the_loop(go_on.wait)) for _ in range(20)]
        await asyncio.sleep(0)
        try:
            async with asyncio.timeout(30):
                return await relay.publish([raw(place.alice.message(place.bob))])
        finally:
            go_on.set()
            await asyncio.gather(*readers)
            await relay.off_the_loop(relay._writer.close)

    assert [answer.http_status for answer in asyncio.run(publish())] == [201]
