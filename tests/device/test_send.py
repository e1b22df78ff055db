"""A request to send: what is checked, what its id decides, and what is in the log afterwards."""

import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.device import database, operations, scheduled, send
from holdfast.device.send import Answer, Send, chosen_id
from holdfast.protocol.envelope import MENTIONS_MAX
from holdfast.protocol.fingerprint import DestinationKind, Priority, Request, fingerprint, fingerprint_prefix
from holdfast.protocol.history import Draft, Kind
from holdfast.protocol.idempotency import ANSWERS, Fingerprint
from holdfast.protocol.outbox import Status
from holdfast.protocol.payload import CONTENT_BYTES_MAX
from holdfast.protocol.refusal import Refusal, Refused
from holdfast.protocol.schedule import DAY, SECOND
from holdfast.store import history, migrations
from holdfast.store.sqlite import SqliteEngine
from holdfast.store.writer import Writer
from holdfast.wire.request import read_document
from tests.device.desk import START, Desk


def _log(desk: Desk) -> list[tuple[Any, ...]]:
    return desk.rows("SELECT * FROM operation_log ORDER BY sequence")


def _count(desk: Desk) -> int:
    return len(_log(desk))


# what becomes of a first request


def test_a_first_send_is_pending_and_told_to_the_history(desk: Desk) -> None:
    answer = desk.send(client_message_id="one")
    assert answer == Answer(202, {"client_message_id": "one", "status": "queued"})
    item = desk.item("one")
    assert (item.status, item.destination_kind, item.destination_ref) == (Status.PENDING, "dm", "member-bob")
    (entry,) = desk.entries()
    assert (entry.kind, entry.client_message_id, entry.sequence) == (Kind.ENQUEUED, "one", 0)
    assert (entry.destination_kind, entry.destination_ref, entry.mesh) == ("dm", "member-bob", desk.facts.mesh)


def test_an_id_that_is_not_given_is_minted(desk: Desk) -> None:
    first, second = desk.send(), desk.send()
    assert first.body["client_message_id"] != second.body["client_message_id"]
    assert _count(desk) == 2


def test_the_row_has_what_the_envelope_and_the_payload_need(desk: Desk) -> None:
    item = desk.sent(
        message="héllo",
        object_id="ab" * 32,
        priority="now",
        meta={"z": 1, "a": [2]},
        reply_to="theirs",
        mentions=("carol", "bob"),
        expires_at=START + DAY,
    )
    content = desk.content(item)
    assert (content.body, content.object_id, content.meta) == ("héllo".encode(), b"\xab" * 32, b'{"a":[2],"z":1}')
    assert (item.priority, item.reply_to, item.expires_at) == ("now", "theirs", START + DAY)
    assert item.mentions == ("member-carol", "member-bob")


def test_each_message_names_the_one_before_it_to_the_same_destination(desk: Desk) -> None:
    sent = [desk.sent(to) for to in ("bob", "carol", "bob", "@news", "bob", "@news", "carol")]
    assert [desk.content(item).previous_sequence for item in sent] == [None, None, 0, None, 2, 3, 1]


def test_what_was_given_up_is_no_predecessor(desk: Desk) -> None:
    first, second = desk.sent(), desk.sent()
    desk.refuse(second)
    assert desk.content(desk.sent()).previous_sequence == first.sequence


def test_two_names_of_one_member_are_one_mention(desk: Desk) -> None:
    desk.book.members["bobby"] = "member-bob"
    assert desk.sent(mentions=("bobby", "bob")).mentions == ("member-bob",)


# the look-up table, row by row

MATCH = {"message": "hello"}
MISMATCH = {"message": "something else"}


