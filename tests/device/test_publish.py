"""Publishing through the operation log: what was asked for is on disk before it leaves, and settled by the answer."""

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx2 as httpx
import msgspec
import pytest
from structlog.testing import capture_logs

from holdfast.cli.check import inspect
from holdfast.device import outbox, sending
from holdfast.device.device import Device, at_work
from holdfast.device.forks import Fork
from holdfast.device.home import Home
from holdfast.device.operations import Address, Facts
from holdfast.device.publish import MAX_AGE_HOURS, Publisher, PutOff
from holdfast.device.sending import ADMIN, Attempt, Operation
from holdfast.protocol import administration, event, keys
from holdfast.protocol.action import Action, CreateTopic, Grant, GrantTopicKey, Subscribe, Unsubscribe
from holdfast.protocol.anchor import Anchor, sign_anchor
from holdfast.protocol.history import Entry, Kind
from holdfast.protocol.outbox import Status
from holdfast.protocol.reaction import FaultKind
from holdfast.protocol.refusal import REFUSALS, Refusal, Refused, problem
from holdfast.protocol.schedule import HOUR
from holdfast.store import faults, history
from holdfast.wire.client import RelayClient, Yes
from tests.people import secret_of

MESH = "01MESH"
START = 1_800_000_000_000_000
TOPIC = CreateTopic(topic="news")
RELAY = secret_of("relay")
ANCHOR = sign_anchor(RELAY, b"\x0a" * 16, 12, b"\x0b" * 32, bytes(32))

Reply = Callable[[dict[str, str]], httpx.Response]


class Wire:
    """The network to a relay that says what the test wrote down for it; every body that was sent is kept."""

    def __init__(self, *replies: Reply) -> None:
        self.replies = list(replies)
        self.sent: list[bytes] = []

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        self.sent.append(request.content)
        return self.replies.pop(0)(_tags(request.content))


def _tags(raw: bytes) -> dict[str, str]:
    return {tag[0]: tag[1] for tag in json.loads(raw)["tags"]}


def _yes(status: int = 201, **members: Any) -> Reply:
    def reply(tags: dict[str, str]) -> httpx.Response:
        body = {
            "broker_message_id": "01BROKER",
            "client_message_id": tags["client_message_id"],
            "history_id": 12,
            "log_id": "0a" * 16,
            "duplicate": status == 200,
            "skipped": [],
            "anchor": msgspec.to_builtins(ANCHOR),
        }
        return httpx.Response(status, json={**body, **members})

    return reply


def _no(refusal: Refusal, **headers: str) -> Reply:
    status = REFUSALS[refusal].http_status
    return lambda tags: httpx.Response(status, json=problem(refusal, "the detail"), headers=headers)


def _lost(tags: dict[str, str]) -> httpx.Response:
    raise httpx.ReadError("reset by peer")


class Clock:
    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    home = Home(tmp_path / "home")
    yield home
    assert inspect(home.database) == ("device", [])


def _run(home: Home, clock: Clock, wire: Wire, *actions: Action, heals: int = 1) -> list[Yes | Exception]:
    """One command: heal, then ask for each action; what each came to."""

    async def command(device: Device) -> list[Yes | Exception]:
        transport = httpx.MockTransport(wire)
        client = RelayClient("http://relay", device.secret, clock=clock, transport=transport)
        publisher = Publisher(device, client, keys.public_key(RELAY))
        try:
            for _ in range(heals):
                await publisher.heal(MESH)
        except PutOff as error:
            return [error]
        outcomes: list[Yes | Exception] = []
        for action in actions:
            try:
                outcomes.append(await publisher.publish(MESH, action))
            except (Refused, PutOff) as error:
                outcomes.append(error)
        return outcomes

    with at_work(home, create=True, clock=clock) as device:
        return asyncio.run(command(device))


def _log(home: Home) -> tuple[list[tuple[str, int, str | None]], list[Entry]]:
    """Status, attempts and last error of every operation, and the history."""
    with at_work(home) as device:
        rows = device.look(
            lambda tx: tx.rows("SELECT status, attempts, last_error FROM operation_log ORDER BY sequence")
        )
        return rows, device.look(lambda tx: history.read(tx, 0, 1_000))


