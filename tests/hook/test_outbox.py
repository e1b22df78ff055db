"""The outbox by itself: what is due, who may claim it, and whose word counts."""

import re
from functools import partial

import pytest

from holdfast.hook import outbox
from holdfast.hook.database import SCHEMA
from holdfast.hook.outbox import Mark, Row
from holdfast.protocol.hook_queue import CLASSES, HookClass
from holdfast.protocol.hook_row import HookSignal, HookStatus
from holdfast.protocol.schedule import SECOND
from holdfast.store.check import check
from holdfast.store.statements import Statements
from tests.hook.office import Office
from tests.hook.virtual import START

LONG_AGO = START - 30 * SECOND


def due(office: Office, owner: str = "me", now: int = START, cutoff: int = LONG_AGO) -> list[int]:
    found = office.do(lambda tx: outbox.due(tx, owner, now, cutoff, limit=100))
    return [row.id for row, _ in found]


def claimed(office: Office, owner: str = "me", now: int = START, cutoff: int = LONG_AGO, limit: int = 1) -> list[Row]:
    rows: list[Row] = office.do(lambda tx: outbox.claim_batch(tx, owner, now, cutoff, limit, frozenset()))
    return rows


def marked(
    office: Office,
    row: Row,
    signal: HookSignal,
    before: HookStatus = HookStatus.LOCKED,
    owner: str = "me",
    **more: object,
) -> int | None:
    wanted = Mark(id=row.id, token=row.token, before=before, signal=signal, **more)  # type: ignore[arg-type]
    attempts: int | None = office.do(lambda tx: outbox.mark(tx, owner, START, wanted))
    return attempts


def test_a_row_is_claimed_once(office: Office) -> None:
    office.put("a", "session_start")
    ((row, before),) = office.do(lambda tx: outbox.due(tx, "me", START, LONG_AGO, limit=5))
    assert office.do(lambda tx: outbox.claim(tx, "me", START, row, before)) is not None
    assert office.do(lambda tx: outbox.claim(tx, "other", START, row, before)) is None
    assert due(office, "other") == []


def test_a_failed_row_is_due_again_when_its_time_has_come_and_knows_its_attempts(office: Office) -> None:
    office.put("a", "session_start")
    (row,) = claimed(office)
    assert marked(office, row, HookSignal.STARTED) == 1
    again_at = START + 2 * SECOND
    marked(office, row, HookSignal.FAILED, HookStatus.HANDLING, error="no", next_attempt_at=again_at)
    assert due(office, now=again_at - 1) == []
    assert due(office, now=again_at) == [1]
    assert office.rows("attempts, last_error, lock_owner") == [(1, "no", None)]


def test_a_row_that_has_ended_keeps_its_last_error(office: Office) -> None:
    office.put("a", "session_start")
    (row,) = claimed(office)
    marked(office, row, HookSignal.STARTED)
    marked(office, row, HookSignal.UNPROCESSABLE, HookStatus.HANDLING, error="session not found")
    assert office.rows("status, last_error, ended_at") == [("dead", "session not found", START)]
    assert due(office, now=START + 10**12) == []


def test_what_stands_behind_a_row_of_another_worker_is_not_due(office: Office) -> None:
    office.put("a", "session_start", "agent_stop")
    office.put("b", "session_start")
    claimed(office, "other")
    assert due(office) == [3]
    assert due(office, "other") == [2, 3]


def test_what_stands_behind_a_row_that_waits_is_not_due(office: Office) -> None:
    office.put("a", "session_start", "tool_use", "agent_stop")
    (row,) = claimed(office)
    marked(office, row, HookSignal.SENT_BACK, next_attempt_at=START + SECOND)
    assert due(office) == []
    assert due(office, now=START + SECOND) == [1, 2, 3]


def test_a_batch_takes_every_session_in_order_and_without_a_gap(office: Office) -> None:
    for _ in range(3):
        office.put("a", "agent_stop")
        office.put("b", "agent_stop")
    assert [row.id for row in claimed(office, limit=4)] == [1, 2, 3, 4]
    assert [row.id for row in claimed(office, "other", limit=4)] == []
    assert [row.id for row in claimed(office, limit=4)] == [5, 6]


def test_sessions_that_are_passed_over_leave_room_for_others(office: Office) -> None:
    office.put("a", *["agent_stop"] * 7)
    office.put("b", "agent_stop")
    paused = frozenset({("claude", "a")})
    found = office.do(lambda tx: outbox.claim_batch(tx, "me", START, LONG_AGO, 3, paused))
    assert [row.id for row in found] == [8]


def test_a_lock_that_lapsed_is_anybodys_and_its_holder_has_no_more_to_say(office: Office) -> None:
    office.put("a", "session_start")
    (lapsed,) = claimed(office, "stalled")
    assert due(office, cutoff=START - 1) == []
    (taken,) = claimed(office, cutoff=START)
    assert taken.token == lapsed.token + 1
    assert marked(office, lapsed, HookSignal.STARTED, owner="stalled") is None
    assert marked(office, taken, HookSignal.STARTED) == 1


