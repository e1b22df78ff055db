"""Sweeps and readers: what goes when its time is over, and what holds it back."""

import asyncio
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import apsw
import pytest

from holdfast.protocol.anchor import Anchor, is_signed
from holdfast.protocol.history import Kind
from holdfast.protocol.refusal import Refusal, Refused
from holdfast.protocol.schedule import DAY, HOUR, SECOND, DedupeMode
from holdfast.relay import closing, consumers, queue
from holdfast.relay.database import SCHEMA
from holdfast.relay.relay import _refusal_returned
from holdfast.relay.settings import Limits, Retention, Settings
from holdfast.relay.sweep import SWEEPS
from holdfast.store import history
from holdfast.store.check import check
from holdfast.store.sqlite import SqliteEngine
from tests.people import MESH
from tests.relay.place import Place, Whose, make_topic, restarted


def swept(place: Place) -> dict[str, int]:
    """What one round of sweeps took."""
    return {name: gone.total() for name, gone in asyncio.run(place.relay.sweep()).items()}


def test_sweeps_forget_ids_prune_messages_and_say_so(place: Place) -> None:
    place.settle()
    event = place.alice.message(place.bob)
    place.expect(201, event)
    assert swept(place) == dict.fromkeys(SWEEPS, 0)
    place.now += 8 * DAY
    gone = swept(place)
    assert (gone["expired_deliveries"], gone["pruned_messages"]) == (1, 0)
    place.now += 22 * DAY
    gone = swept(place)
    assert gone["pruned_messages"] == 5, "what founded the mesh; the message closed later"
    place.now += 8 * DAY
    gone = swept(place)
    assert gone["pruned_messages"] == 1
    (again,) = place.expect(200, event)
    assert again.members["history_available"] is False
    place.now += 400 * DAY
    gone = swept(place)
    assert gone["forgotten_ids"] == 6
    place.refused(Refusal.EVENT_TOO_OLD, event)
    kinds = [entry.kind for entry in place.entries(Kind.EXPIRED, Kind.PRUNED, Kind.DEDUPE_EXPIRED)]
    assert kinds == [Kind.EXPIRED] + [Kind.PRUNED] * 6 + [Kind.DEDUPE_EXPIRED] * 6


def test_each_message_of_a_queue_expires_at_its_own_time_whatever_stands_before_it(place: Place) -> None:
    place.settle()
    hours = [20, 5, 10, 5]
    for hour in hours:
        place.expect(201, place.alice.message(place.bob, expires_at=place.now + hour * HOUR))
    gone = []
    for _ in range(24):
        place.now += HOUR
        gone.append(swept(place)["expired_deliveries"])
    assert gone == [hours.count(hour) for hour in range(1, 25)]


def test_what_comes_into_a_queue_that_was_looked_into_expires_in_time(place: Place) -> None:
    place.settle()
    place.expect(201, place.alice.message(place.bob))
    assert swept(place)["expired_deliveries"] == 0
    place.expect(201, place.alice.message(place.bob, expires_at=place.now + HOUR))
    place.now += HOUR
    assert swept(place)["expired_deliveries"] == 1
    place.now += 7 * DAY
    assert swept(place)["expired_deliveries"] == 1


def test_a_step_closes_no_more_than_it_may_and_the_next_goes_on(tmp_path: Path) -> None:
    place = Place(tmp_path / "relay.db", Settings(retention=Retention(sweep_rows_max=2))).settle()
    for to in (place.bob, place.bob, place.bob, place.carol, place.carol):
        place.expect(201, place.alice.message(to))
    place.now += 8 * DAY
    steps: list[int] = []
    while not steps or steps[-1]:
        with place.engine.write() as transaction:
            steps.append(closing.expire(transaction, place.now, 2).total())
    assert steps in ([2, 2, 1, 0], [2, 1, 2, 0])
    assert (
        place.rows("SELECT member, queue_count, expires_from FROM member WHERE expires_from > 0 OR queue_count > 0")
        == []
    )
    assert list(check(place.engine, SCHEMA)) == []
    asyncio.run(place.relay.close())


def test_a_round_closes_what_has_expired_however_many_queues_it_looks_into_in_vain(tmp_path: Path) -> None:
    """A queue is looked into once its oldest message could have expired, though all of it was acknowledged long ago."""
    place = Place(tmp_path / "relay.db", Settings(retention=Retention(sweep_rows_max=1))).settle()
    for to in (place.bob, place.carol):
        place.expect(201, place.alice.message(to, expires_at=place.now + HOUR))
    place.now += HOUR
    assert swept(place)["expired_deliveries"] == 2
    assert swept(place)["expired_deliveries"] == 0
    asyncio.run(place.relay.close())


