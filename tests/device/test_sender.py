"""The sender: order, turns, answers and their lack, from a real log to a relay that says what the test wants."""

import asyncio
import json
import tracemalloc
from collections.abc import Awaitable, Iterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from holdfast.cli.check import inspect
from holdfast.device import lanes, operations, receipts, sender, sending
from holdfast.device.device import at_work
from holdfast.device.home import Home
from holdfast.device.operations import Address
from holdfast.protocol import envelope, event, payload
from holdfast.protocol.fingerprint import Priority
from holdfast.protocol.history import Kind
from holdfast.protocol.payload import Payload
from holdfast.protocol.receipt import Receipted, ReceiptStatus
from holdfast.protocol.refusal import Refusal
from holdfast.protocol.schedule import HOUR, SECOND
from holdfast.protocol.sealing import conversation_key, open_sealed
from holdfast.protocol.topic_key import sealing_key
from holdfast.store import history
from tests.device.place import LOG_ID, START, WAIT_S, Clock, Place, PlainRelay, no, tags_of, yes
from tests.people import Person, secret_of


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


@pytest.fixture
def relay() -> PlainRelay:
    return PlainRelay()


@pytest.fixture
def place(home: Home, clock: Clock, relay: PlainRelay) -> Iterator[Place]:
    with at_work(home, create=True, clock=clock, threaded=True) as device:
        yield Place(device, relay)
    assert inspect(home.database) == ("device", [])


def _all(place: Place, status: str) -> bool:
    return set(place.rows()) == {status}


def test_what_waits_is_offered_in_the_order_of_sending_and_done(place: Place, relay: PlainRelay) -> None:
    place.fill(["bob"], 250)
    sent = place.rows("client_message_id")
    place.runs(lambda: _all(place, "done"))
    assert relay.offered == sent
    assert [len(batch) for batch in relay.batches] == [100, 100, 50]
    assert place.rows("broker_message_id, history_id, attempts")[:2] == [("01BROKER1", 1, 1), ("01BROKER2", 2, 1)]


