"""The accept, through the relay without its sockets."""

import asyncio
import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest

from holdfast.protocol import keys
from holdfast.protocol.action import (
    Action,
    AddMember,
    Block,
    CreateMesh,
    RegisterConsumer,
    RemoveConsumer,
    RenameMember,
    RevokeMember,
    Role,
    SetRole,
    Unsubscribe,
    WithdrawInvite,
)
from holdfast.protocol.administration import from_event, join, rotate_member_key
from holdfast.protocol.anchor import Anchor, is_signed
from holdfast.protocol.event import Event
from holdfast.protocol.history import Entry, Kind
from holdfast.protocol.refusal import Refusal, Refused
from holdfast.protocol.schedule import DAY, DedupeMode
from holdfast.protocol.topic_key import key_id
from holdfast.relay.answer import Answer
from holdfast.relay.database import SCHEMA, prepare
from holdfast.relay.offer import read
from holdfast.relay.relay import Relay, _moved
from holdfast.relay.settings import Limits, Retention, Settings
from holdfast.store import history
from holdfast.store.check import check
from holdfast.store.sqlite import SqliteEngine
from tests.disk import Disk
from tests.people import MESH, Person, public_key, raw, secret_of

SECRET = b"s" * 32


class Whose:
    """The relay's own identity."""

    secret = secret_of("the relay")
    pubkey = keys.public_key(secret)
    operators = (Person("operator").key,)


class Place:
    """A relay, a clock that stands still, and a few people."""

    def __init__(self, path: Path, settings: Settings, engine: SqliteEngine | None = None) -> None:
        self.now = 1_800_000_000 * 1_000_000
        self.engine = engine or SqliteEngine(path)
        self.seed = 0
        prepare(self.engine, lambda: self.now, self.random)
        self.relay = Relay(self.engine, settings, Whose, clock=lambda: self.now, random=self.random, inline=True)
        self.alice, self.bob, self.carol = Person("alice"), Person("bob"), Person("carol")
        self.operator = Person("operator")

    def clock(self) -> int:
        return self.now

    def random(self, count: int) -> bytes:
        self.seed += 1
        return hashlib.sha256(str(self.seed).encode()).digest()[:count]

    def publish(self, *events: Event, local: bool = False) -> list[Answer]:
        return asyncio.run(self.relay.publish([raw(event) for event in events], local=local))

    def one(self, event: Event, *, local: bool = False) -> Answer:
        (answer,) = self.publish(event, local=local)
        return answer

    def settle(self) -> "Place":
        """A mesh with alice as its admin, and bob and carol."""
        self.expect(201, self.alice.found_mesh(), local=True)
        for person in (self.bob, self.carol):
            secret = hashlib.sha256(person.name.encode()).digest()
            self.expect(201, self.alice.invite(secret), person.join(secret))
        return self

    def expect(self, status: int, *events: Event, local: bool = False) -> list[Answer]:
        answers = self.publish(*events, local=local)
        assert [answer.http_status for answer in answers] == [status] * len(events), answers
        return answers

    def refused(self, refusal: Refusal, event: Event, *, local: bool = False) -> Answer:
        before = self.dump()
        answer = self.one(event, local=local)
        assert answer.refusal is refusal, answer
        assert self.dump() == before, "a refusal left something behind"
        return answer

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        with self.engine.read() as transaction:
            return transaction.rows(statement)

    def dump(self) -> dict[str, list[tuple[Any, ...]]]:
        with self.engine.read() as transaction:
            return {table: transaction.rows(f"SELECT * FROM {table}") for table in sorted(transaction.tables())}

    def entries(self, *kinds: Kind) -> list[Entry]:
        return [entry for entry in history.walk(self.engine) if not kinds or entry.kind in kinds]


@pytest.fixture
def settings() -> Settings:
    return Settings(limits=Limits(queue_messages_max=5, messages_burst=1000))