def test_a_sweep_takes_no_more_statements_for_many_rows_than_for_few(tmp_path: Path) -> None:
    """On PostgreSQL each is a journey to the server, while all other writers wait."""
    engine = SqliteEngine(tmp_path / "relay.db")
    place = Place(tmp_path, Settings(limits=Limits(messages_burst=1000)), engine).settle()

    def statements(count: int) -> int:
        place.alice.now_s = place.now // SECOND
        place.expect(201, *(place.alice.message(place.bob, mentions=(place.bob.member,)) for _ in range(count)))
        run: list[str] = []
        for days, name in ((8, "expired_deliveries"), (30, "pruned_messages"), (400, "forgotten_ids")):
            place.now += days * DAY
            engine._writer.trace_v2(apsw.SQLITE_TRACE_STMT, lambda event: run.append(event["sql"]))
            assert swept(place)[name] >= count
            engine._writer.trace_v2(0, None)
        return len(run)

    few = statements(1)
    assert statements(32) <= few
    asyncio.run(place.relay.close())


def test_a_relay_that_never_forgets_ids_takes_ancient_events(tmp_path: Path) -> None:
    settings = Settings(retention=Retention(dedupe_mode=DedupeMode.PERMANENT))
    place = Place(tmp_path / "relay.db", settings).settle()
    place.alice.now_s -= 1000 * 86_400
    event = place.alice.message(place.bob)
    place.expect(201, event)
    place.now += 5000 * DAY
    assert swept(place)["forgotten_ids"] == 0
    place.expect(200, event)
    asyncio.run(place.relay.close())


def test_a_consumer_holds_back_pruning_until_it_stays_away_too_long(tmp_path: Path) -> None:
    settings = Settings(retention=Retention(message_retention_days=1, history_retention_days=1, queue_ttl_days=1))
    place = Place(tmp_path / "relay.db", settings).settle()
    log_id = place.relay.head().log_id
    assert asyncio.run(place.relay.move_consumer("lake", log_id, 2))["seq"] == 2
    place.now += 3 * DAY
    gone = swept(place)
    assert (gone["pruned_messages"], gone["pruned_entries"]) == (2, 2)
    assert place.relay.head().anchor_seq == 2
    pruned = next(entry for entry in place.entries(Kind.PRUNED) if entry.detail)
    anchor = Anchor(log_id.hex(), 2, place.relay.head().anchor_chain.hex(), pruned.detail[40:].hex())
    assert is_signed(anchor, Whose.pubkey), "what was pruned leaves the relay's signature under its end"
    asyncio.run(place.relay.move_consumer("lake", log_id, 2))  # it stands still, and is waited for no longer for it
    place.now += 6 * DAY
    gone = swept(place)
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
        asyncio.run(place.relay.consumer("lake"))
    tries: Sequence[tuple[bytes, int]] = [(log_id, 3), (log_id, 2), (log_id, 7), (bytes(16), 4), (log_id, 5)]
    assert [move(*one) for one in tries] == [
        None,
        Refusal.CHECKPOINT_BACKWARDS,
        Refusal.CURSOR_AHEAD,
        Refusal.OTHER_LOG,
        None,
    ]
    assert asyncio.run(place.relay.consumer("lake"))["seq"] == 5


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
    assert swept(place)["forgotten_ids"] == 6
    restarted(place, Settings(retention=later))
    place.refused(Refusal.EVENT_TOO_OLD, event)
    place.alice.now_s += 8 * 86_400
    place.expect(201, place.alice.message(place.bob))


def test_ids_are_kept_as_long_as_was_promised_and_as_is_set_now(tmp_path: Path) -> None:
    week = Settings(retention=Retention(dedupe_retention_days=7, queue_ttl_days=1))
    place = Place(tmp_path / "relay.db", week).settle()
    event = place.alice.message(place.bob)
    place.expect(201, event)
    restarted(place, Settings(retention=Retention(dedupe_mode=DedupeMode.PERMANENT)))
    place.now += 30 * DAY
    assert swept(place)["forgotten_ids"] == 0
    place.expect(200, event)
    restarted(place, Settings(retention=Retention(dedupe_retention_days=60)))
    assert swept(place)["forgotten_ids"] == 0
    place.expect(200, event)