@pytest.mark.parametrize("status", Status)
@pytest.mark.parametrize("matches", [True, False])
def test_an_id_that_is_used_is_answered_by_the_table_and_changes_nothing(
    desk: Desk, status: Status, matches: bool
) -> None:
    desk.in_status(status, desk.sent(client_message_id="one"))
    before = (_log(desk), desk.entries())
    answer = desk.send(client_message_id="one", **(MATCH if matches else MISMATCH))
    assert (_log(desk), desk.entries()) == before
    item = desk.item("one")
    expected = ANSWERS[status, Fingerprint.MATCHES if matches else Fingerprint.MISMATCHES]
    assert answer.http_status == expected.http_status
    assert answer.body["client_message_id"] == "one"
    assert answer.refusal is (Refusal.IDEMPOTENCY_KEY_REUSED if expected.conflict else None)
    if expected.conflict is None:
        assert answer.body.get("status") == expected.status
    else:
        asked = Request(destination_kind=DestinationKind.DM, destination_ref="bob", body=b"hello")
        assert (
            answer.body["conflict"]
            == expected.conflict
            == f"outbox_{status}_fingerprint_" + ("match" if matches else "mismatch")
        )
        assert answer.body["code"] == "idempotency_key_reused"
        assert answer.body["daemon_fingerprint_prefix"] == fingerprint_prefix(fingerprint(asked))
    if status is Status.DONE:
        assert answer.body["broker_message_id"] == item.broker_message_id is not None
        assert answer.body.get("duplicate") == (True if matches else None)
        assert answer.body.get("history_id") == (item.history_id if matches else None)
    if status is Status.DEAD:
        assert answer.body.get("reason") == ("may_not_post: the detail" if matches else None)


@pytest.mark.parametrize(
    "change",
    [
        {"to": "carol"},
        {"message": "hello!"},
        {"priority": "low"},
        {"meta": {"a": 1}},
        {"reply_to": "x"},
        {"object_id": "cd" * 32},
        {"mentions": ("carol",)},
        {"expires_at": START + DAY},
        {"not_before": START - 1},
    ],
    ids=lambda change: next(iter(change)),
)
def test_every_part_of_a_request_tells_it_apart(desk: Desk, change: dict[str, Any]) -> None:
    desk.send(client_message_id="one")
    assert desk.send(client_message_id="one", **change).body["conflict"] == "outbox_pending_fingerprint_mismatch"
    assert _count(desk) == 1


def test_the_order_of_meta_keys_tells_nothing_apart(desk: Desk) -> None:
    desk.send(client_message_id="one", meta={"a": 1, "b": {"c": 2, "d": 3}})
    assert desk.send(client_message_id="one", meta={"b": {"d": 3, "c": 2}, "a": 1}).http_status == 202
    assert desk.send(client_message_id="two").http_status == desk.send(client_message_id="two", meta={}).http_status
    assert _count(desk) == 2


def test_a_retry_is_answered_though_its_destination_is_gone(desk: Desk) -> None:
    desk.send(client_message_id="one", mentions=("carol",))
    desk.book.members.clear()
    desk.book.asked.clear()
    assert desk.send(client_message_id="one", mentions=("carol",)).http_status == 202
    assert desk.book.asked == []


def test_a_retry_is_answered_though_its_time_has_passed(desk: Desk) -> None:
    first = desk.send(client_message_id="one", expires_at=START + SECOND)
    desk.now += 2 * SECOND
    assert desk.send(client_message_id="one", expires_at=START + SECOND) == first


def test_an_id_of_something_that_no_request_made_matches_no_request(desk: Desk) -> None:
    desk.store(desk.arrival(desk.bob.message(desk.me)))
    ((used,),) = desk.rows("SELECT client_message_id FROM operation_log")
    answer = desk.send(client_message_id=used)
    assert answer.body["conflict"] == "outbox_pending_fingerprint_mismatch"
    assert answer.body["daemon_fingerprint_prefix"] == "0" * 16


# what is refused consumes nothing