def test_a_message_says_what_was_asked_for_and_only_its_recipient_can_read_it(place: Place, relay: PlainRelay) -> None:
    place.send("bob", "before")
    place.send(
        "bob",
        "grüße",
        client_message_id="mine",
        object_id="07" * 32,
        meta={"b": 1, "a": 2},
        reply_to="earlier",
        mentions=("cat", "bob"),
        priority=Priority.NOW,
        expires_at=START + HOUR,
    )
    place.runs(lambda: _all(place, "done"))
    signed = event.decode(json.dumps(relay.batches[0][1]))
    event.verify(signed)
    said = envelope.from_event(signed)
    assert (signed.pubkey, signed.created_at) == (place.device.pubkey, START // SECOND)
    assert (said.head.epoch, said.head.sequence, said.head.client_message_id) == (place.device.epoch, 1, "mine")
    assert (said.destination.kind, said.destination.ref, said.recipient_key) == ("dm", "member-bob", Person("bob").key)
    assert (said.reply_to, said.mentions) == ("earlier", ("member-cat", "member-bob"))
    assert (said.priority, said.expires_at) == ("now", START + HOUR)
    opened = payload.decode(open_sealed(conversation_key(secret_of("bob"), signed.pubkey), signed.content))
    assert opened == Payload(object_id=b"\x07" * 32, meta=b'{"a":2,"b":1}', body="grüße".encode(), previous_sequence=0)


def test_every_move_of_a_row_is_in_the_history_in_the_order_of_its_life(place: Place) -> None:
    place.send("bob")
    place.runs(lambda: _all(place, "done"))
    entries = place.device.look(lambda tx: history.read(tx, 0, 100))
    assert [entry.kind for entry in entries] == [Kind.ENQUEUED, Kind.ATTEMPTED, Kind.RELAYED]
    assert len({entry.event_id for entry in entries[1:]}) == 1
    assert entries[2].message_id == "01BROKER1"


def test_nothing_is_sealed_or_sent_before_the_relay_has_said_how_far_it_knows_us(
    place: Place, relay: PlainRelay
) -> None:
    place.send("bob")

    async def run() -> None:
        running = asyncio.create_task(place.sender.run())
        place.sender.wake()
        await asyncio.sleep(0.1)
        place.sender.end()
        await running

    asyncio.run(run())
    assert relay.batches == []
    assert place.rows("status, event") == [("pending", None)]


def test_a_destination_has_one_batch_in_flight_and_holds_up_no_other(place: Place, relay: PlainRelay) -> None:
    place.fill(["bob"], 150)
    place.send("cat")
    bob_may_go = asyncio.Event()

    async def wait(batch: list[dict[str, str]]) -> None:
        if batch[0]["destination_ref"] == "member-bob":
            await bob_may_go.wait()

    relay.waits = wait

    def send_more() -> None:
        place.send("cat")
        place.sender.wake()

    place.runs(
        lambda: place.rows()[-1] == "done",
        send_more,
        lambda: len(place.rows()) == 152 and place.rows()[-1] == "done",
        lambda: _counted(place) == {"inflight": 100, "pending": 50, "done": 2},
        bob_may_go.set,
        lambda: _all(place, "done"),
    )
    refs = [{tags_of(signed)["destination_ref"] for signed in batch} for batch in relay.batches]
    assert refs == [{"member-bob"}, {"member-cat"}, {"member-cat"}, {"member-bob"}]


def _counted(place: Place) -> dict[str, int]:
    statuses = place.rows()
    return {status: statuses.count(status) for status in set(statuses)}


def test_a_long_backlog_to_some_does_not_starve_a_new_send_to_another(place: Place, relay: PlainRelay) -> None:
    busy = [f"friend{number}" for number in range(10)]
    place.knows("bob", *busy)
    place.fill(busy, 3_000)

    async def hold(batch: list[dict[str, str]]) -> None:
        await asyncio.sleep(0.02)

    relay.waits = hold
    late: list[str] = []

    def send_to_bob() -> None:
        late.append(place.send("bob"))
        place.sender.wake()

    place.runs(
        lambda: len(relay.batches) >= 6, send_to_bob, lambda: late[0] in relay.taken, lambda: _all(place, "done")
    )
    number = next(
        n for n, batch in enumerate(relay.batches) if late[0] in [tags_of(s)["client_message_id"] for s in batch]
    )
    assert number < 20 < len(relay.batches)


def test_urgent_destinations_go_first_and_order_within_one_wins_over_urgency(place: Place, relay: PlainRelay) -> None:
    place.knows("bob", "cat", "dan")
    low = place.send("bob", priority=Priority.LOW)
    plain = [place.send("cat"), place.send("cat")]
    lifted = [place.send("dan", priority=Priority.LOW), place.send("dan", priority=Priority.NOW)]
    place.runs(lambda: _all(place, "done"))
    assert relay.offered == [*lifted, *plain, low]


def test_behind_a_row_that_is_put_off_its_destination_waits_and_no_other(
    place: Place, relay: PlainRelay, clock: Clock
) -> None:
    first, second = place.send("bob"), place.send("bob")
    other = place.send("cat")
    relay.rule = lambda tags: no(Refusal.QUEUE_FULL, retry_after_s=7) if tags["client_message_id"] == first else None

    def settle() -> bool:
        return place.rows() == ["pending", "pending", "done"]

    def make_room() -> None:
        relay.rule = lambda tags: None

    place.runs(
        settle,
        place.after(clock, 7, lambda: place.rows("attempts")[0] >= 2),
        make_room,
        place.after(clock, 30, lambda: _all(place, "done")),
    )
    assert relay.offered[:3] == [first, second, other]
    again = relay.offered[3:-1]
    assert len(again) >= 2
    assert set(again) == {first}  # alone, until there is room
    assert list(relay.taken) == [other, first, second]
    assert place.rows("attempts") == [1 + len(again), 1, 1]


def test_once_there_is_room_all_that_was_held_back_goes_together(place: Place, relay: PlainRelay, clock: Clock) -> None:
    place.fill(["bob"], 60)
    relay.rule = lambda tags: no(Refusal.QUEUE_FULL)

    def make_room() -> None:
        relay.rule = lambda tags: None

    place.runs(
        lambda: place.rows("attempts")[0] == 1,
        make_room,
        place.after(clock, 30, lambda: _all(place, "done")),
    )
    assert [len(batch) for batch in relay.batches] == [60, 1, 59]


def test_a_send_made_while_the_clock_was_ahead_does_not_wait_for_that_time(place: Place, clock: Clock) -> None:
    clock.now += 48 * HOUR
    place.send("bob")
    clock.now -= 48 * HOUR
    place.runs(lambda: _all(place, "done"))


@pytest.mark.parametrize("refusal", [Refusal.QUEUE_FULL, Refusal.UNAVAILABLE], ids=["a lane", "the whole sender"])
def test_a_wait_that_began_while_the_clock_was_ahead_is_over_when_it_is_right_again(
    place: Place, relay: PlainRelay, clock: Clock, refusal: Refusal
) -> None:
    clock.now += 48 * HOUR
    place.send("bob")
    relay.rule = lambda tags: no(refusal)

    def set_right() -> None:
        relay.rule = lambda tags: None
        clock.now -= 48 * HOUR

    # Its count says that the wait has begun: the row is written a moment before, by the writer's thread.
    place.runs(lambda: place.sender.counts["put_off"] == 1, set_right, lambda: _all(place, "done"))


def test_the_wait_that_the_relay_asks_for_is_kept(place: Place, relay: PlainRelay) -> None:
    place.send("bob")
    relay.rule = lambda tags: no(Refusal.QUEUE_FULL, retry_after_s=90)
    place.runs(lambda: place.rows("attempts") == [1])
    assert place.rows("status, next_attempt_at") == [("pending", START + 90 * SECOND)]
    assert place.rows("last_error")[0].startswith("queue_full: ")


def test_a_lasting_no_ends_a_row_and_lets_the_next_go(place: Place, relay: PlainRelay) -> None:
    bad, good = place.send("bob"), place.send("bob")
    relay.rule = lambda tags: no(Refusal.DESTINATION_UNKNOWN) if tags["client_message_id"] == bad else None
    place.runs(lambda: place.rows() == ["dead", "done"])
    assert list(relay.taken) == [good]
    assert place.rows("last_error")[0] == "destination_unknown: the detail"


@pytest.mark.parametrize("refusal", [Refusal.NOT_A_MEMBER, Refusal.MESH_UNKNOWN])
def test_a_relay_that_has_forgotten_this_home_ends_no_row(
    place: Place, relay: PlainRelay, clock: Clock, refusal: Refusal
) -> None:
    names = [place.send("bob"), place.send("bob")]
    relay.rule = lambda tags: no(refusal)

    def remember() -> None:
        assert place.rows("status, last_error") == [("pending", f"not_understood: {refusal}: the detail")] * 2
        relay.rule = lambda tags: None

    done = place.after(clock, 1, lambda: _all(place, "done"))
    place.runs(lambda: place.rows("attempts") == [1, 1], remember, done)
    assert list(relay.taken) == names


def test_a_relay_that_was_restored_is_offered_nothing_before_it_was_met_again(
    place: Place, relay: PlainRelay, clock: Clock
) -> None:
    relay.log_id = bytes(16)

    def send() -> None:
        place.send("bob")

    async def meet() -> None:
        assert place.rows("status, last_error") == [("pending", "other_log: another")]
        assert relay.offered == []
        place.sender.shut()
        await place.sender.open(144, relay.log_id)

    place.runs(
        lambda: place.sender.open(144, LOG_ID),
        send,
        lambda: place.rows("attempts") == [1],
        meet,
        place.after(clock, 1, lambda: _all(place, "done")),
    )


def test_what_the_relay_committed_while_its_answer_was_lost_is_done_by_the_same_bytes(
    place: Place, relay: PlainRelay, clock: Clock
) -> None:
    place.send("bob")
    relay.lose_answers = True

    def find_again() -> None:
        relay.lose_answers = False

    done = place.after(clock, 1, lambda: _all(place, "done"))
    place.runs(lambda: place.rows("attempts") == [1], find_again, done)
    assert relay.bodies[0] == relay.bodies[1]
    assert len(relay.taken) == 1


def test_a_log_that_went_back_offers_what_was_sealed_before_as_it_was_and_seals_the_rest_as_another_sender(
    place: Place, relay: PlainRelay, clock: Clock
) -> None:
    """The relay may have the first one. Sealed anew it would be another message under the same id, and be given up."""
    before = place.device.epoch
    place.send("bob")
    relay.lose_answers = True

    def go_back() -> Awaitable[None]:
        place.send("bob")
        relay.lose_answers = False
        return place.device.take_new_epoch()

    done = place.after(clock, 1, lambda: _all(place, "done"))
    place.runs(lambda: place.rows("attempts") == [1], go_back, done)
    lost, *offered = [(one["id"], tags_of(one)["epoch"]) for batch in relay.batches for one in batch]
    assert offered[0] == lost
    assert [epoch for _, epoch in offered] == [before.hex(), place.device.epoch.hex()]


def test_a_relay_that_is_not_there_costs_one_attempt_and_not_the_whole_outbox(
    place: Place, relay: PlainRelay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "BATCHES_MAX", 1)
    names = [f"friend{number}" for number in range(30)]
    place.knows(*names)
    place.fill(names, 300)
    relay.is_away = True
    place.runs(lambda: 1 in place.rows("attempts"), lambda: asyncio.sleep(1.0))
    assert place.rows("attempts").count(1) == 100


def test_what_got_no_answer_is_due_as_soon_as_the_relay_is_back(place: Place, relay: PlainRelay, clock: Clock) -> None:
    place.send("bob")
    relay.is_away = True
    due_at: list[int] = []

    def come_back() -> None:
        place.sender.shut()
        due_at.extend(place.rows("next_attempt_at"))
        relay.is_away = False

    place.runs(
        lambda: place.sender.counts["put_off"] == 1,
        come_back,
        lambda: place.sender.open(144),
        lambda: _all(place, "done"),
    )
    assert due_at[0] > clock.now


def test_an_answer_that_does_not_come_in_time_is_a_fault(
    place: Place, relay: PlainRelay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "ACK_TIMEOUT_S", 0.05)
    place.send("bob")

    async def never(batch: list[dict[str, str]]) -> None:
        await asyncio.Event().wait()

    relay.waits = never
    place.runs(lambda: place.rows("attempts") == [1])
    assert place.rows("status, last_error") == [("pending", "timeout: no answer within 0.05 s")]


@pytest.mark.parametrize("doubtful", ["another relay's signature", "about another message"])
def test_a_yes_that_the_known_relay_did_not_sign_for_is_no_answer(
    place: Place, relay: PlainRelay, doubtful: str
) -> None:
    place.send("bob")
    if doubtful == "another relay's signature":
        relay.rule = lambda tags: yes(tags["client_message_id"], 1, secret=secret_of("another relay"))
    else:
        relay.rule = lambda tags: yes("another", 1)
    place.runs(lambda: place.rows("attempts") == [1])
    assert place.rows()[0] == "pending"
    assert place.rows("last_error")[0].startswith("not_understood: ")


def test_a_row_that_is_too_old_dies_unsent_and_the_next_goes(place: Place, relay: PlainRelay, clock: Clock) -> None:
    place.send("bob")
    clock.now += 144 * HOUR
    young = place.send("bob")
    place.runs(lambda: place.rows() == ["dead", "done"])
    assert relay.offered == [young]
    assert place.rows("last_error")[0].startswith("max_age_passed: ")


def test_rows_grow_too_old_while_the_relay_is_away_as_well(place: Place, clock: Clock) -> None:
    place.fill(["bob"], 150)
    clock.now += 144 * HOUR
    young = place.send("bob")
    assert asyncio.run(place.sender.age_out()) == 0, "the relay may remember ids for longer; it was not met yet"
    place.sender.max_age_hours = 144  # as it said when it was met
    assert [asyncio.run(place.sender.age_out()) for _ in range(3)] == [100, 50, 0]
    assert _counted(place) == {"dead": 150, "pending": 1}
    assert place.rows("client_message_id, status")[-1] == (young, "pending")


def test_what_expires_before_it_left_is_given_up_with_the_relay_there_or_not(
    place: Place, relay: PlainRelay, clock: Clock
) -> None:
    place.send("bob", expires_at=clock.now + HOUR)
    kept = place.send("bob", expires_at=clock.now + 3 * HOUR)
    clock.now += HOUR
    assert [asyncio.run(place.sender.age_out()) for _ in range(2)] == [1, 0], "the relay is away"
    assert place.rows("status, last_error")[0] == ("dead", f"max_age_passed: it expired at {clock.now}")
    place.send("bob", expires_at=clock.now + HOUR)
    clock.now += HOUR
    place.runs(lambda: place.rows() == ["dead", "done", "dead"])
    assert relay.offered == [kept]


def test_what_may_have_left_before_it_expired_is_the_relays_to_judge(
    place: Place, relay: PlainRelay, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "ACK_TIMEOUT_S", 0.05)
    relay.waits = _never
    place.send("bob", expires_at=clock.now + HOUR)

    async def expire() -> None:
        clock.now += HOUR
        relay.waits = None
        monkeypatch.setattr(sender, "ACK_TIMEOUT_S", WAIT_S)  # it answers now, however slow the machine is
        assert await place.sender.age_out() == 0

    place.runs(
        lambda: place.rows("attempts") == [1],
        expire,
        lambda: place.sender.open(144),
        lambda: place.rows() == ["done"],
    )


async def _never(batch: list[dict[str, str]]) -> None:
    await asyncio.Event().wait()


def test_what_a_dead_process_had_in_flight_is_taken_back_and_offered_again_as_it_was(
    home: Home, clock: Clock, relay: PlainRelay
) -> None:
    with at_work(home, create=True, clock=clock) as device:
        place = Place(device, relay)
        place.send("bob")
        (operation,) = device.look(lambda tx: sending.with_sequences(tx, [0]))
        raw = place.sealer.seal(operation)
        device.do(lambda tx: sending.claim(tx, clock(), operation, raw))
        assert place.rows() == ["inflight"]
        place.runs(lambda: _all(place, "done"))
        assert event.encode(event.decode(json.dumps(relay.batches[0][0]))) == raw
        assert place.rows("attempts") == [2]


def test_a_stale_key_has_the_message_sealed_to_the_new_one_under_its_id(
    place: Place, relay: PlainRelay, clock: Clock
) -> None:
    place.send("bob")
    new = Person("bob's new key")

    def rule(tags: dict[str, str]) -> dict[str, Any] | None:
        return None if tags["recipient_key"] == new.key else no(Refusal.STALE_KEY)

    relay.rule = rule

    def learn() -> None:
        place.knows("bob", keys_of={"bob": new.key})
        place.sender.keys_came()

    done = place.after(clock, 1, lambda: _all(place, "done"))
    place.runs(lambda: place.rows("attempts") == [1], lambda: place.stale == 1, learn, done)
    first, second = (batch[0] for batch in relay.batches)
    assert tags_of(first)["client_message_id"] == tags_of(second)["client_message_id"]
    assert first["id"] != second["id"]
    open_sealed(conversation_key(new.secret, place.device.pubkey), second["content"])


def test_a_post_waits_for_its_topics_key_says_so_and_holds_up_nobody(place: Place, relay: PlainRelay) -> None:
    place.knows("bob", topics=[("news", 2)])
    place.send("@news", "first")
    place.send("@news", "second")
    other = place.send("bob")
    key = b"\x05" * 32

    def grant() -> None:
        place.has_key("news", 2, key)
        place.sender.keys_came()

    place.runs(
        lambda: place.rows()[2] == "done",
        lambda: place.rows("last_error")[0] is not None,
        lambda: None if relay.offered == [other] else False,
        grant,
        lambda: _all(place, "done"),
    )
    assert place.stale >= 1
    post = event.decode(json.dumps(relay.batches[1][0]))
    assert envelope.from_event(post).key_epoch == 2
    assert payload.decode(open_sealed(sealing_key(key, post.pubkey), post.content)).body == b"first"


def test_why_a_row_cannot_be_sealed_is_logged_once(place: Place) -> None:
    place.knows("bob", topics=[("news", 2)])
    place.send("@news")
    with capture_logs() as logged:
        place.runs(lambda: place.stale == 1, place.sender.keys_came, lambda: place.stale == 2)
    assert [(one["event"], one["sequence"], one["refusal"]) for one in logged] == [("not sealed", 0, "waiting_for_key")]


def _owe_receipt(place: Place) -> None:
    line = Receipted("ab" * 32, True, ReceiptStatus.STORED)
    address = Address(destination_kind=receipts.RECEIPT, destination_ref="member-bob", mesh="01MESH")
    device = place.device
    device.do(
        lambda tx: operations.append_next(
            tx, device.clock(), device.random, bytes(32), receipts.encode([line]), address
        )
    )


def test_a_receipt_goes_when_the_relay_knows_of_the_acknowledgement_and_not_before(
    place: Place, relay: PlainRelay
) -> None:
    waited: list[bool] = []

    def owe() -> None:
        _owe_receipt(place)
        place.send("bob")
        place.sender.wake()

    place.runs(
        owe,
        lambda: place.rows()[-1] == "done",
        lambda: waited.append(place.rows()[0] == "pending"),
        lambda: place.sender.allow_receipts(0),
        lambda: _all(place, "done"),
    )
    assert waited == [True]
    assert [signed["kind"] for batch in relay.batches for signed in batch] == [4201, 4202]


def test_a_full_queue_does_not_hold_up_receipts_to_the_same_member(place: Place, relay: PlainRelay) -> None:
    place.send("bob")
    _owe_receipt(place)
    relay.rule = lambda tags: no(Refusal.QUEUE_FULL) if "recipient_key" in tags else None
    relay._answers = lambda events: [  # type: ignore[method-assign]  # a relay that keeps receipts apart, as it must
        relay.rule(tags_of(signed)) or relay._yes(tags_of(signed)["client_message_id"], signed["id"])
        for signed in events
    ]
    place.runs(lambda: place.rows() == ["pending", "done"])


def test_administration_is_left_to_whoever_asks_for_it(place: Place, relay: PlainRelay) -> None:
    address = Address(destination_kind=sending.ADMIN, destination_ref="01MESH", client_message_id="01X")
    place.device.do(lambda tx: sending.enqueue(tx, START, place.device.random, b"{}", address))
    place.send("bob")
    place.runs(lambda: place.rows() == ["pending", "done"])
    assert len(relay.offered) == 1
    place.device.do(lambda tx: tx.run("DELETE FROM history WHERE 0"))


def test_a_long_outbox_is_emptied_in_bounded_memory_and_a_batch_costs_what_it_holds(
    place: Place, relay: PlainRelay, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, body = 2_000, b"x" * 8_000
    place.fill(["bob"], rows, body)
    seen: list[int] = []
    original = lanes.Lanes._rows

    def counted(self: lanes.Lanes, *arguments: Any) -> Any:
        found = original(self, *arguments)
        seen.append(len(found))
        return found

    monkeypatch.setattr(lanes.Lanes, "_rows", counted)
    relay.bodies = relay.batches = _Forgetful()
    tracemalloc.start()
    try:
        place.runs(lambda: len(relay.taken) == rows)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < rows * len(body) / 2
    assert sum(seen) <= 4 * rows


class _Forgetful(list[Any]):
    def append(self, item: Any) -> None:
        """Keep nothing."""
