"""Lists stay quick however long they are: every page is found by an index in its own order, and nothing is sorted or counted whole."""

import re

import pytest

from holdfast.device import database as device
from holdfast.hook import database as hook
from holdfast.relay import database as relay
from holdfast.store.sqlite import MEMORY, SqliteEngine
from holdfast.store.statements import Statements

# What is allowed to be read whole, because it is short by its nature, and why.
SHORT = {
    "mesh_names": "meshes that a filter offers, at most 200",
    "find_client_message": "members, each asked for one id",
    "longest_queues": "members, sorted by the length of their queues",
    "queues_by_name": "members, likewise",
    "newest_in_queues": "members, each asked for the first of its queue, and a page of those that may be on it",
    "oldest_in_queues": "likewise",
    "oldest_open": "members, each asked for the first of its queue",
    "meshes": "meshes, by their ids",
    "consumers": "readers of the history",
    "authors": "authors that somebody admitted",
    "feed_counts": "authors and conflicts",
    "rates": "a stretch of the history whose length is bounded",
    "accepted_since": "a stretch of the messages whose length is bounded",
    "funnel": "likewise, of the deliveries",
    "sessions": "sessions of agents, by when they moved last",
    "dropped": "kinds of events that were not stored",
    "outcomes": "the copies of a page's messages",
    "delivery_states": "the copies of one message",
    "deliveries": "the copies of one message",
    "member_keys": "the keys of one mesh",
    "newest_parked": "what is parked, which people are told of",
    "oldest_parked": "likewise",
    "events": "the events of one session",
    "newest_to": "two pages, joined",
    "oldest_to": "likewise",
    "find_message": "two rows, joined",
}


def plans() -> list[tuple[str, str, str, list[str]]]:
    """Of every statement: its file, its name, its text, and how SQLite goes about it."""
    found = []
    for name, prepare in (("relay", relay.prepare), ("device", device.prepare), ("hook", None)):
        engine = SqliteEngine(MEMORY)
        if prepare is None:
            hook.prepare(engine, lambda: 0)
        else:
            prepare(engine, lambda: 0, bytes)
        for statement in Statements("holdfast.console", f"{name}.sql").values():
            parameters = dict.fromkeys(re.findall(r":(\w+)", statement))
            columns = sorted(set(re.findall(r"\bwanted\.(\w+)", statement)))
            text = str(statement)
            if columns:
                values = ", ".join(f"NULL AS {column}" for column in columns)
                text = f"WITH wanted AS (SELECT {values}) {statement}"
            with engine.read() as transaction:
                rows = transaction.rows(f"EXPLAIN QUERY PLAN {text}", parameters)
            found.append((name, statement.name, text, [str(row[3]) for row in rows]))
        engine.close()
    return found


PLANS = plans()


@pytest.mark.parametrize(
    ("name", "plan"), [(one[1], one[3]) for one in PLANS], ids=[f"{one[0]}-{one[1]}" for one in PLANS]
)
def test_no_page_sorts_or_reads_all_that_there_is(name: str, plan: list[str]) -> None:
    for step in plan:
        if name in SHORT:
            continue
        assert "TEMP B-TREE" not in step, plan
        assert not re.search(r"^SCAN (?!wanted|CONSTANT|\(|found|latest|newest)", step) or _goes_along(step, name), plan


def _goes_along(step: str, name: str) -> bool:
    """A page at either end of everything is a scan that stops where the page does: by the key, or by an index of a part."""
    is_page = name.startswith(("newest", "oldest")) or name in ("entries", "lately")
    return is_page or "USING INDEX document_conflict" in step


@pytest.mark.parametrize(
    ("file", "name", "index"),
    [
        ("relay", "newest_of_topic", "message_by_topic"),
        ("relay", "newest_waiting_for", "delivery_queue"),
        ("relay", "oldest_in_queues", "delivery_queue"),
        ("relay", "decisions", "history_decisions"),
        ("relay", "conflicting", "document_conflict"),
        ("relay", "accepted_since", "message_by_time"),
        ("relay", "find_client_message", "sqlite_autoindex_dedupe_1 (mesh=? AND sender=? AND client_message_id=?)"),
        ("relay", "documents_of", "sqlite_autoindex_document_1 (author=? AND d>?)"),
        ("device", "newest_dead", "operation_log_given_up"),
        ("device", "oldest_aborted", "operation_log_failed"),
        ("device", "newest_waiting", "operation_log_outbox"),
        ("device", "newest_to", "operation_log_by_destination"),
        ("device", "newest_parked", "inbox_undone"),
        ("device", "oldest_unapplied", "inbox_undone"),
        ("device", "newest_from", "inbox_by_sender"),
        ("device", "oldest_topic", "inbox_by_topic"),
        ("hook", "events", "hook_outbox_by_session"),
    ],
)
def test_a_filter_has_an_index(file: str, name: str, index: str) -> None:
    (plan,) = [one[3] for one in PLANS if one[:2] == (file, name)]
    assert any(index in step for step in plan), plan


def test_what_is_allowed_is_still_there() -> None:
    assert set(SHORT) <= {one[1] for one in PLANS}