def test_what_somebody_waits_for_is_not_pruned_however_old(tmp_path: Path) -> None:
    settings = Settings(retention=Retention(message_retention_days=1, queue_ttl_days=30))
    place = Place(tmp_path / "relay.db", settings).settle()
    place.expect(201, place.alice.message(place.bob))
    place.now += 10 * DAY
    assert swept(place)["pruned_messages"] == 5
    assert place.rows("SELECT kind FROM message") == [(4201,)]
    place.now += 21 * DAY
    gone = swept(place)
    assert (gone["expired_deliveries"], gone["pruned_messages"]) == (1, 0)
    place.now += DAY
    assert swept(place)["pruned_messages"] == 1


def test_a_message_acknowledged_late_is_kept_for_its_receipt(tmp_path: Path) -> None:
    """Its retention is over before anybody has it: a receipt that met no message would be refused, and the sender never hear."""
    settings = Settings(retention=Retention(message_retention_days=1, queue_ttl_days=30))
    place = Place(tmp_path / "relay.db", settings).settle()
    message = place.alice.message(place.bob)
    (answer,) = place.expect(201, message)
    place.now += 10 * DAY
    with place.engine.write() as transaction:
        closing.acknowledge(transaction, place.now, MESH, place.bob.member, {answer.members["history_id"]: True})
    place.now += DAY // 2
    assert swept(place)["pruned_messages"] == 5, "what founded the mesh"
    place.expect(201, place.bob.receipt(place.alice, message.id))
    place.now += DAY // 2
    assert swept(place)["pruned_messages"] == 1
    asyncio.run(place.relay.close())


def test_a_pruned_history_breaks_no_rule_for_what_is_kept_longer(tmp_path: Path) -> None:
    retention = Retention(dedupe_retention_days=7, message_retention_days=400, history_retention_days=7)
    place = Place(tmp_path / "relay.db", Settings(retention=retention)).settle()
    place.expect(201, place.alice.message(place.bob), place.alice.message(place.carol))
    for _ in range(3):
        place.now += 8 * DAY
        swept(place)
    assert place.relay.head().anchor_seq > 7
    assert place.rows("SELECT count(*) FROM message") == [(7,)]
    assert list(check(place.engine, SCHEMA)) == []


def test_old_topic_keys_are_dropped_when_nothing_sealed_with_them_can_wait_any_more(place: Place) -> None:
    place.settle()
    make_topic(place, place.bob)
    place.expect(201, place.alice.grant("news", 2, [place.alice, place.bob]), place.alice.advance("news", 1))
    place.now += 7 * DAY
    assert swept(place)["dropped_grants"] == 0
    place.now += 2 * DAY
    assert swept(place)["dropped_grants"] == 2
    assert [grant["key_epoch"] for grant in asyncio.run(place.relay.grants(MESH, "news", place.bob.key))["grants"]] == [
        2
    ]
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
    assert swept(place)["pruned_messages"] == 5


def test_a_refused_checkpoint_does_not_make_others_wait(place: Place) -> None:
    """It wrote nothing, so what shares its batch is not run again."""
    place.settle()
    log_id = place.relay.head().log_id
    with place.engine.write() as transaction:
        for seq, refusal in ((99, Refusal.CURSOR_AHEAD), (-1, Refusal.RANGE_INVALID)):
            move = partial(consumers.move, now=place.now, name="lake", log_id=log_id, seq=seq)
            moved = _refusal_returned(move, transaction)
            assert isinstance(moved, Refused)
            assert moved.refusal is refusal


def test_a_restoration_is_told_to_devices_though_its_entry_was_pruned(tmp_path: Path) -> None:
    """A device that was away meanwhile would never offer again what the restored relay has lost."""
    settings = Settings(retention=Retention(history_retention_days=1))
    place = Place(tmp_path / "relay.db", settings).settle()
    old = place.relay.head()
    for log_id in (b"n" * 16, b"o" * 16):
        with place.engine.write() as transaction:
            history.fork(transaction, place.now, log_id)
    place = restarted(place, settings)

    def forks() -> list[tuple[bytes, int]]:
        with place.engine.read() as transaction:
            told = queue.standing(transaction, place.now, MESH, place.bob.key, None).forks
        return [(fork.old_log_id, fork.fork_seq) for fork in told]

    assert forks() == [(old.log_id, old.seq), (b"n" * 16, old.seq + 1)]
    place.now += 2 * DAY
    assert swept(place)["pruned_entries"] > old.seq
    assert place.entries(Kind.RESTORED) == []
    assert forks() == [(old.log_id, old.seq), (b"n" * 16, old.seq + 1)]
    assert list(check(place.engine, SCHEMA)) == []
    asyncio.run(place.relay.close())