def test_a_word_about_an_earlier_claim_is_not_taken_for_one_about_the_present_one(office: Office) -> None:
    office.put("a", "session_start")
    (first,) = claimed(office)
    (theirs,) = claimed(office, "other", cutoff=START)
    marked(office, theirs, HookSignal.RELEASED, owner="other")
    (second,) = claimed(office)
    assert marked(office, first, HookSignal.STARTED) is None
    assert marked(office, second, HookSignal.STARTED) == 1


def test_what_a_lost_worker_was_handling_is_due_at_once_with_its_attempt_counted(office: Office) -> None:
    office.put("a", "session_start", "agent_stop")
    (row,) = claimed(office, "lost")
    marked(office, row, HookSignal.STARTED, owner="lost")
    assert office.do(lambda tx: outbox.recover(tx, "me", START, START - 1)) == 0
    assert office.do(lambda tx: outbox.recover(tx, "me", START, START)) == 1
    assert due(office) == [1, 2]
    assert office.rows("status, attempts, last_error", "id = 1") == [("pending", 1, outbox.LOST_ERROR)]


@pytest.mark.parametrize(
    ("types", "starts"),
    [
        (["session_start", "agent_stop"], [True, False]),
        (["tool_use", "tool_done"], [True, True]),
        (["tool_use", "agent_stop"], [True, False]),
        (["agent_stop", "tool_use"], [True, False]),
    ],
)
def test_only_bursts_may_start_before_what_came_before_them(
    types: list[str], starts: list[bool], office: Office
) -> None:
    office.put("a", *types)
    rows = claimed(office, limit=2)
    assert [office.do(partial(outbox.may_start, row=row)) for row in rows] == starts


def test_nothing_may_start_while_a_handler_has_something_of_its_session(office: Office) -> None:
    office.put("a", "tool_use", "tool_done")
    office.put("b", "tool_use")
    first, later, other = claimed(office, limit=3)
    marked(office, later, HookSignal.STARTED)
    assert not office.do(lambda tx: outbox.may_start(tx, first))
    assert office.do(lambda tx: outbox.may_start(tx, other))


@pytest.mark.parametrize(
    "name", ["has_open", "due", "stuck", "open_before", "other_owners", "lost", "renew", "unreported"]
)
def test_what_a_worker_asks_every_second_does_not_walk_through_what_has_ended(name: str, office: Office) -> None:
    statement = Statements("holdfast.hook", "outbox.sql")[name]
    parameters = dict.fromkeys(re.findall(r":(\w+)", statement))
    plan = [row[3] for row in office.do(lambda tx: tx.rows(f"EXPLAIN QUERY PLAN {statement}", parameters))]
    steps = [step for step in plan if step.startswith(("SCAN", "SEARCH")) and step.split()[1] != "holding"]
    assert not any("CORRELATED" in step for step in plan)  # or a long session would cost its square
    short = ("hook_outbox_waiting", "hook_outbox_locked", "hook_outbox_unreported")
    assert steps
    assert all(step.split(" (")[0].endswith(short) or "ended_at=?" in step for step in steps), steps


TAMPERINGS = {
    "one_event_of_a_session_is_handled_at_a_time": "UPDATE hook_outbox SET status = 'handling', lock_owner = 'x', locked_at = 1, ended_at = NULL, attempts = 1",
    "critical_events_end_in_order": "UPDATE hook_outbox SET status = 'pending', ended_at = NULL WHERE id = 1",
    "no_critical_event_is_coalesced": "UPDATE hook_outbox SET status = 'coalesced', last_error = 'x'",
    "what_ended_without_success_says_why": "UPDATE hook_outbox SET status = 'dead'",
    "nothing_was_handled_without_an_attempt": "UPDATE hook_outbox SET attempts = 0",
    "an_end_is_reported_after_its_beginning": "UPDATE hook_outbox SET ended_reported = 1",
}


@pytest.mark.parametrize("name", TAMPERINGS)
def test_each_rule_finds_what_breaks_it(name: str, office: Office) -> None:
    office.put("a", "session_start", "agent_stop")
    office.do(lambda tx: tx.run("UPDATE hook_outbox SET status = 'done', ended_at = 1, attempts = 1"))
    assert list(check(office.engine, SCHEMA)) == []
    office.do(lambda tx: tx.run(TAMPERINGS[name]))
    assert name in {finding.check for finding in check(office.engine, SCHEMA)}
    office.do(lambda tx: tx.run("DELETE FROM hook_outbox"))


@pytest.mark.parametrize("column", ["payload", "session_id", "event_name"])
def test_an_event_that_is_no_longer_what_was_stored_is_found(column: str, office: Office) -> None:
    office.put("a", "session_start", "agent_stop")
    office.do(lambda tx: tx.run(f"UPDATE hook_outbox SET {column} = replace({column}, substr({column}, 1, 1), '?')"))
    assert [finding.check for finding in check(office.engine, SCHEMA)] == ["events", "events"]
    office.do(lambda tx: tx.run("DELETE FROM hook_outbox"))


def test_no_rule_is_without_a_test_and_the_critical_types_are_those_of_the_protocol() -> None:
    (statements,) = SCHEMA.checks
    assert set(statements) == set(TAMPERINGS)
    critical = {name for name, kind in CLASSES.items() if kind is HookClass.CRITICAL}
    for name in ("critical_events_end_in_order", "no_critical_event_is_coalesced"):
        assert {kind for kind in CLASSES if f"'{kind}'" in statements[name]} == critical