@pytest.fixture
def place(tmp_path: Path, settings: Settings) -> Iterator[Place]:
    made = Place(tmp_path / "relay.db", settings)
    yield made
    assert list(check(made.engine, SCHEMA)) == []
    asyncio.run(made.relay.close())


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


def _topic(place: Place, *subscribers: Person) -> None:
    place.expect(201, place.alice.create_topic("news"))
    for person in subscribers:
        place.expect(201, person.subscribe("news"))
    everybody = {person.name: person for person in (place.alice, *subscribers)}
    place.expect(201, place.alice.grant("news", 1, list(everybody.values())), place.alice.advance("news", 0))


def test_a_topic_reaches_every_subscriber_with_a_key_but_the_sender(place: Place) -> None:
    place.settle()
    _topic(place, place.bob, place.alice)
    place.expect(201, place.carol.subscribe("news"))
    place.expect(201, place.alice.post("news"))
    assert place.entries(Kind.ACCEPTED)[-1].recipients == ((place.bob.member, "queued"),)


def test_a_topic_skips_full_subscribers_and_says_so_then_and_later(place: Place) -> None:
    place.settle()
    _topic(place, place.bob, place.carol)
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


def test_a_key_is_rotated_only_when_every_subscriber_has_the_next_one(place: Place) -> None:
    place.settle()
    _topic(place, place.bob)
    place.expect(201, place.carol.subscribe("news"), place.alice.grant("news", 2, [place.alice, place.bob]))
    place.refused(Refusal.GRANT_MISSING, place.alice.advance("news", 1))
    place.expect(201, place.carol.administer(Unsubscribe(topic="news")), place.alice.advance("news", 1))
    place.refused(Refusal.EPOCH_SUPERSEDED, place.alice.advance("news", 1))
    place.refused(Refusal.EPOCH_SUPERSEDED, place.alice.grant("news", 4, [place.alice]))
    place.refused(Refusal.STALE_KEY, place.alice.post("news", key_epoch=1))
    place.expect(201, place.alice.post("news", key_epoch=2))


def test_two_keepers_cannot_split_a_topics_key(place: Place) -> None:
    """Whoever stages the next key for some, and another keeper another key for the rest: neither becomes current."""
    place.settle()
    _topic(place, place.bob)
    place.expect(201, place.alice.administer(SetRole(member=place.bob.member, role=Role.ADMIN)))
    of_bob = key_id(MESH, "news", 2, b"k" * 32)
    grants = place.bob.grant("news", 2, [place.bob])
    other = msgspec.structs.replace(from_event(grants).action, key_id=of_bob)
    place.expect(201, place.alice.grant("news", 2, [place.alice, place.bob]), place.bob.administer(other))
    place.refused(Refusal.GRANT_MISSING, place.alice.advance("news", 1))
    place.expect(201, place.alice.grant("news", 2, [place.bob]), place.alice.advance("news", 1))
    place.refused(Refusal.EPOCH_SUPERSEDED, place.bob.administer(other))
    place.expect(201, place.alice.post("news", key_epoch=2), place.bob.post("news", key_epoch=2))


def test_an_invitation_admits_one_person_once(place: Place) -> None:
    place.expect(201, place.alice.found_mesh(), local=True)
    place.refused(Refusal.INVITE_INVALID, place.bob.join(SECRET))
    place.expect(201, place.alice.invite(SECRET, role=Role.ADMIN, hours=1))
    joining = place.bob.join(SECRET)
    place.expect(201, joining)
    place.expect(200, joining)
    place.refused(Refusal.INVITE_INVALID, place.carol.join(SECRET))
    place.expect(201, place.alice.invite(b"t" * 32, hours=1))
    place.now += 3_600_000_000
    assert "expired" in place.refused(Refusal.INVITE_INVALID, place.carol.join(b"t" * 32)).detail
    assert [row[3] for row in place.rows("SELECT * FROM member ORDER BY member")] == ["admin", "admin"]