def _kinds(entries: Sequence[Entry]) -> list[tuple[Kind, str | None]]:
    return [(entry.kind, entry.reason) for entry in entries]


def test_a_yes_makes_it_done_with_the_relays_ids_and_its_signed_anchor(home: Home, clock: Clock) -> None:
    wire = Wire(_yes())
    (yes,) = _run(home, clock, wire, TOPIC)
    assert isinstance(yes, Yes)
    with at_work(home) as device:
        ((status, broker, history_id, delivered_at, kind, ref, sent),) = device.look(
            lambda tx: tx.rows(
                "SELECT status, broker_message_id, history_id, delivered_at, destination_kind, destination_ref, event"
                " FROM operation_log"
            )
        )
        epoch = device.epoch
    assert (status, broker, history_id, delivered_at) == ("done", "01BROKER", 12, START)
    assert (kind, ref, sent) == ("admin", MESH, wire.sent[0])
    enqueued, attempted, relayed = _log(home)[1]
    assert _kinds([enqueued, attempted, relayed]) == [
        (Kind.ENQUEUED, None),
        (Kind.ATTEMPTED, None),
        (Kind.RELAYED, None),
    ]
    assert {entry.epoch for entry in (enqueued, attempted, relayed)} == {epoch}
    assert {
        (entry.mesh, entry.destination_kind, entry.destination_ref) for entry in (enqueued, attempted, relayed)
    } == {(MESH, "admin", MESH)}
    assert relayed.message_id == "01BROKER"
    assert relayed.event_id == bytes.fromhex(event.decode(sent).id)
    assert relayed.detail == b"\x0a" * 16 + (12).to_bytes(8, "big") + b"\x0b" * 32 + bytes.fromhex(ANCHOR.sig)


