"""Requests that share a batch share their statements, and are answered as if one had come after another."""

from collections.abc import Callable
from typing import Any

from holdfast.device import operations, send
from holdfast.device.operation_log import _AppendNext
from holdfast.device.operations import SEQUENCE_MAX, SequencesExhausted
from holdfast.device.send import Send, Taking
from holdfast.device.together import carry_out
from holdfast.protocol import payload
from holdfast.protocol.history import Kind
from holdfast.protocol.refusal import Refusal, Refused
from holdfast.store.engine import Transaction
from tests.device.desk import Desk

OBJECT = b"o" * 32


def _taking(desk: Desk, message: str = "hello", *, no_room: Refused | None = None, **asked: Any) -> Taking:
    request = send.prepare(Send(**{"to": "bob", "message": message, **asked}))
    return Taking(desk.facts, desk.book, lambda: desk.now, desk.random, request, no_room)


def _together(desk: Desk, *requests: Callable[[Transaction], Any]) -> list[Any]:
    with desk.engine.write() as transaction:
        return carry_out(transaction, requests)


def test_an_id_that_is_repeated_in_the_same_moment_is_one_send(desk: Desk) -> None:
    first, again, other = _together(
        desk,
        _taking(desk, client_message_id="one"),
        _taking(desk, client_message_id="one"),
        _taking(desk, "something else", client_message_id="one"),
    )
    assert first.http_status == 202
    assert [again] == _together(desk, _taking(desk, client_message_id="one"))  # what it is told later, too
    assert (other.http_status, other.refusal) == (409, Refusal.IDEMPOTENCY_KEY_REUSED)
    assert [entry.client_message_id for entry in desk.entries()] == ["one"]


def test_an_id_that_waits_for_its_time_is_met_in_the_same_moment(desk: Desk) -> None:
    not_before = desk.now + 1_000_000
    requests = [_taking(desk, client_message_id="one", not_before=not_before) for _ in range(2)]
    first, again = _together(desk, *requests)
    assert (first.http_status, first.refusal, again.refusal) == (202, None, None)
    assert [again] == _together(desk, requests[0])
    assert desk.rows("SELECT count(*) FROM scheduled_send") == [(1,)]
    assert desk.rows("SELECT count(*) FROM operation_log") == [(0,)]


def test_each_message_names_the_one_before_it_of_its_destination(desk: Desk) -> None:
    desk.send(client_message_id="before")
    _together(desk, _taking(desk), _taking(desk, to="carol"), _taking(desk), _taking(desk, to="carol"))
    rows = desk.rows("SELECT sequence, destination_ref, blob FROM operation_log ORDER BY sequence")
    found = [(sequence, to, payload.decode(blob).previous_sequence) for sequence, to, blob in rows]
    bob, carol = desk.bob.member, desk.carol.member
    assert found == [(0, bob, None), (1, bob, 0), (2, carol, None), (3, bob, 1), (4, carol, 2)]


def test_a_refusal_between_others_costs_them_nothing(desk: Desk) -> None:
    full = Refused(Refusal.QUEUE_FULL, "no room")
    answers = _together(desk, _taking(desk), _taking(desk, to="nobody"), _taking(desk, no_room=full), _taking(desk))
    assert [answer.refusal for answer in answers] == [None, Refusal.DESTINATION_UNKNOWN, Refusal.QUEUE_FULL, None]
    assert [entry.sequence for entry in desk.entries()] == [0, 1]


def test_what_stands_between_two_sends_sees_the_first_and_not_the_second(desk: Desk) -> None:
    _, seen, _ = _together(desk, _taking(desk), operations.count, _taking(desk))
    assert seen == (1, 1)
    assert desk.rows("SELECT rows FROM operation_count WHERE status = 'pending'") == [(2,)]


def test_entries_of_one_moment_are_each_in_the_history(desk: Desk) -> None:
    appends = [_AppendNext(lambda: desk.now, desk.random, OBJECT, b"%d" % number) for number in range(70)]
    assert _together(desk, *appends) == list(range(70))
    assert [(entry.kind, entry.sequence) for entry in desk.entries()] == [(Kind.ENQUEUED, n) for n in range(70)]
    blobs = desk.rows("SELECT blob FROM operation_log ORDER BY sequence")
    assert blobs == [(b"%d" % number,) for number in range(70)]


def test_the_last_sequence_is_given_once_and_the_others_are_refused(desk: Desk) -> None:
    with desk.engine.write() as transaction:
        operations.append(transaction, desk.now, desk.random, OBJECT, SEQUENCE_MAX - 1, b"x")
    appends = [_AppendNext(lambda: desk.now, desk.random, OBJECT, b"y") for _ in range(3)]
    last, *refused = _together(desk, *appends)
    assert last == SEQUENCE_MAX
    assert [type(one) for one in refused] == [SequencesExhausted] * 2