def test_founding_a_mesh_takes_an_operator_or_the_relays_own_machine(place: Place) -> None:
    place.refused(Refusal.NOT_PERMITTED, place.alice.found_mesh())
    founding = place.alice.found_mesh()
    place.expect(201, founding, local=True)
    place.expect(200, founding)
    place.refused(Refusal.NAME_TAKEN, place.bob.found_mesh(), local=True)
    place.operator.mesh = "01OTHER"
    place.expect(201, place.operator.found_mesh())


def test_an_old_administration_event_cannot_be_played_again_under_a_new_id(place: Place) -> None:
    place.settle()
    place.alice.counter -= 1
    place.refused(Refusal.COUNTER_NOT_INCREASING, place.alice.invite(b"u" * 32))


STANDING: dict[str, tuple[Action, set[str]]] = {
    "add a member": (
        AddMember(member="d", name="dave", key=Person("dave").key, role=Role.MEMBER),
        {"alice", "operator"},
    ),
    "revoke somebody": (RevokeMember(member="member-bob"), {"alice", "bob", "operator"}),
    "rename somebody": (RenameMember(member="member-bob", name="robert"), {"alice", "bob", "operator"}),
    "give a role": (SetRole(member="member-bob", role=Role.ADMIN), {"alice", "operator"}),
    "block somebody": (Block(member="member-alice"), {"alice", "bob", "carol"}),
}


@pytest.mark.parametrize("name", STANDING)
@pytest.mark.parametrize("who", ["alice", "bob", "carol", "operator", "mallory"])
def test_who_may_do_what(place: Place, name: str, who: str) -> None:
    action, allowed = STANDING[name]
    place.settle()
    person = getattr(place, who, None) or Person(who)
    if who in allowed:
        place.expect(201, person.administer(action))
    else:
        place.refused(Refusal.NOT_PERMITTED, person.administer(action))


def test_consumers_are_the_operators_matter(place: Place) -> None:
    place.settle()
    place.refused(Refusal.NOT_PERMITTED, place.alice.administer(RemoveConsumer(consumer="lake"), mesh="relay"))
    place.refused(Refusal.SUBJECT_UNKNOWN, place.operator.administer(RemoveConsumer(consumer="lake"), mesh="relay"))
    log_id = place.relay.head().log_id
    action = RegisterConsumer(consumer="lake", log_id=log_id.hex(), seq=1)
    place.expect(201, place.operator.administer(action, mesh="relay"))
    assert place.relay.consumer("lake")["seq"] == 1
    place.expect(201, place.operator.administer(RemoveConsumer(consumer="lake"), mesh="relay"))


def test_the_last_admin_cannot_leave_the_others_alone(place: Place) -> None:
    place.settle()
    leaving = RevokeMember(member=place.alice.member)
    place.refused(Refusal.LAST_ADMIN, place.alice.administer(leaving))
    place.refused(Refusal.LAST_ADMIN, place.alice.administer(SetRole(member=place.alice.member, role=Role.MEMBER)))
    place.expect(201, place.alice.administer(SetRole(member=place.bob.member, role=Role.ADMIN)))
    place.expect(201, place.alice.administer(leaving))


def test_a_key_is_one_members_for_ever(place: Place) -> None:
    place.settle()
    again = AddMember(member="d", name="dave", key=place.bob.key, role=Role.MEMBER)
    place.refused(Refusal.KEY_TAKEN, place.alice.administer(again))
    new = Person("bob's new key")
    rotation = rotate_member_key(new.secret, MESH, place.bob.member, bytes(32))
    forged = msgspec.structs.replace(rotation, member=place.carol.member)
    place.refused(Refusal.COUNTERSIGNATURE_MISSING, place.alice.administer(forged))
    old = place.bob.message(place.carol)
    place.expect(201, old, place.bob.administer(rotation))
    place.refused(Refusal.STALE_KEY, place.bob.message(place.carol))
    place.refused(Refusal.STALE_KEY, place.alice.message(place.bob))
    place.expect(200, old)
    place.refused(Refusal.KEY_TAKEN, place.alice.administer(again))