REFUSED: dict[str, tuple[dict[str, Any], Refusal, int]] = {
    "an unknown member": ({"to": "nobody"}, Refusal.DESTINATION_UNKNOWN, 404),
    "an unknown topic": ({"to": "@nothing"}, Refusal.DESTINATION_UNKNOWN, 404),
    "an unknown mention": ({"mentions": ("nobody",)}, Refusal.DESTINATION_UNKNOWN, 404),
    "a topic as mention": ({"mentions": ("@news",)}, Refusal.MALFORMED, 400),
    "nobody": ({"to": ""}, Refusal.MALFORMED, 400),
    "a topic without name": ({"to": "@"}, Refusal.MALFORMED, 400),
    "a long name": ({"to": "b" * (send.NAME_CHARACTERS_MAX + 1)}, Refusal.MALFORMED, 400),
    "a body too large": ({"message": "x" * (CONTENT_BYTES_MAX + 1)}, Refusal.TOO_LARGE, 413),
    "body and meta too large": (
        {"message": "x" * (CONTENT_BYTES_MAX - 5), "meta": {"a": 1}},
        Refusal.TOO_LARGE,
        413,
    ),
    "too many mentions": ({"mentions": ("carol",) * (MENTIONS_MAX + 1)}, Refusal.TOO_LARGE, 413),
    "a short object_id": ({"object_id": "ab" * 31}, Refusal.MALFORMED, 400),
    "an object_id that is no hex": ({"object_id": "xy" * 32}, Refusal.MALFORMED, 400),
    "a reserved meta key": ({"meta": {"holdfast.mentions": []}}, Refusal.MALFORMED, 400),
    "meta that no reader holds": ({"meta": {"n": 2**60}}, Refusal.MALFORMED, 400),
    "an id with a space": ({"client_message_id": "a b"}, Refusal.MALFORMED, 400),
    "an empty id": ({"client_message_id": ""}, Refusal.MALFORMED, 400),
    "a reply_to with a quotation mark": ({"reply_to": 'a"b'}, Refusal.MALFORMED, 400),
    "an end that has passed": ({"expires_at": START}, Refusal.MALFORMED, 400),
    "an end before its start": ({"expires_at": START + DAY, "not_before": START + DAY}, Refusal.MALFORMED, 400),
    "a start that is too far": (
        {"not_before": START + send.SCHEDULE_DAYS_MAX * DAY + 1},
        Refusal.MALFORMED,
        400,
    ),
    "a time that is none": ({"not_before": -1}, Refusal.MALFORMED, 400),
    "a text that is none": ({"message": "\ud800"}, Refusal.MALFORMED, 400),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_leaves_no_trace_and_its_id_free(desk: Desk, name: str) -> None:
    change, refusal, http_status = REFUSED[name]
    answer = desk.send(**{"client_message_id": "one", **change})
    assert (answer.refusal, answer.http_status) == (refusal, http_status)
    assert answer.body["code"] == refusal.value
    assert (_log(desk), desk.entries(), desk.rows("SELECT * FROM scheduled_send")) == ([], [], [])
    assert desk.send(client_message_id="one").http_status == 202


def test_what_is_just_within_the_limits_is_taken(desk: Desk) -> None:
    people = {f"member-{number}": f"member-{number}" for number in range(MENTIONS_MAX)}
    desk.book.members |= people
    item = desk.sent(message="x" * (CONTENT_BYTES_MAX - 7), meta={"a": 1}, mentions=tuple(people))
    assert len(item.mentions) == MENTIONS_MAX
    assert len(desk.content(item).body) == CONTENT_BYTES_MAX - 7
    assert desk.send(not_before=START + send.SCHEDULE_DAYS_MAX * DAY).http_status == 202


# how a request is read


def test_a_request_is_read_from_json() -> None:
    raw = b'{"to":"@news","message":"hi","priority":"low","meta":{"a":1},"mentions":["bob"],"not_before":5}'
    assert read_document(raw, Send) == Send(
        to="@news", message="hi", priority=Priority.LOW, meta={"a": 1}, mentions=("bob",), not_before=5
    )


@pytest.mark.parametrize(
    ("raw", "named"),
    [
        (b"{}", "`to`"),
        (b'{"to":"bob"}', "`message`"),
        (b'{"to":"bob","message":"x","priority":"soon"}', "$.priority"),
        (b'{"to":"bob","message":"x","meta":[]}', "$.meta"),
        (b'{"to":"bob","message":"x","colour":"red"}', "colour"),
        (b'{"to":"bob","message":7}', "$.message"),
        (b'{"to":"bob","message":"\xff"}', "request"),
        (b"not json", "request"),
    ],
)
def test_a_request_that_is_none_is_refused_and_says_where(raw: bytes, named: str) -> None:
    with pytest.raises(Refused) as refused:
        read_document(raw, Send)
    assert refused.value.refusal is Refusal.MALFORMED
    assert named in refused.value.detail


@pytest.mark.parametrize(
    ("header", "body", "chosen"),
    [
        (None, None, None),
        (None, "b", "b"),
        ("h", None, "h"),
        ('"h"', None, "h"),
        ("  h ", None, "h"),
        ('"h"', "h", "h"),
        ("h", "h", "h"),
    ],
)
def test_an_id_is_the_headers_or_the_bodys(header: str | None, body: str | None, chosen: str | None) -> None:
    assert chosen_id(header, body) == chosen


@pytest.mark.parametrize(
    ("header", "body", "refusal"),
    [
        ("h", "b", Refusal.IDEMPOTENCY_KEYS_DIFFER),
        ('"h"', '"h"', Refusal.IDEMPOTENCY_KEYS_DIFFER),
        ('"', None, Refusal.MALFORMED),
        ('"h', None, Refusal.MALFORMED),
        ('""', None, Refusal.MALFORMED),
        ("", None, Refusal.MALFORMED),
        ("a b", None, Refusal.MALFORMED),
        ('"a"b"', None, Refusal.MALFORMED),
    ],
)
def test_an_id_that_is_unclear_is_refused(header: str, body: str | None, refusal: Refusal) -> None:
    with pytest.raises(Refused) as refused:
        chosen_id(header, body)
    assert refused.value.refusal is refusal


# many at once


def test_many_threads_with_one_id_leave_one_row_and_get_one_answer(desk: Desk) -> None:
    def apply(tx: Any, requests: Any) -> list[Answer]:
        return [send.send(tx, desk.facts, desk.book, desk.now, desk.random, request) for request in requests]

    writer: Writer[Send, Answer] = Writer(desk.engine, apply)
    answers: list[Answer] = []
    start = threading.Barrier(16)

    def post() -> None:
        start.wait()
        answers.append(writer.ask(Send(to="bob", message="hello", client_message_id="one")))

    threads = [threading.Thread(target=post) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    writer.close()
    assert answers == [Answer(202, {"client_message_id": "one", "status": "queued"})] * 16
    assert _count(desk) == 1


# scheduled sends


def _release(desk: Desk, limit: int = 100) -> int:
    return desk.do(lambda tx: scheduled.release(tx, desk.facts, desk.now, desk.random, limit))


def _next(desk: Desk) -> int | None:
    return desk.look(scheduled.next_release_at)


def test_a_scheduled_send_has_no_sequence_before_its_time(desk: Desk) -> None:
    answer = desk.send(client_message_id="later", not_before=START + 10, meta={"a": 1}, mentions=("carol",))
    assert answer == Answer(202, {"client_message_id": "later", "status": "queued"})
    assert (_log(desk), desk.entries(), _next(desk)) == ([], [], START + 10)
    meanwhile = desk.sent()
    desk.now = START + 9
    assert _release(desk) == 0
    desk.now = START + 10
    assert _release(desk) == 1
    item = desk.item("later")
    content = desk.content(item)
    assert (item.sequence, item.enqueued_at, item.mentions) == (1, START + 10, ("member-carol",))
    assert (content.previous_sequence, content.body, content.meta) == (meanwhile.sequence, b"hello", b'{"a":1}')
    assert (_next(desk), _release(desk)) == (None, 0)
    assert [entry.at for entry in desk.entries(Kind.ENQUEUED)] == [START, START + 10]


def test_a_scheduled_send_is_pending_to_whoever_asks_again(desk: Desk) -> None:
    first = desk.send(client_message_id="later", not_before=START + 10)
    assert desk.send(client_message_id="later", not_before=START + 10) == first
    other = desk.send(client_message_id="later", not_before=START + 11)
    assert other.body["conflict"] == "outbox_pending_fingerprint_mismatch"
    desk.now = START + 20
    _release(desk)
    assert desk.send(client_message_id="later", not_before=START + 10) == first
    desk.relay(desk.item("later"))
    assert desk.send(client_message_id="later", not_before=START + 10).body["duplicate"] is True
    assert _count(desk) == 1


def test_what_is_due_is_released_in_the_order_of_its_times(desk: Desk) -> None:
    for name, after in (("b", 30), ("d", 10), ("c", 20), ("a", 30)):
        desk.now += 1
        desk.send(client_message_id=name, not_before=START + 100 + after)
    assert [waiting.client_message_id for waiting in desk.look(scheduled.waiting)] == ["d", "c", "b", "a"]
    desk.now = START + 200
    assert [_release(desk, 3), _release(desk, 3)] == [3, 1]
    assert [desk.item(name).sequence for name in "dcba"] == [0, 1, 2, 3]


def test_a_time_that_has_come_is_no_schedule(desk: Desk) -> None:
    assert desk.sent(not_before=START).sequence == 0
    assert _next(desk) is None


def _cancel(desk: Desk, name: str) -> scheduled.Scheduled:
    return desk.do(lambda tx: scheduled.cancel(tx, desk.facts, desk.now, name))


def test_a_send_that_was_cancelled_never_leaves_and_its_content_is_gone(desk: Desk) -> None:
    desk.send("@news", "a secret", client_message_id="later", not_before=START + 10, meta={"a": 1})
    desk.now = START + 9
    cancelled = _cancel(desk, "later")
    assert (cancelled.client_message_id, cancelled.not_before, cancelled.cancelled_at) == (
        "later",
        START + 10,
        START + 9,
    )
    desk.now = START + 20
    assert (_release(desk), _next(desk), desk.look(scheduled.waiting), desk.look(scheduled.count)) == (0, None, [], 0)
    assert _log(desk) == []
    assert desk.rows("SELECT body, meta FROM scheduled_send") == [(None, None)]
    (entry,) = desk.entries()
    assert (entry.kind, entry.client_message_id, entry.sequence, entry.reason) == (
        Kind.ABORTED,
        "later",
        None,
        "cancelled",
    )
    assert (entry.destination_kind, entry.destination_ref, entry.detail) == ("topic", "news", b"")


def test_a_cancellation_is_answered_the_same_again_and_told_once(desk: Desk) -> None:
    desk.send(client_message_id="later", not_before=START + 10)
    first = _cancel(desk, "later")
    desk.now += 5
    assert _cancel(desk, "later") == first
    assert len(desk.entries()) == 1


def test_the_id_of_a_cancelled_send_stays_used_up(desk: Desk) -> None:
    desk.send(client_message_id="later", not_before=START + 10)
    _cancel(desk, "later")
    again = desk.send(client_message_id="later", not_before=START + 10)
    assert (again.http_status, again.body["conflict"]) == (409, "outbox_aborted_fingerprint_match")
    other = desk.send(message="something else", client_message_id="later")
    assert other.body["conflict"] == "outbox_aborted_fingerprint_mismatch"


def test_what_has_its_sequence_is_not_cancelled(desk: Desk) -> None:
    now, later = desk.sent(client_message_id="now"), desk.send(client_message_id="later", not_before=START + 10)
    assert later.refusal is None
    desk.now = START + 10
    _release(desk)
    before = desk.entries()
    for name in ("now", "later", now.id, desk.item("later").id):
        with pytest.raises(Refused, match="pending") as refused:
            _cancel(desk, name)
        assert refused.value.refusal is Refusal.CANCEL_TOO_LATE
    with pytest.raises(Refused) as unknown:
        _cancel(desk, "nobody")
    assert unknown.value.refusal is Refusal.NOT_FOUND
    assert desk.entries() == before


def test_pages_of_what_waits_go_on_where_they_ended_though_that_was_released_or_cancelled(desk: Desk) -> None:
    for number, to in enumerate(("bob", "carol", "bob", "@news", "bob")):
        desk.send(to, client_message_id=f"n{number}", not_before=START + 50 - number // 2)

    def page(**asked: Any) -> list[str]:
        return [each.client_message_id for each in desk.look(lambda tx: scheduled.waiting(tx, **asked))]

    assert page() == ["n4", "n2", "n3", "n0", "n1"]
    assert (page(limit=2), page(after="n2", limit=2), page(after="n1")) == (["n4", "n2"], ["n3", "n0"], [])
    assert page(destination=("dm", "member-bob")) == ["n4", "n2", "n0"]
    assert page(destination=("topic", "news")) == ["n3"]
    _cancel(desk, "n2")
    desk.now = START + 48
    assert _release(desk) == 1
    assert (page(), page(after="n2"), page(after="n4")) == (["n3", "n0", "n1"],) * 3
    assert desk.look(scheduled.count) == 3


def test_a_release_that_fails_half_way_releases_nothing(desk: Desk) -> None:
    for name in ("a", "b"):
        desk.send(client_message_id=name, not_before=START + 1)
    desk.now = START + 1

    def release_and_fail(tx: Any) -> None:
        scheduled.release(tx, desk.facts, desk.now, desk.random)
        raise RuntimeError

    with pytest.raises(RuntimeError):
        desk.do(release_and_fail)
    assert _count(desk) == 0
    assert _release(desk) == 2


# any requests under few ids

_ids = st.sampled_from(["one", "two", None])
_requests = st.builds(
    Send,
    to=st.sampled_from(["bob", "carol", "@news", "nobody"]),
    message=st.sampled_from(["a", "b"]),
    client_message_id=_ids,
    not_before=st.sampled_from([None, START + 5]),
)


@settings(max_examples=60, deadline=None)
@given(requests=st.lists(_requests, max_size=8), moves=st.lists(st.sampled_from([0, 3, 9]), min_size=8, max_size=8))
def test_an_id_belongs_to_its_first_request_for_ever(
    tmp_path_factory: pytest.TempPathFactory, requests: list[Send], moves: list[int]
) -> None:
    desk = Desk(Path(tmp_path_factory.mktemp("any")) / "device.db")
    owners: dict[str, Send] = {}
    minted = 0
    for request, move in zip(requests, moves, strict=False):
        desk.now += move
        _release(desk)
        answer = desk.do(lambda tx: send.send(tx, desk.facts, desk.book, desk.now, desk.random, request))  # noqa: B023 - called at once
        name = request.client_message_id
        owner = owners.get(name) if name is not None else None
        if owner is not None:
            assert answer.http_status == (202 if owner == request else 409)
        elif request.to == "nobody":
            assert answer.refusal is Refusal.DESTINATION_UNKNOWN
        else:
            assert answer.http_status == 202
            minted += name is None
            if name is not None:
                owners[name] = request
    desk.now += 9
    _release(desk)
    assert _count(desk) == len(owners) + minted
    desk.close()


def test_the_stored_request_is_what_was_asked_without_its_content(desk: Desk) -> None:
    desk.send(to="@news", message="secret", client_message_id="one", meta={"a": 1}, priority="low")
    ((request,),) = desk.rows("SELECT request FROM operation_log")
    assert msgspec.json.decode(request) == {"to": "@news", "message": "", "priority": "low"}


def test_a_log_from_before_there_were_messages_takes_them(tmp_path: Path) -> None:
    path = tmp_path / "device.db"
    engine = SqliteEngine(path)
    names = [step.name for step in database.SCHEMA.migrations]
    before = database.SCHEMA.migrations[: names.index("inbox")]
    migrations.migrate(engine, msgspec.structs.replace(database.SCHEMA, migrations=before), lambda: START)
    with engine.write() as tx:
        history.create(tx, bytes(16))
        operations.take_identity(tx, START, lambda size: b"\x01" * size)
        tx.run(
            "INSERT INTO operation_log (sequence, object_id, blob, digest, status, enqueued_at, next_attempt_at, id,"
            " client_message_id) VALUES (0, zeroblob(32), x'61', :digest, 'pending', :now, :now, 'a', 'a')",
            {"digest": operations.blob_digest(0, bytes(32), b"a"), "now": START},
        )
        enqueued = Draft(kind=Kind.ENQUEUED, client_message_id="a", epoch=b"\x01" * 16, sequence=0, size=1)
        history.append(tx, START, [enqueued])
    engine.close()
    desk = Desk(path)
    assert desk.sent().sequence == 1
    assert (desk.item("a").priority, desk.item("a").mentions) == ("next", ())
    desk.close()
