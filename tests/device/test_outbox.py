"""The outbox in an operator's hands: looking, requeueing, and what the relay says when nobody waits for it."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from holdfast.device import operations, outbox, recover, requeue, scheduled
from holdfast.device.forks import Fork
from holdfast.device.ipc_documents import Patch
from holdfast.device.operations import Address
from holdfast.device.outbox import Committed, Inspection, Item, RolledBack
from holdfast.device.requeue import Doubt, Requeued
from holdfast.protocol.fingerprint import DestinationKind, Request, fingerprint
from holdfast.protocol.history import Kind
from holdfast.protocol.outbox import REQUEUES, RelayWord, Signal, Status
from holdfast.protocol.reaction import Confirmation, FaultKind
from holdfast.protocol.refusal import Refusal, Refused
from holdfast.protocol.schedule import DAY
from holdfast.store.engine import Transaction
from tests.device.desk import LOG, NEW_LOG, START, Desk
from tests.people import Person

THIRD_LOG = b"\x0c" * 16
FOUND = Committed(broker_message_id="broker-late", history_id=77, log_id=LOG)


def _requeue(desk: Desk, item: Item, **more: Any) -> Requeued | Refused:
    return desk.do(lambda tx: requeue.requeue(tx, desk.facts, desk.now, desk.random, item.id, **more))


def _requeued(desk: Desk, item: Item, **more: Any) -> Item:
    done = _requeue(desk, item, **more)
    assert isinstance(done, Requeued)
    return desk.item(done.id)


def _log(desk: Desk) -> list[tuple[Any, ...]]:
    return desk.rows("SELECT * FROM operation_log ORDER BY sequence")


def _fingerprint(desk: Desk, item: Item) -> bytes:
    ((found,),) = desk.rows(f"SELECT request_fingerprint FROM operation_log WHERE sequence = {item.sequence}")
    return bytes(found)


def _tried(desk: Desk, item: Item) -> Item:
    """A row whose answer was lost."""
    return desk.settle(desk.claim(item), FaultKind.TIMEOUT, "no answer")


def _inspect(desk: Desk, item: Item) -> Inspection:
    found = desk.look(lambda tx: outbox.inspect(tx, item.client_message_id))
    assert found is not None
    return found


def _doubt(desk: Desk, item: Item) -> Doubt | None:
    return desk.look(lambda tx: requeue.doubt(tx, item.id))


# looking


def test_pages_filter_by_status_and_destination(desk: Desk) -> None:
    pending, done, dead, topic = (desk.sent(to) for to in ("bob", "bob", "carol", "@news"))
    desk.relay(done)
    desk.refuse(dead)

    def found(**filters: Any) -> list[int]:
        return [item.sequence for item in desk.look(lambda tx: outbox.page(tx, **filters))]

    assert found() == [0, 1, 2, 3]
    assert found(statuses=[Status.PENDING, Status.INFLIGHT]) == [pending.sequence, topic.sequence]
    assert found(statuses=[Status.DEAD]) == [dead.sequence]
    assert found(destination=("dm", "member-bob")) == [pending.sequence, done.sequence]
    assert found(destination=("topic", "news"), statuses=[Status.DONE]) == []
    assert found(after=1, limit=1) == [2]
    assert desk.look(outbox.count) == {
        Status.PENDING: 2,
        Status.INFLIGHT: 0,
        Status.DONE: 1,
        Status.DEAD: 1,
        Status.ABORTED: 0,
    }


def test_counting_does_not_read_the_log(desk: Desk) -> None:
    plan = desk.rows("EXPLAIN QUERY PLAN " + outbox._SQL["count_by_status"])
    assert [step[-1] for step in plan] == ["SCAN operation_count"]


def test_what_is_not_done_is_listed_without_reading_what_is(desk: Desk) -> None:
    wanted = {"after": -1, "limit": 50, "destination_kind": None, "destination_ref": None}
    asked = {f"is_{status.value}": 1 for status in Status if status is not Status.DONE}
    statement = "EXPLAIN QUERY PLAN " + outbox._SQL["page_of_undone"]
    steps = [step[-1] for step in desk.look(lambda tx: tx.rows(statement, {**wanted, **asked}))]
    named = [step for step in steps if "operation_log" in step]
    assert all("operation_log_outbox" in step or "operation_log_failed" in step or "rowid=?" in step for step in named)


def test_operations_are_counted_wherever_they_move(desk: Desk) -> None:
    def counted() -> list[int]:
        return [desk.look(outbox.count)[status] for status in Status]

    item = desk.sent()
    assert counted() == [1, 0, 0, 0, 0]
    claimed = desk.claim(item)
    assert counted() == [0, 1, 0, 0, 0]
    desk.settle(claimed, Confirmation.CREATED, history_id=7)
    assert counted() == [0, 0, 1, 0, 0]
    desk.do(lambda tx: outbox.roll_back(tx, desk.facts, desk.now, [Fork(LOG, 1)]))
    assert counted() == [1, 0, 0, 0, 0]
    _requeued(desk, desk.refuse(desk.item(item.id)), force=True)
    assert counted() == [1, 0, 0, 0, 1]
    with pytest.raises(RuntimeError):
        desk.do(_write_and_fail(desk))
    assert counted() == [1, 0, 0, 0, 1]


def _write_and_fail(desk: Desk) -> Callable[[Transaction], None]:
    def act(tx: Transaction) -> None:
        operations.append_next(tx, desk.now, desk.random, bytes(32), b"{}", Address())
        raise RuntimeError

    return act


def test_an_inspection_shows_the_whole_chain_from_any_of_its_rows(desk: Desk) -> None:
    first = desk.refuse(desk.sent(client_message_id="first"))
    second = desk.refuse(_requeued(desk, first, force=True))
    third = _requeued(desk, second, force=True)
    for item in (first, second, third):
        found = _inspect(desk, item)
        assert found.item.id == item.id
        assert [each.id for each in found.chain] == [first.id, second.id, third.id]
    assert desk.look(lambda tx: outbox.inspect(tx, "nothing")) is None


# requeueing


def test_a_requeue_retires_the_row_and_gives_its_content_to_a_new_one(desk: Desk) -> None:
    before = desk.relay(desk.sent())
    dead = desk.refuse(
        desk.sent(
            client_message_id="old",
            message="text",
            meta={"a": 1},
            object_id="ab" * 32,
            priority="now",
            reply_to="theirs",
            mentions=("carol",),
            expires_at=START + DAY,
        )
    )
    desk.now += 5
    new = _requeued(desk, dead, word=RelayWord.NOT_COMMITTED)
    old = desk.item("old")
    assert (old.status, old.aborted_at, old.aborted_by, old.superseded_by) == (
        Status.ABORTED,
        START + 5,
        "operator",
        new.id,
    )
    assert (new.status, new.attempts, new.enqueued_at, new.event_id) == (Status.PENDING, 0, START + 5, None)
    assert (new.destination_kind, new.destination_ref) == (old.destination_kind, old.destination_ref)
    assert (new.priority, new.reply_to, new.mentions, new.expires_at) == (
        old.priority,
        old.reply_to,
        old.mentions,
        old.expires_at,
    )
    content = desk.content(new)
    assert (content.body, content.meta, content.object_id) == (b"text", b'{"a":1}', b"\xab" * 32)
    assert content.previous_sequence == before.sequence
    assert _fingerprint(desk, new) == _fingerprint(desk, old)
    (entry,) = desk.entries(Kind.ABORTED)
    assert (entry.sequence, entry.detail.decode(), entry.reason) == (old.sequence, new.id, None)
    assert desk.entries(Kind.ENQUEUED)[-1].sequence == new.sequence == 2


def test_the_old_id_is_never_free_and_the_new_one_is_fresh(desk: Desk) -> None:
    dead = desk.refuse(desk.sent(client_message_id="old"))
    new = _requeued(desk, dead, word=RelayWord.NOT_COMMITTED, new_client_message_id="chosen")
    assert new.client_message_id == "chosen"
    assert desk.send(client_message_id="old").body["conflict"] == "outbox_aborted_fingerprint_match"
    assert desk.send(client_message_id="chosen").http_status == 202  # the request is the same


def test_a_new_id_that_looks_like_a_rows_own_makes_no_row_its_own_successor(desk: Desk) -> None:
    dead = desk.refuse(desk.sent())
    done = _requeue(desk, dead, word=RelayWord.NOT_COMMITTED, new_client_message_id=dead.id)
    assert isinstance(done, Requeued)
    assert (done.aborted_id, done.client_message_id) == (dead.id, dead.id)
    assert (done.id != dead.id, done.sequence) == (True, dead.sequence + 1)
    old, new = desk.item(dead.id), desk.item(done.id)
    assert (old.superseded_by, new.status, new.superseded_by) == (new.id, Status.PENDING, None)
    assert _requeue(desk, dead, new_client_message_id=dead.id) == done  # asked again, it is the same


@pytest.mark.parametrize("taken", ["old", "other", "later", "a b"])
def test_a_new_id_that_is_in_use_or_none_is_refused_and_changes_nothing(desk: Desk, taken: str) -> None:
    dead = desk.refuse(desk.sent(client_message_id="old"))
    desk.sent(client_message_id="other")
    desk.send(client_message_id="later", not_before=START + 10)
    before = (_log(desk), desk.entries())
    refused = _requeue(desk, dead, word=RelayWord.NOT_COMMITTED, new_client_message_id=taken)
    assert isinstance(refused, Refused)
    assert refused.refusal is (Refusal.MALFORMED if " " in taken else Refusal.IDEMPOTENCY_KEY_REUSED)
    assert (_log(desk), desk.entries()) == before


def test_a_patch_gives_the_new_row_the_fingerprint_of_what_it_says(desk: Desk) -> None:
    dead = desk.refuse(desk.sent(client_message_id="old", message="wrong", meta={"a": 1}, mentions=("carol",)))
    word = RelayWord.NOT_COMMITTED
    new = _requeued(desk, dead, word=word, patch=Patch(message="right"), new_client_message_id="new")
    assert (desk.content(new).body, desk.content(new).meta) == (b"right", b'{"a":1}')
    asked = Request(
        destination_kind=DestinationKind.DM,
        destination_ref="bob",
        body=b"right",
        meta={"a": 1},
        mentions=("carol",),
    )
    assert _fingerprint(desk, new) == fingerprint(asked) != _fingerprint(desk, desk.item("old"))
    assert desk.send(message="right", meta={"a": 1}, mentions=("carol",), client_message_id="new").http_status == 202
    again = _requeued(desk, new, patch=Patch(meta=None))
    assert (desk.content(again).body, desk.content(again).meta) == (b"right", None)


def test_what_has_expired_goes_on_only_with_another_expiry_or_none(desk: Desk) -> None:
    """With its own it would be given up again at once, though the requeue had been said to be done."""
    dead = desk.refuse(desk.sent(client_message_id="old", expires_at=desk.now + DAY))
    desk.now += 2 * DAY
    before = (_log(desk), desk.entries())
    for patch in (None, Patch(message="right"), Patch(expires_at=desk.now)):
        refused = _requeue(desk, dead, force=True, patch=patch)
        assert isinstance(refused, Refused)
        assert (refused.refusal, "has passed" in refused.detail) == (Refusal.MALFORMED, True)
    assert (_log(desk), desk.entries()) == before
    new = _requeued(desk, dead, force=True, patch=Patch(expires_at=desk.now + DAY), new_client_message_id="new")
    assert (new.expires_at, desk.content(new).body) == (desk.now + DAY, b"hello")
    assert desk.send(expires_at=desk.now + DAY, client_message_id="new").http_status == 202, (
        "as if it had been asked so"
    )
    again = _requeued(
        desk, desk.refuse(new), force=True, patch=Patch(expires_at=None), new_client_message_id="for-ever"
    )
    assert again.expires_at is None
    assert desk.send(client_message_id="for-ever").http_status == 202


def test_a_patch_that_is_too_large_is_refused_and_changes_nothing(desk: Desk) -> None:
    item = desk.sent()
    before = (_log(desk), desk.entries())
    refused = _requeue(desk, item, patch=Patch(message="x" * 50_000))
    assert isinstance(refused, Refused)
    assert refused.refusal is Refusal.TOO_LARGE
    assert (_log(desk), desk.entries()) == before


@pytest.mark.parametrize("kind", ["receipt", "admin", None])
@pytest.mark.parametrize("force", [False, True])
def test_what_is_no_message_is_never_requeued(desk: Desk, kind: str | None, force: bool) -> None:
    if kind == "receipt":
        desk.store(desk.arrival(desk.bob.message(desk.me)))
    else:
        ref = None if kind is None else desk.facts.mesh
        address = Address(destination_kind=kind, destination_ref=ref, mesh=desk.facts.mesh)
        desk.do(lambda tx: operations.append_next(tx, desk.now, desk.random, bytes(32), b"{}", address))
    ((name,),) = desk.rows("SELECT id FROM operation_log")
    before = (_log(desk), desk.entries())
    refused = _requeue(desk, desk.item(name), force=force)
    assert isinstance(refused, Refused)
    assert refused.refusal is Refusal.REQUEUE_OF_OTHER
    assert (_log(desk), desk.entries()) == before
    desk.do(lambda tx: tx.run("UPDATE operation_log SET attempts = 1"))
    assert _doubt(desk, desk.item(name)) is None, "so the relay is not asked, either"
    desk.do(lambda tx: tx.run("UPDATE operation_log SET attempts = 0"))


def test_an_unknown_row_is_not_found(desk: Desk) -> None:
    refused = desk.do(lambda tx: requeue.requeue(tx, desk.facts, desk.now, desk.random, "nothing"))
    assert isinstance(refused, Refused)
    assert refused.refusal is Refusal.NOT_FOUND


# a requeue whose answer was lost


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"force": True},
        {"new_client_message_id": "chosen"},
        {"patch": Patch(message="right")},
        {"patch": Patch(meta={"b": 2}), "new_client_message_id": "chosen"},
    ],
)
def test_the_same_requeue_again_gives_the_same_answer_and_no_second_copy(desk: Desk, how: dict[str, Any]) -> None:
    dead = desk.refuse(desk.sent(client_message_id="old", message="wrong", meta={"a": 1}))
    first = _requeue(desk, dead, word=RelayWord.NOT_COMMITTED, **how)
    assert isinstance(first, requeue.Requeued)
    before = (_log(desk), desk.entries())
    for word in (RelayWord.NOT_COMMITTED, RelayWord.UNREACHABLE, None):
        assert _requeue(desk, dead, word=word, **how) == first
    assert desk.do(lambda tx: requeue.requeue(tx, desk.facts, desk.now, desk.random, "old", **how)) == first
    assert (_log(desk), desk.entries()) == before


def test_what_became_of_the_successor_does_not_change_the_answer(desk: Desk) -> None:
    dead = desk.refuse(desk.sent())
    first = _requeue(desk, dead, force=True)
    assert isinstance(first, requeue.Requeued)
    desk.refuse(desk.item(first.id))
    second = _requeue(desk, desk.item(first.id), force=True)
    assert isinstance(second, requeue.Requeued)
    assert second.id != first.id
    desk.relay(desk.item(second.id))
    assert _requeue(desk, dead, force=True) == first
    assert _requeue(desk, desk.item(first.id)) == second


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"patch": Patch(message="another")},
        {"patch": Patch(meta={"a": 1})},
        {"patch": Patch(message="right"), "new_client_message_id": "another"},
    ],
)
def test_another_requeue_of_what_was_requeued_is_refused(desk: Desk, how: dict[str, Any]) -> None:
    dead = desk.refuse(desk.sent(client_message_id="old", message="wrong"))
    _requeued(desk, dead, force=True, patch=Patch(message="right"), new_client_message_id="chosen")
    before = (_log(desk), desk.entries())
    refused = _requeue(desk, dead, force=True, **how)
    assert isinstance(refused, Refused)
    assert refused.refusal is Refusal.REQUEUE_OF_ABORTED
    assert (_log(desk), desk.entries()) == before


# the relay's word


@pytest.mark.parametrize("status", [Status.INFLIGHT, Status.DONE])
@pytest.mark.parametrize("force", [False, True])
def test_some_rows_are_never_requeued(desk: Desk, status: Status, force: bool) -> None:
    item = desk.in_status(status, desk.sent())
    before = (_log(desk), desk.entries())
    refused = _requeue(desk, item, force=force, word=RelayWord.NOT_COMMITTED)
    assert isinstance(refused, Refused)
    assert refused.refusal is REQUEUES[status, RelayWord.NOT_ASKED].refusal
    assert (_log(desk), desk.entries()) == before


def test_only_what_was_offered_is_in_doubt(desk: Desk) -> None:
    fresh, tried = desk.sent(), _tried(desk, desk.sent())
    dead, done = desk.refuse(desk.sent()), desk.relay(desk.sent())
    assert [_doubt(desk, item) for item in (fresh, tried, dead, done)] == [
        None,
        Doubt(tried.client_message_id, tried.event_id, 1),
        Doubt(dead.client_message_id, dead.event_id, 1),
        None,
    ]


def test_what_a_recovered_log_no_longer_knows_the_beginning_of_is_in_doubt(desk: Desk) -> None:
    """The damaged log may have offered it after the state that could be read, under another epoch."""
    item = desk.sent()
    for statement in ("forget_entries", "begin_behind_them"):
        desk.do(lambda tx, statement=statement: tx.run(recover._SQL[statement]))  # type: ignore[misc]
    desk.do(lambda tx: operations.renew_epoch(tx, desk.now, desk.random))
    assert _doubt(desk, item) == Doubt(item.client_message_id, None, 0, is_older_than_epoch=True)


def test_what_was_scheduled_before_the_log_was_copied_is_in_doubt_though_it_was_released_since(desk: Desk) -> None:
    """The original may have released and sent it, too."""
    desk.send(client_message_id="before", not_before=START + 10)
    desk.do(lambda tx: operations.renew_epoch(tx, desk.now, desk.random))
    desk.send(client_message_id="after", not_before=START + 10)
    desk.now = START + 20
    desk.do(lambda tx: scheduled.release(tx, desk.facts, desk.now, desk.random))
    assert _doubt(desk, desk.item("before")) == Doubt("before", None, 0, is_older_than_epoch=True)
    assert _doubt(desk, desk.item("after")) is None
    refused = _requeue(desk, desk.item("before"))
    assert isinstance(refused, Refused)
    assert refused.refusal is Refusal.REQUEUE_UNCONFIRMED
    _requeued(desk, desk.item("after"))


@pytest.mark.parametrize("make", [_tried, Desk.refuse], ids=["pending", "dead"])
def test_silence_of_the_relay_stops_a_requeue_unless_it_is_forced_and_that_is_written_down(
    desk: Desk, make: Callable[[Desk, Item], Item]
) -> None:
    item = make(desk, desk.sent())
    before = (_log(desk), desk.entries())
    for word in (None, RelayWord.UNREACHABLE):
        refused = _requeue(desk, item, word=word)
        assert isinstance(refused, Refused)
        assert refused.refusal is Refusal.REQUEUE_UNCONFIRMED
    assert (_log(desk), desk.entries()) == before
    _requeued(desk, item, word=RelayWord.UNREACHABLE, force=True)
    assert desk.item(item.id).aborted_by == "operator --force"
    assert desk.entries(Kind.ABORTED)[0].reason == "operator --force"


def test_force_changes_nothing_where_the_relay_has_spoken(desk: Desk) -> None:
    _requeued(desk, _tried(desk, desk.sent()), word=RelayWord.NOT_COMMITTED, force=True)
    assert desk.rows("SELECT aborted_by FROM operation_log WHERE aborted_by IS NOT NULL") == [("operator",)]


def test_what_the_relay_has_becomes_done_instead_of_being_sent_twice(desk: Desk) -> None:
    item = _tried(desk, desk.sent())
    refused = _requeue(desk, item, word=RelayWord.COMMITTED, committed=FOUND, force=True)
    assert isinstance(refused, Refused)
    assert refused.refusal is Refusal.REQUEUE_OF_DONE
    done = desk.item(item.id)
    assert (done.status, done.broker_message_id, done.history_id, done.log_id, done.delivered_at) == (
        Status.DONE,
        "broker-late",
        77,
        LOG,
        START,
    )
    (entry,) = desk.entries(Kind.RELAYED)
    assert (entry.sequence, entry.message_id, entry.event_id) == (item.sequence, "broker-late", item.event_id)
    assert len(_log(desk)) == 1


def test_what_was_given_up_and_the_relay_has_stays_dead_and_keeps_the_relays_ids(desk: Desk) -> None:
    item = desk.refuse(desk.sent())
    for _ in range(2):  # the second time nobody has to ask
        refused = _requeue(desk, item, word=RelayWord.COMMITTED, committed=FOUND)
        assert isinstance(refused, Refused)
        assert refused.refusal is Refusal.REQUEUE_OF_DONE
    dead = desk.item(item.id)
    assert (dead.status, dead.broker_message_id) == (Status.DEAD, "broker-late")
    assert _doubt(desk, item) is None
    assert len(desk.entries(Kind.RELAYED)) == 1


def test_a_word_that_came_too_late_does_not_count(desk: Desk) -> None:
    item = desk.relay(_tried(desk, desk.sent()))
    refused = _requeue(desk, item, word=RelayWord.NOT_COMMITTED)
    assert isinstance(refused, Refused)
    assert refused.refusal is Refusal.REQUEUE_OF_DONE


def test_a_word_from_before_another_attempt_does_not_count(desk: Desk) -> None:
    item = _tried(desk, desk.sent())
    doubt = _doubt(desk, item)
    again = _tried(desk, item)
    refused = _requeue(desk, again, doubt=doubt, word=RelayWord.NOT_COMMITTED)
    assert isinstance(refused, Refused)
    assert refused.refusal is Refusal.REQUEUE_UNCONFIRMED
    _requeued(desk, again, doubt=_doubt(desk, again), word=RelayWord.NOT_COMMITTED)


# what recipients have signed


@pytest.mark.parametrize("word", [RelayWord.NOT_COMMITTED, RelayWord.UNREACHABLE, None])
@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("is_dead", [False, True])
def test_what_its_recipient_has_signed_for_is_not_requeued_though_a_restored_relay_forgot_it(
    desk: Desk, word: RelayWord | None, force: bool, is_dead: bool
) -> None:
    item = _forgotten(desk, "bob", desk.bob)
    if is_dead:
        item = desk.refuse(item)
    before = (_log(desk), desk.entries())
    refused = _requeue(desk, item, word=word, force=force)
    assert isinstance(refused, Refused)
    assert (refused.refusal, "member-bob" in refused.detail) == (Refusal.REQUEUE_OF_DONE, True)
    assert (_log(desk), desk.entries()) == before


def test_a_post_that_some_have_signed_for_is_requeued_by_force_only_and_they_are_named(desk: Desk) -> None:
    item = _forgotten(desk, "@news", desk.bob, desk.carol)
    before = (_log(desk), desk.entries())
    for word in (RelayWord.NOT_COMMITTED, RelayWord.UNREACHABLE):
        refused = _requeue(desk, item, word=word)
        assert isinstance(refused, Refused)
        assert refused.refusal is Refusal.REQUEUE_OF_RECEIPTED
        assert refused.detail.endswith("who has it: 'member-bob', 'member-carol'")
    assert (_log(desk), desk.entries()) == before
    _requeued(desk, item, word=RelayWord.NOT_COMMITTED, force=True)
    assert desk.item(item.id).aborted_by == "operator --force"


@pytest.mark.parametrize("status", ["unreadable", "duplicate"])
def test_what_its_recipient_signed_for_but_has_no_use_of_is_requeued_by_force(desk: Desk, status: str) -> None:
    """It could not open the bytes, or has another message under this id: that proves no arrival."""
    item = _forgotten(desk, "bob", desk.bob, status=status)
    refused = _requeue(desk, item, word=RelayWord.NOT_COMMITTED)
    assert isinstance(refused, Refused)
    assert refused.refusal is Refusal.REQUEUE_OF_RECEIPTED
    assert refused.detail.endswith(f"'member-bob' ({status})")
    _requeued(desk, item, word=RelayWord.NOT_COMMITTED, force=True)
    assert desk.item(item.id).aborted_by == "operator --force"


def test_what_the_relay_has_is_done_even_if_recipients_have_signed_for_it(desk: Desk) -> None:
    item = _forgotten(desk, "@news", desk.bob)
    refused = _requeue(desk, item, word=RelayWord.COMMITTED, committed=FOUND, force=True)
    assert isinstance(refused, Refused)
    assert refused.refusal is Refusal.REQUEUE_OF_DONE
    assert desk.item(item.id).status is Status.DONE


def _forgotten(desk: Desk, to: str, *receivers: Person, status: str = "stored") -> Item:
    """A row that these have signed for, and that waits again because the relay was restored."""
    item = desk.relay(desk.sent(to))
    for person in receivers:
        assert desk.take(desk.receipt(person, (item, status)), person).taken == 1
    assert _roll_back(desk, Fork(LOG, 0)).offered == 1
    return desk.item(item.id)


# a yes that comes late


def _confirm(desk: Desk, item: Item, committed: Committed = FOUND, signal: Signal = Signal.DUPLICATE) -> Status:
    now = desk.item(item.id)
    return desk.do(lambda tx: outbox.keep_yes(tx, desk.facts, desk.now, now, signal, committed))


def test_a_yes_for_a_row_that_was_requeued_meanwhile_is_kept_on_it(desk: Desk) -> None:
    old = _tried(desk, desk.sent())
    new = _requeued(desk, old, force=True)
    assert _confirm(desk, old) is Status.ABORTED
    kept = desk.item(old.id)
    assert (kept.status, kept.broker_message_id, kept.superseded_by, kept.delivered_at) == (
        Status.ABORTED,
        "broker-late",
        new.id,
        None,
    )
    assert desk.item(new.id).status is Status.PENDING
    assert _confirm(desk, old) is Status.ABORTED
    assert [entry.sequence for entry in desk.entries(Kind.RELAYED)] == [old.sequence]


@pytest.mark.parametrize("signal", [Signal.ACCEPTED, Signal.DUPLICATE])
def test_a_yes_for_a_row_that_waits_again_makes_it_done(desk: Desk, signal: Signal) -> None:
    item = _tried(desk, desk.sent())
    committed = Committed(broker_message_id="b", history_id=5, log_id=LOG)
    assert _confirm(desk, item, committed, signal) is Status.DONE
    assert _confirm(desk, item) is Status.DONE
    assert desk.item(item.id).broker_message_id == "b"
    assert len(desk.entries(Kind.RELAYED)) == 1


def test_a_yes_for_a_row_in_flight_ends_its_attempt(desk: Desk) -> None:
    item = desk.claim(desk.sent())
    assert _confirm(desk, item) is Status.DONE
    assert desk.item(item.id).attempts == 1


# crashes


class Crash(Exception):
    pass


class Failing:
    """A transaction whose nth statement finds no database any more."""

    def __init__(self, transaction: Transaction, fails_at: int) -> None:
        self._transaction = transaction
        self._left = itertools.count(fails_at, -1)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._transaction, name)
        if name in ("rows", "run", "insert") and next(self._left) == 0:
            raise Crash
        return found


def test_a_requeue_that_dies_anywhere_has_not_happened(desk: Desk) -> None:
    item = desk.refuse(desk.sent())
    before = (_log(desk), desk.entries())
    for fails_at in itertools.count():

        def attempt(tx: Transaction, fails_at: int = fails_at) -> Requeued | Refused:
            failing: Any = Failing(tx, fails_at)
            word = RelayWord.NOT_COMMITTED
            return requeue.requeue(failing, desk.facts, desk.now, desk.random, item.id, word=word)

        try:
            done = desk.do(attempt)
        except Crash:
            assert (_log(desk), desk.entries()) == before
            continue
        assert isinstance(done, Requeued)
        assert fails_at > 8
        return


# a relay that was restored


def _roll_back(desk: Desk, *forks: Fork, limit: int = 1_000) -> RolledBack:
    return desk.do(lambda tx: outbox.roll_back(tx, desk.facts, desk.now, forks, limit))


def test_what_lies_past_the_fork_is_offered_again_as_it_was_sent(desk: Desk) -> None:
    kept, lost = desk.relay(desk.sent(), history_id=10), desk.relay(desk.sent(), history_id=11)
    desk.now += 9
    assert _roll_back(desk, Fork(LOG, 10)) == RolledBack(1, ())
    assert desk.item(kept.id) == kept
    again = desk.item(lost.id)
    assert (again.status, again.event_id, again.attempts) == (Status.PENDING, lost.event_id, lost.attempts)
    assert (again.broker_message_id, again.history_id, again.log_id, again.delivered_at) == (None,) * 4
    assert again.next_attempt_at == START + 9
    (entry,) = [entry for entry in desk.entries(Kind.ATTEMPTED) if entry.reason]
    assert (entry.reason, entry.sequence, entry.event_id) == ("rolled_back", lost.sequence, lost.event_id)
    assert _roll_back(desk, Fork(LOG, 10)) == RolledBack(0, ())
    relayed = desk.relay(again, log_id=NEW_LOG, history_id=11)
    assert relayed.event_id == lost.event_id
    assert _roll_back(desk, Fork(LOG, 10)) == RolledBack(0, ())
    assert _roll_back(desk, Fork(LOG, 10), Fork(NEW_LOG, 10)) == RolledBack(1, ())


def test_a_later_restoration_may_lose_what_an_earlier_one_kept(desk: Desk) -> None:
    old = desk.relay(desk.sent(), history_id=10)
    assert _roll_back(desk, Fork(LOG, 20)) == RolledBack(0, ())
    assert _roll_back(desk, Fork(LOG, 20), Fork(NEW_LOG, 5), Fork(THIRD_LOG, 50)) == RolledBack(1, ())
    assert desk.item(old.id).status is Status.PENDING


def test_a_relay_restored_twice_from_one_copy_is_offered_what_it_had_in_between(desk: Desk) -> None:
    """It does not know of that log; whoever does not either would believe that it has what it has not."""
    shared, between = desk.relay(desk.sent(), history_id=10), desk.relay(desk.sent(), log_id=NEW_LOG, history_id=12)
    now = desk.relay(desk.sent(), log_id=THIRD_LOG, history_id=12)
    forks = desk.look(lambda tx: outbox.with_abandoned(tx, THIRD_LOG, [Fork(LOG, 10)]))
    assert _roll_back(desk, *forks) == RolledBack(1, ())
    assert [desk.item(item.id).status for item in (shared, between, now)] == [Status.DONE, Status.PENDING, Status.DONE]


def test_only_what_is_done_in_a_log_that_was_lost_is_offered_again(desk: Desk) -> None:
    dead, waiting = desk.refuse(desk.sent()), desk.sent()
    elsewhere = desk.relay(desk.sent(), log_id=NEW_LOG, history_id=99)
    assert _roll_back(desk, Fork(LOG, 0)) == RolledBack(0, ())
    assert [desk.item(item.id) for item in (dead, waiting, elsewhere)] == [dead, waiting, elsewhere]


@pytest.mark.parametrize("refusal", [Refusal.DESTINATION_UNKNOWN, Refusal.MAY_NOT_POST])
def test_a_post_that_the_relay_lost_with_its_topic_waits_until_a_keeper_is_back(desk: Desk, refusal: Refusal) -> None:
    lost, message = desk.relay(desk.sent("@news")), desk.relay(desk.sent())
    fresh = desk.sent("@news")
    assert _roll_back(desk, Fork(LOG, 0)).offered == 2
    for item, expected in ((lost, Status.PENDING), (message, Status.DEAD), (fresh, Status.DEAD)):
        refused = desk.settle(desk.claim(item), refusal, "the detail")
        assert (refused.status, refused.last_error) == (expected, f"{refusal}: the detail")
    again = desk.item(lost.id)
    assert (again.event_id, again.next_attempt_at > desk.now) == (lost.event_id, True)
    assert desk.relay(again, log_id=NEW_LOG).status is Status.DONE


def test_what_was_given_up_is_requeued_again_once_the_relay_has_lost_it(desk: Desk) -> None:
    kept, lost, between = (desk.refuse(desk.sent()) for _ in range(3))
    _confirm(desk, kept, Committed(broker_message_id="a", history_id=10, log_id=LOG))
    _confirm(desk, lost, Committed(broker_message_id="b", history_id=11, log_id=LOG))
    _confirm(desk, between, Committed(broker_message_id="c", history_id=11, log_id=NEW_LOG))
    forks = desk.look(lambda tx: outbox.with_abandoned(tx, THIRD_LOG, [Fork(LOG, 10)]))
    assert _roll_back(desk, *forks) == RolledBack(0, ())
    assert _roll_back(desk, *forks) == RolledBack(0, ())
    assert desk.item(kept.id).broker_message_id == "a"
    for item in (lost, between):
        forgotten = desk.item(item.id)
        assert (forgotten.status, forgotten.attempts) == (Status.DEAD, item.attempts)
        assert (forgotten.broker_message_id, forgotten.history_id, forgotten.log_id) == (None,) * 3
        assert [entry.reason for entry in desk.entries(Kind.DEAD) if entry.sequence == item.sequence] == [
            "may_not_post",
            "rolled_back",
        ]
        refused = _requeue(desk, item)
        assert isinstance(refused, Refused)
        assert refused.refusal is Refusal.REQUEUE_UNCONFIRMED, "nobody has asked the relay since"
        _requeued(desk, item, word=RelayWord.NOT_COMMITTED)
    refused = _requeue(desk, kept, word=RelayWord.NOT_COMMITTED)
    assert isinstance(refused, Refused)
    assert refused.refusal is Refusal.REQUEUE_OF_DONE


def test_much_that_was_lost_is_offered_in_steps(desk: Desk) -> None:
    for number in range(5):
        desk.relay(desk.sent(), log_id=LOG if number % 2 else NEW_LOG, history_id=10 + number)
    forks = (Fork(LOG, 1), Fork(NEW_LOG, 1))
    assert [_roll_back(desk, *forks, limit=2).offered for _ in range(4)] == [2, 2, 1, 0]


def test_what_cannot_be_offered_again_is_named_unless_it_arrived(desk: Desk) -> None:
    gone, arrived = desk.relay(desk.sent("@news")), desk.relay(desk.sent())
    desk.take(desk.receipt(desk.bob, (arrived, "stored")), desk.bob)
    desk.now += 40 * DAY
    assert desk.do(lambda tx: outbox.prune(tx, desk.now)) == 2
    assert _roll_back(desk, Fork(LOG, 0)) == RolledBack(0, (gone.sequence,))


# retention


def test_bytes_go_when_the_one_recipient_has_receipted_them_or_they_are_old(desk: Desk) -> None:
    receipted, unreceipted = desk.relay(desk.sent()), desk.relay(desk.sent())
    topic, waiting, dead = desk.relay(desk.sent("@news")), desk.sent(), desk.refuse(desk.sent())
    desk.take(desk.receipt(desk.bob, (receipted, "stored"), (topic, "stored")), desk.bob)

    def left() -> list[int]:
        rows = desk.rows("SELECT sequence FROM operation_log WHERE blob IS NOT NULL ORDER BY sequence")
        return [sequence for (sequence,) in rows]

    desk.now += 30 * DAY
    assert desk.do(lambda tx: outbox.prune(tx, desk.now)) == 1
    assert left() == [unreceipted.sequence, topic.sequence, waiting.sequence, dead.sequence]
    desk.now += 1
    assert desk.do(lambda tx: outbox.prune(tx, desk.now, limit=1)) == 1
    assert desk.do(lambda tx: outbox.prune(tx, desk.now)) == 1
    assert left() == [waiting.sequence, dead.sequence]
    assert desk.take(desk.receipt(desk.carol, (topic, "stored")), desk.carol).taken == 1  # its name is left


def test_a_duplicate_push_after_a_lost_answer_is_one_confirmation(desk: Desk) -> None:
    item = _tried(desk, desk.sent())
    done = desk.settle(desk.claim(item), Confirmation.DUPLICATE)
    assert (done.status, done.attempts, done.event_id) == (Status.DONE, 2, item.event_id)
    assert len(desk.entries(Kind.RELAYED)) == 1