def test_a_revoked_member_loses_its_queue_its_key_and_its_topics_at_once(place: Place) -> None:
    place.settle()
    _topic(place, place.bob, place.carol)
    sent = place.bob.message(place.carol)
    place.expect(201, place.alice.message(place.bob), place.alice.message(place.bob), sent)
    place.expect(201, place.alice.administer(RevokeMember(member=place.bob.member)))
    dropped = place.entries(Kind.DROPPED)
    assert [entry.recipient for entry in dropped] == [place.bob.member] * 2
    place.refused(Refusal.NOT_A_MEMBER, place.bob.message(place.carol))
    place.refused(Refusal.DESTINATION_UNKNOWN, place.alice.message(place.bob))
    assert place.rows("SELECT member FROM delivery WHERE state = 'open'") == [(place.carol.member,)]
    assert "member-bob" not in {member for (member,) in place.rows("SELECT member FROM subscription")}


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


def test_the_history_tells_administration_with_its_own_words(place: Place) -> None:
    place.settle()
    entry = place.entries(Kind.ADMIN)[0]
    assert json.loads(entry.detail)["action"] == "create_mesh"
    assert (entry.destination_kind, entry.destination_ref) == ("admin", MESH)


def test_sweeps_forget_ids_prune_messages_and_say_so(place: Place) -> None:
    place.settle()
    event = place.alice.message(place.bob)
    place.expect(201, event)
    assert asyncio.run(place.relay.sweep()) == dict.fromkeys(
        ("expired_deliveries", "forgotten_ids", "pruned_messages", "dropped_grants", "pruned_entries"), 0
    )
    place.now += 8 * DAY
    gone = asyncio.run(place.relay.sweep())
    assert (gone["expired_deliveries"], gone["pruned_messages"]) == (1, 0)
    place.now += 23 * DAY
    gone = asyncio.run(place.relay.sweep())
    assert gone["pruned_messages"] == 6
    (again,) = place.expect(200, event)
    assert again.members["history_available"] is False
    place.now += 400 * DAY
    gone = asyncio.run(place.relay.sweep())
    assert gone["forgotten_ids"] == 6
    place.refused(Refusal.EVENT_TOO_OLD, event)
    kinds = [entry.kind for entry in place.entries(Kind.EXPIRED, Kind.PRUNED, Kind.DEDUPE_EXPIRED)]
    assert kinds == [Kind.EXPIRED] + [Kind.PRUNED] * 6 + [Kind.DEDUPE_EXPIRED] * 6


def test_a_relay_that_never_forgets_ids_takes_ancient_events(tmp_path: Path) -> None:
    settings = Settings(retention=Retention(dedupe_mode=DedupeMode.PERMANENT))
    place = Place(tmp_path / "relay.db", settings).settle()
    place.alice.now_s -= 1000 * 86_400
    event = place.alice.message(place.bob)
    place.expect(201, event)
    place.now += 5000 * DAY
    assert asyncio.run(place.relay.sweep())["forgotten_ids"] == 0
    place.expect(200, event)
    asyncio.run(place.relay.close())


def test_a_consumer_holds_back_pruning_until_it_stays_away_too_long(tmp_path: Path) -> None:
    settings = Settings(retention=Retention(message_retention_days=1, history_retention_days=1, queue_ttl_days=1))
    place = Place(tmp_path / "relay.db", settings).settle()
    log_id = place.relay.head().log_id
    assert asyncio.run(place.relay.move_consumer("lake", log_id, 2))["seq"] == 2
    place.now += 3 * DAY
    gone = asyncio.run(place.relay.sweep())
    assert (gone["pruned_messages"], gone["pruned_entries"]) == (2, 2)
    assert place.relay.head().anchor_seq == 2
    pruned = next(entry for entry in place.entries(Kind.PRUNED) if entry.detail)
    anchor = Anchor(log_id.hex(), 2, place.relay.head().anchor_chain.hex(), pruned.detail[40:].hex())
    assert is_signed(anchor, Whose.pubkey), "what was pruned leaves the relay's signature under its end"
    asyncio.run(place.relay.move_consumer("lake", log_id, 2))  # it stands still, and is waited for no longer for it
    place.now += 6 * DAY
    gone = asyncio.run(place.relay.sweep())
    assert gone["pruned_messages"] == 3
    assert place.relay.head().anchor_seq > 2
    asyncio.run(place.relay.close())