def test_the_event_is_signed_by_the_member_and_names_the_send(home: Home, clock: Clock) -> None:
    wire = Wire(_yes(), _yes())
    _run(home, clock, wire, TOPIC, Subscribe(topic="news"))
    with at_work(home) as device:
        for sequence, raw in enumerate(wire.sent):
            signed = event.decode(raw)
            event.verify(signed)
            said = administration.from_event(signed)
            assert (signed.pubkey, signed.created_at) == (device.pubkey, START // 1_000_000)
            assert (said.head.mesh, said.head.epoch, said.head.sequence) == (MESH, device.epoch, sequence)


def test_the_counter_follows_the_clock_and_grows_even_when_the_clock_goes_back(home: Home, clock: Clock) -> None:
    counters: list[int] = []
    for step in (0, 0, -HOUR, 5_000_000):
        clock.now = START + step
        wire = Wire(_yes())
        _run(home, clock, wire, Subscribe(topic=f"t{len(counters)}"))
        counters.append(int(_tags(wire.sent[0])["counter"]))
    first = START // 1000
    assert counters == [first, first + 1, first + 2, first + 5000]


def test_a_lost_answer_is_asked_for_again_by_the_next_command_with_the_same_bytes(home: Home, clock: Clock) -> None:
    wire = Wire(_lost, _yes(200, history_available=True, first_seen_at=START), _yes())
    (error,) = _run(home, clock, wire, TOPIC)
    assert isinstance(error, PutOff)
    assert error.says is FaultKind.CONNECTION_LOST
    assert error.kept
    clock.now += 60_000_000
    (done,) = _run(home, clock, wire, Subscribe(topic="news"))
    assert isinstance(done, Yes)
    assert wire.sent[0] == wire.sent[1] != wire.sent[2]
    rows, entries = _log(home)
    assert rows == [("done", 2, None), ("done", 1, None)]
    assert [(k, r) for k, r in _kinds(entries) if k is not Kind.ENQUEUED][:4] == [
        (Kind.ATTEMPTED, None),
        (Kind.ATTEMPTED, "connection_lost"),
        (Kind.ATTEMPTED, None),
        (Kind.RELAYED, None),
    ]


def test_the_same_command_again_after_a_lost_answer_asks_for_nothing_twice(home: Home, clock: Clock) -> None:
    wire = Wire(_lost, _yes(200, history_available=True))
    _run(home, clock, wire, TOPIC)
    (yes,) = _run(home, clock, wire, TOPIC)
    assert isinstance(yes, Yes)
    assert len(wire.sent) == 2
    assert [status for status, *_ in _log(home)[0]] == ["done"]


def test_while_the_relay_does_not_answer_nothing_new_is_taken_on(home: Home, clock: Clock) -> None:
    wire = Wire(_lost, _lost)
    _run(home, clock, wire, TOPIC)
    (error,) = _run(home, clock, wire, Subscribe(topic="news"))
    assert isinstance(error, PutOff)
    assert not error.kept
    assert [status for status, *_ in _log(home)[0]] == ["pending"]


def test_what_is_given_up_while_nobody_asks_is_told_in_the_log(home: Home, clock: Clock) -> None:
    _run(home, clock, Wire(_lost), Subscribe(topic="news"))
    with capture_logs() as logged:
        _run(home, clock, Wire(_no(Refusal.SUBJECT_UNKNOWN)))
    assert [(one["event"], one["sequence"], one["reason"]) for one in logged] == [
        ("administration was given up", 0, "subject_unknown: the detail")
    ]


def test_what_waits_is_offered_in_the_order_in_which_it_was_asked_for(home: Home, clock: Clock) -> None:
    wire = Wire(_lost, _lost, _yes(), _yes())
    _run(home, clock, wire, Subscribe(topic="a"), Subscribe(topic="b"))
    _run(home, clock, wire)
    assert wire.sent[:2] == wire.sent[2:]


@pytest.mark.parametrize("refusal", [Refusal.NOT_PERMITTED, Refusal.NAME_TAKEN, Refusal.IDEMPOTENCY_KEY_REUSED])
def test_a_lasting_no_ends_it_with_its_reason(home: Home, clock: Clock, refusal: Refusal) -> None:
    (error,) = _run(home, clock, Wire(_no(refusal)), TOPIC)
    assert isinstance(error, Refused)
    assert (error.refusal, error.detail) == (refusal, "the detail")
    rows, entries = _log(home)
    assert rows == [("dead", 1, f"{refusal}: the detail")]
    assert (entries[-1].kind, entries[-1].reason) == (Kind.DEAD, refusal.value)
    assert Attempt.decode(entries[-1].detail) == Attempt(1, f"{refusal}: the detail")
    assert _run(home, clock, Wire()) == []  # it is not offered again


def test_a_no_for_now_keeps_it_and_the_wait_that_the_relay_asked_for(home: Home, clock: Clock) -> None:
    (error,) = _run(home, clock, Wire(_no(Refusal.RATE_LIMITED, **{"retry-after": "90"})), TOPIC)
    assert isinstance(error, PutOff)
    assert error.says is Refusal.RATE_LIMITED
    with at_work(home) as device:
        assert device.look(lambda tx: tx.rows("SELECT status, next_attempt_at FROM operation_log")) == [
            ("pending", START + 90_000_000)
        ]


def test_an_answer_about_something_else_is_no_answer(home: Home, clock: Clock) -> None:
    (error,) = _run(home, clock, Wire(_yes(client_message_id="01OTHER")), TOPIC)
    assert isinstance(error, PutOff)
    assert error.says is FaultKind.NOT_UNDERSTOOD
    assert _log(home)[0][0][0] == "pending"


def _anchor(secret: bytes = RELAY, log_id: bytes = b"\x0a" * 16, seq: int = 12) -> Anchor:
    return sign_anchor(secret, log_id, seq, b"\x0b" * 32, bytes(32))


DOUBTFUL: dict[str, tuple[Anchor, str]] = {
    "another relay's signature": (_anchor(secret_of("another relay")), "not signed with the key"),
    "a signature for something else": (msgspec.structs.replace(ANCHOR, chain="0c" * 32), "not signed with the key"),
    "a signature for another log": (_anchor(log_id=b"\x0c" * 16), "another place of its history"),
    "a signature for an earlier position": (_anchor(seq=11), "another place of its history"),
}


@pytest.mark.parametrize("name", DOUBTFUL)
def test_a_yes_that_the_relay_did_not_sign_for_is_no_answer(home: Home, clock: Clock, name: str) -> None:
    anchor, reason = DOUBTFUL[name]
    (error,) = _run(home, clock, Wire(_yes(anchor=msgspec.to_builtins(anchor))), TOPIC)
    assert isinstance(error, PutOff)
    assert error.says is FaultKind.NOT_UNDERSTOOD
    assert reason in error.detail
    rows, entries = _log(home)
    assert rows[0][0] == "pending"
    assert Kind.RELAYED not in {entry.kind for entry in entries}


def test_a_signature_for_a_later_position_of_the_log_will_do(home: Home, clock: Clock) -> None:
    (yes,) = _run(home, clock, Wire(_yes(anchor=msgspec.to_builtins(_anchor(seq=99)))), TOPIC)
    assert isinstance(yes, Yes)


def test_what_a_dead_process_had_sent_is_taken_back_and_counted(home: Home, clock: Clock) -> None:
    async def die(request: httpx.Request) -> httpx.Response:
        raise KeyboardInterrupt

    wire = Wire(_yes())
    with pytest.raises(KeyboardInterrupt), at_work(home, create=True, clock=clock) as device:
        client = RelayClient("http://relay", device.secret, clock=clock, transport=httpx.MockTransport(die))
        asyncio.run(Publisher(device, client, keys.public_key(RELAY)).publish(MESH, TOPIC))
    assert _log(home)[0] == [("inflight", 0, None)]
    _run(home, clock, wire)
    rows, entries = _log(home)
    assert rows == [("done", 2, None)]
    assert (Kind.ATTEMPTED, "restarted") in _kinds(entries)


def test_an_old_request_dies_unsent_because_the_relay_might_not_know_it_any_more(home: Home, clock: Clock) -> None:
    _run(home, clock, Wire(_lost), TOPIC)
    clock.now += MAX_AGE_HOURS * HOUR
    wire = Wire()
    assert _run(home, clock, wire) == []
    rows, entries = _log(home)
    assert (rows[0][0], wire.sent) == ("dead", [])
    assert _kinds(entries)[-1] == (Kind.DEAD, "max_age_passed")


def _lose(home: Home, clock: Clock) -> None:
    """The relay was restored to a time before it took anything."""
    facts = Facts(mesh=MESH, member="01ANN")
    with at_work(home, clock=clock) as device:
        device.do(lambda tx: outbox.roll_back(tx, facts, clock(), [Fork(b"\x0a" * 16, 0)]))


def test_what_a_restored_relay_has_lost_of_old_administration_is_asked_for_anew_in_its_order(
    home: Home, clock: Clock
) -> None:
    """The relay takes no event of that age, and none whose counter is lower than that of one signed now."""
    first = Wire(_yes(), _yes())
    _run(home, clock, first, TOPIC)
    clock.now += MAX_AGE_HOURS * HOUR
    _run(home, clock, first, Subscribe(topic="news"))
    _lose(home, clock)
    again = Wire(_yes(), _yes())
    assert _run(home, clock, again) == []
    events = [event.decode(raw) for raw in again.sent]
    said = [administration.from_event(one) for one in events]
    assert [one.action for one in said] == [TOPIC, Subscribe(topic="news")]
    assert [one.head.sequence for one in said] == [2, 3]
    assert said[0].counter < said[1].counter
    assert {one.created_at for one in events} == {clock.now // 1_000_000}
    assert [row[0] for row in _log(home)[0]] == ["aborted", "aborted", "done", "done"]


def test_old_administration_keeps_its_order_though_the_relay_goes_away_in_the_middle(home: Home, clock: Clock) -> None:
    """The relay may have taken the first one, whose answer was lost, and then takes none with a lower counter."""
    first = Wire(_yes(), _yes())
    _run(home, clock, first, TOPIC)
    clock.now += MAX_AGE_HOURS * HOUR
    _run(home, clock, first, Subscribe(topic="news"))
    _lose(home, clock)
    broken, again = Wire(_lost), Wire(_yes(), _yes())
    (put_off,) = _run(home, clock, broken)
    assert isinstance(put_off, PutOff)
    assert _run(home, clock, again) == []
    assert again.sent[0] == broken.sent[0]
    said = [administration.from_event(event.decode(raw)) for raw in again.sent]
    assert [one.action for one in said] == [TOPIC, Subscribe(topic="news")]
    assert said[0].counter < said[1].counter


def test_a_key_change_that_a_restored_relay_lost_goes_before_what_is_signed_with_the_new_key(
    home: Home, clock: Clock
) -> None:
    """The home knows the change by its id, so it is offered as it was signed; the relay knows the new key only after it."""
    first = Wire(_yes(), _yes())
    change = administration.rotate_member_key(secret_of("new"), MESH, "01ANN", bytes(keys.AUX_BYTES))
    _run(home, clock, first, TOPIC, change)
    clock.now += MAX_AGE_HOURS * HOUR
    _lose(home, clock)
    again = Wire(_yes(), _yes())
    assert _run(home, clock, again) == []
    assert again.sent[0] == first.sent[1]
    assert administration.from_event(event.decode(again.sent[1])).action == TOPIC


def test_what_a_restored_relay_has_lost_of_late_is_offered_as_it_was(home: Home, clock: Clock) -> None:
    first, again = Wire(_yes()), Wire(_yes())
    _run(home, clock, first, TOPIC)
    clock.now += HOUR
    _lose(home, clock)
    _run(home, clock, again)
    assert again.sent == first.sent


def test_what_a_restored_relay_has_lost_waits_no_longer_than_anything_else(home: Home, clock: Clock) -> None:
    _run(home, clock, Wire(_yes()), TOPIC)
    _lose(home, clock)
    clock.now += MAX_AGE_HOURS * HOUR
    assert _run(home, clock, Wire()) == []
    assert _kinds(_log(home)[1])[-1] == (Kind.DEAD, "max_age_passed")


def _grant(epoch: int) -> GrantTopicKey:
    grant = Grant(member="01A", key="ab" * 32, sealed="Ag" + "A" * 130)
    return GrantTopicKey(topic="news", key_epoch=epoch, key_id="ab" * 16, grants=(grant,))


def test_a_grant_that_was_put_off_holds_nobody_up_and_is_replaced_by_the_next_about_its_topic(
    home: Home, clock: Clock
) -> None:
    stale = _no(Refusal.STALE_KEY)
    wire = Wire(stale, stale, _yes(), _yes())
    _run(home, clock, wire, _grant(1))
    clock.now += 1
    outcomes = _run(home, clock, wire, Subscribe(topic="news"), _grant(2))
    assert [type(outcome) for outcome in outcomes] == [Yes, Yes], outcomes
    with at_work(home) as device:
        rows = device.look(
            lambda tx: tx.rows("SELECT status, superseded_by, id, aborted_at FROM operation_log ORDER BY sequence")
        )
        entries = device.look(lambda tx: history.read(tx, 0, 1_000))
    assert [row[0] for row in rows] == ["aborted", "done", "done"]
    assert (rows[0][1], rows[0][3]) == (rows[2][2], START + 1)
    (aborted,) = (entry for entry in entries if entry.kind is Kind.ABORTED)
    assert (aborted.sequence, aborted.detail.decode()) == (0, rows[2][2])
    assert _run(home, clock, Wire()) == []


def test_a_grant_that_was_put_off_twice_by_one_command_is_replaced_once(home: Home, clock: Clock) -> None:
    """A session whose key rotation is open heals to settle the key, and again for the rest."""
    stale = _no(Refusal.STALE_KEY)
    _run(home, clock, Wire(stale), _grant(1))
    outcomes = _run(home, clock, Wire(stale, stale, _yes()), _grant(2), heals=2)
    assert [type(outcome) for outcome in outcomes] == [Yes], outcomes
    assert [row[0] for row in _log(home)[0]] == ["aborted", "done"]


def test_a_stale_key_lets_the_event_be_signed_anew_under_its_id(home: Home, clock: Clock) -> None:
    wire = Wire(_no(Refusal.STALE_KEY), _yes())
    _run(home, clock, wire, TOPIC)
    clock.now += 1_000_000
    _run(home, clock, wire)
    first, second = map(_tags, wire.sent)
    assert int(second["counter"]) == int(first["counter"]) + 1000
    assert second["client_message_id"] == first["client_message_id"]


def test_what_waits_for_another_mesh_is_not_offered_to_this_one(home: Home, clock: Clock) -> None:
    with at_work(home, create=True, clock=clock) as device:
        address = Address(destination_kind=ADMIN, destination_ref="01OTHER", client_message_id="01X")
        device.do(lambda tx: sending.enqueue(tx, START, device.random, b"{}", address))
    assert _run(home, clock, Wire()) == []


def test_a_changed_byte_in_a_signed_event_is_found_before_it_leaves(home: Home, clock: Clock) -> None:
    _run(home, clock, Wire(_lost), TOPIC)
    _replace_in_event(home, "news", "nows")
    wire = Wire()
    with pytest.raises(faults.Corrupt, match="a signed event is not what was written"):
        _run(home, clock, wire)
    assert wire.sent == []
    _replace_in_event(home, "nows", "news")


def _replace_in_event(home: Home, old: str, new: str) -> None:
    statement = "UPDATE operation_log SET event = CAST(replace(CAST(event AS TEXT), :old, :new) AS BLOB)"
    with at_work(home) as device:
        device.do(lambda tx: tx.run(statement, {"old": old, "new": new}))


def test_a_move_applies_only_to_the_status_it_was_decided_on(home: Home, clock: Clock) -> None:
    _run(home, clock, Wire(_lost), TOPIC)
    with at_work(home, clock=clock) as device:

        def waiting(operation: Operation) -> None:
            device.do(lambda tx: sending.claim(tx, START, operation, operation.event or b""))

        (operation,) = device.look(lambda tx: sending.waiting(tx, ADMIN, MESH))
        waiting(operation)
        with pytest.raises(sending.StatusChanged):
            waiting(operation)
        with pytest.raises(ValueError, match="never changes"):
            device.do(lambda tx: sending.claim(tx, START, operation, b"another"))
        assert operation.status is Status.PENDING


def test_a_yes_to_something_that_was_undone_since_is_not_taken_for_an_answer(home: Home, clock: Clock) -> None:
    """Both were put off; when they are healed the later one holds, and asking for the earlier one asks anew."""
    _run(home, clock, Wire(_no(Refusal.CLOCK_AHEAD)), Subscribe(topic="news"))
    _run(home, clock, Wire(_no(Refusal.CLOCK_AHEAD), _no(Refusal.CLOCK_AHEAD)), Unsubscribe(topic="news"))
    wire = Wire(_yes(), _yes(), _yes())
    (yes,) = _run(home, clock, wire, Subscribe(topic="news"))
    assert isinstance(yes, Yes)
    asked = [json.loads(json.loads(sent)["content"])["action"] for sent in wire.sent]
    assert asked == ["subscribe", "unsubscribe", "subscribe"]


def test_what_was_dated_ahead_is_dated_and_counted_anew_when_the_clock_is_right(home: Home, clock: Clock) -> None:
    clock.now += HOUR
    first = Wire(_no(Refusal.CLOCK_AHEAD))
    _run(home, clock, first, TOPIC)
    clock.now -= HOUR
    second = Wire(_yes(), _yes())
    _run(home, clock, second, Subscribe(topic="news"))
    early, anew, later = (json.loads(sent) for sent in (*first.sent, *second.sent))
    assert (early["created_at"] - anew["created_at"], later["created_at"]) == (3600, anew["created_at"])
    counters = [int(_tags(sent)["counter"]) for sent in second.sent]
    assert counters[0] < counters[1]
    assert _tags(first.sent[0])["client_message_id"] == _tags(second.sent[0])["client_message_id"]