def test_a_checkpoint_only_moves_forward_and_within_its_log(place: Place) -> None:
    place.settle()
    log_id = place.relay.head().log_id

    def move(log: bytes, seq: int) -> Refusal | None:
        try:
            asyncio.run(place.relay.move_consumer("lake", log, seq))
        except Refused as refused:
            return refused.refusal
        return None

    assert place.relay.head().seq == 5
    with pytest.raises(Refused, match="no consumer lake"):
        place.relay.consumer("lake")
    tries: Sequence[tuple[bytes, int]] = [(log_id, 3), (log_id, 2), (log_id, 7), (bytes(16), 4), (log_id, 5)]
    assert [move(*one) for one in tries] == [
        None,
        Refusal.CHECKPOINT_BACKWARDS,
        Refusal.CURSOR_AHEAD,
        Refusal.OTHER_LOG,
        None,
    ]
    assert place.relay.consumer("lake")["seq"] == 5


def test_a_mesh_is_shown_to_its_members_and_operators_only(place: Place) -> None:
    place.settle()
    _topic(place, place.bob)
    shown = place.relay.mesh(MESH, place.bob.key)
    assert [(m["name"], m["role"], m["pubkey"]) for m in shown["members"]] == [
        ("alice", "admin", place.alice.key),
        ("bob", "member", place.bob.key),
        ("carol", "member", place.carol.key),
    ]
    assert shown["topics"] == [
        {
            "topic": "news",
            "key_epoch": 1,
            "created_by": place.alice.member,
            "subscribers": [{"member": place.bob.member, "has_key": True}],
            "left": [],
        }
    ]
    assert place.relay.mesh(MESH, place.operator.key) == shown
    place.expect(201, place.bob.administer(Unsubscribe(topic="news")))
    assert place.relay.mesh(MESH, place.bob.key)["topics"][0]["left"] == [place.bob.member]
    for stranger in (Person("mallory").key,):
        with pytest.raises(Refused, match="not_a_member"):
            place.relay.mesh(MESH, stranger)
        with pytest.raises(Refused, match="not_a_member"):
            place.relay.grants(MESH, "news", stranger)
    grants = place.relay.grants(MESH, "news", place.bob.key)
    assert [grant["key_epoch"] for grant in grants["grants"]] == [1]
    assert place.relay.grants(MESH, "news", place.carol.key)["grants"] == []


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


def _restarted(place: Place, settings: Settings) -> Place:
    """The same relay, with other settings."""
    place.relay = Relay(place.engine, settings, Whose, clock=place.clock, random=place.random, inline=True)
    return place


@pytest.mark.parametrize(
    "later",
    [Retention(dedupe_retention_days=365), Retention(dedupe_mode=DedupeMode.PERMANENT)],
    ids=["a longer window", "ids for ever"],
)
def test_an_id_that_was_forgotten_is_not_taken_again_under_other_settings(tmp_path: Path, later: Retention) -> None:
    week = Settings(retention=Retention(dedupe_retention_days=7, queue_ttl_days=1))
    place = Place(tmp_path / "relay.db", week).settle()
    event = place.alice.message(place.bob)
    place.expect(201, event)
    place.now += 8 * DAY
    assert asyncio.run(place.relay.sweep())["forgotten_ids"] == 6
    _restarted(place, Settings(retention=later))
    place.refused(Refusal.EVENT_TOO_OLD, event)
    place.alice.now_s += 8 * 86_400
    place.expect(201, place.alice.message(place.bob))


def test_ids_are_kept_as_long_as_was_promised_and_as_is_set_now(tmp_path: Path) -> None:
    week = Settings(retention=Retention(dedupe_retention_days=7, queue_ttl_days=1))
    place = Place(tmp_path / "relay.db", week).settle()
    event = place.alice.message(place.bob)
    place.expect(201, event)
    _restarted(place, Settings(retention=Retention(dedupe_mode=DedupeMode.PERMANENT)))
    place.now += 30 * DAY
    assert asyncio.run(place.relay.sweep())["forgotten_ids"] == 0
    place.expect(200, event)
    _restarted(place, Settings(retention=Retention(dedupe_retention_days=60)))
    assert asyncio.run(place.relay.sweep())["forgotten_ids"] == 0
    place.expect(200, event)


def test_whoever_loses_the_right_to_invite_cannot_come_back_by_an_earlier_invitation(place: Place) -> None:
    place.settle()
    place.expect(201, place.alice.administer(SetRole(member=place.bob.member, role=Role.ADMIN)))
    place.expect(201, place.alice.administer(SetRole(member=place.carol.member, role=Role.ADMIN)))
    place.expect(201, place.bob.invite(b"b" * 32, role=Role.ADMIN), place.carol.invite(b"c" * 32, role=Role.ADMIN))
    place.expect(201, place.alice.administer(RevokeMember(member=place.bob.member)))
    place.expect(201, place.alice.administer(SetRole(member=place.carol.member, role=Role.MEMBER)))
    for secret in (b"b" * 32, b"c" * 32):
        assert "withdrawn" in place.refused(Refusal.INVITE_INVALID, Person("mallory").join(secret)).detail


def test_a_withdrawn_invitation_is_void_and_a_used_one_stays_used(place: Place) -> None:
    place.settle()
    place.expect(201, place.alice.invite(SECRET))
    withdrawal = WithdrawInvite(key=public_key(SECRET))
    place.expect(201, place.alice.administer(withdrawal))
    place.refused(Refusal.INVITE_INVALID, Person("dave").join(SECRET))
    used = public_key(hashlib.sha256(b"bob").digest())
    before = place.rows(f"SELECT used_at, withdrawn_at FROM invite WHERE key = '{used}'")
    place.expect(201, place.alice.administer(WithdrawInvite(key=used)))
    assert place.rows(f"SELECT used_at, withdrawn_at FROM invite WHERE key = '{used}'") == before
    place.refused(Refusal.INVITE_INVALID, place.alice.administer(WithdrawInvite(key="ab" * 32)))


def test_what_somebody_waits_for_is_not_pruned_however_old(tmp_path: Path) -> None:
    settings = Settings(retention=Retention(message_retention_days=1, queue_ttl_days=30))
    place = Place(tmp_path / "relay.db", settings).settle()
    place.expect(201, place.alice.message(place.bob))
    place.now += 10 * DAY
    assert asyncio.run(place.relay.sweep())["pruned_messages"] == 5
    assert place.rows("SELECT kind FROM message") == [(4201,)]
    place.now += 21 * DAY
    gone = asyncio.run(place.relay.sweep())
    assert (gone["expired_deliveries"], gone["pruned_messages"]) == (1, 1)


def test_a_pruned_history_breaks_no_rule_for_what_is_kept_longer(tmp_path: Path) -> None:
    retention = Retention(dedupe_retention_days=7, message_retention_days=400, history_retention_days=7)
    place = Place(tmp_path / "relay.db", Settings(retention=retention)).settle()
    place.expect(201, place.alice.message(place.bob), place.alice.message(place.carol))
    for _ in range(3):
        place.now += 8 * DAY
        asyncio.run(place.relay.sweep())
    assert place.relay.head().anchor_seq > 7
    assert place.rows("SELECT count(*) FROM message") == [(7,)]
    assert list(check(place.engine, SCHEMA)) == []


def test_an_operator_that_becomes_a_member_is_still_known_for_what_it_sent_before(place: Place) -> None:
    founding = CreateMesh(name="friends", member=place.alice.member, member_name="alice", key=place.alice.key)
    first = place.operator.administer(founding)
    place.expect(201, first)
    joining = AddMember(member="op", name="operator", key=place.operator.key, role=Role.MEMBER)
    place.expect(201, place.operator.administer(joining))
    place.expect(200, first)


def test_a_member_cannot_take_the_name_under_which_a_stranger_is_known(place: Place) -> None:
    place.settle()
    mallory = Person("mallory")
    place.expect(201, place.alice.invite(SECRET))
    action = join(SECRET, MESH, place.operator.key, "mallory", mallory.key, bytes(32))
    place.expect(201, mallory.administer(action, client_message_id="theirs"))
    place.expect(201, place.operator.administer(RevokeMember(member=place.bob.member), client_message_id="theirs"))
    assert place.entries(Kind.ADMIN)[-1].sender == f"key:{place.operator.key}"


def test_old_topic_keys_are_dropped_when_nothing_sealed_with_them_can_wait_any_more(place: Place) -> None:
    place.settle()
    _topic(place, place.bob)
    place.expect(201, place.alice.grant("news", 2, [place.alice, place.bob]), place.alice.advance("news", 1))
    place.now += 7 * DAY
    assert asyncio.run(place.relay.sweep())["dropped_grants"] == 0
    place.now += 2 * DAY
    assert asyncio.run(place.relay.sweep())["dropped_grants"] == 2
    assert [grant["key_epoch"] for grant in place.relay.grants(MESH, "news", place.bob.key)["grants"]] == [2]
    dropped = [entry for entry in place.entries(Kind.PRUNED) if entry.reason == "grant"]
    assert [(entry.destination_ref, entry.recipient) for entry in dropped] == [
        ("news", place.alice.member),
        ("news", place.bob.member),
    ]


def test_a_consumers_registration_is_in_the_history_and_its_moves_are_not(place: Place) -> None:
    place.settle()
    log_id = place.relay.head().log_id
    for seq in (1, 2, 3):
        asyncio.run(place.relay.move_consumer("lake", log_id, seq))
    assert [entry.destination_ref for entry in place.entries() if entry.destination_kind == "consumer"] == ["lake"]


def test_no_consumer_is_waited_for_when_there_is_too_much(tmp_path: Path) -> None:
    retention = Retention(message_retention_days=1, queue_ttl_days=1, history_hold_bytes=70_000)
    place = Place(tmp_path / "relay.db", Settings(retention=retention)).settle()
    asyncio.run(place.relay.move_consumer("lake", place.relay.head().log_id, 0))
    place.now += 2 * DAY
    assert asyncio.run(place.relay.sweep())["pruned_messages"] == 5


def test_in_a_lane_where_something_was_put_off_only_repetitions_are_answered(place: Place) -> None:
    place.settle()
    known, new, elsewhere = (
        place.alice.message(place.bob),
        place.alice.message(place.bob),
        place.alice.message(place.carol),
    )
    place.expect(201, known)
    held = frozenset({read(raw(new)).lane})
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
    assert refusals[:10] == [Refusal.INVITE_INVALID] * 10
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


def test_a_refused_checkpoint_does_not_make_others_wait(place: Place) -> None:
    """It wrote nothing, so what shares its batch is not run again."""
    place.settle()
    log_id = place.relay.head().log_id
    with place.engine.write() as transaction:
        for seq, refusal in ((99, Refusal.CURSOR_AHEAD), (-1, Refusal.RANGE_INVALID)):
            moved = _moved(transaction, place.now, "lake", log_id, seq)
            assert isinstance(moved, Refused)
            assert moved.refusal is refusal
