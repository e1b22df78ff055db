"""The turns of agents, however the hook events that tell of them are cut into batches."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession

from holdfast.protocol.history import Entry
from holdfast.protocol.hook_entry import HookDetail, received
from tests.pipeline.tables.memory_lake import MemoryLake, Part, as_time
from tests.pipeline.tables.test_twins import plain, seen
from tests.pipeline.twins import agents, twins
from tests.pipeline.twins.random_world import START, Log

ORIGIN = "device:mesh-1/ann"
SECOND = 1_000_000
WHAT = {
    "user_prompt_submit": ("UserPromptSubmit",),
    "tool_use": ("PreToolUse",),
    "tool_done": ("PostToolUse", "PostToolUseFailure"),
    "error": ("StopFailure", "PermissionDenied"),
    "agent_stop": ("Stop", "agent-turn-complete"),
    "session_start": ("SessionStart",),
    "session_end": ("SessionEnd",),
    "notification": ("Notification",),
}

pytestmark = pytest.mark.timeout(600)  # a session of Spark on a busy machine takes its time


class Desk:
    """A device whose agents do as they are told."""

    def __init__(self) -> None:
        self.log = Log(b"L" * 16)
        self.count = 0

    def hook(self, what: str, name: str = "", session: str = "s", agent: str = "claude", again: int = 0) -> None:
        self.count += 1
        detail = HookDetail(
            agent=agent,
            session_id=session,
            event_type=what,
            event_name=name or WHAT[what][0],
            received_at=START + self.count * SECOND,
        )
        self.log.say(received(f"{again or self.count:032x}", 9, detail), SECOND)

    def happen(self, random: Random, times: int) -> None:
        for _ in range(times):
            what = random.choice([*WHAT, "user_prompt_submit", "agent_stop", "agent_stop", "tool_use"])
            session, agent = (
                random.choice(("s", "t", "s", "t", "", "holdfast-doctor-1")),
                random.choice(("claude", "codex")),
            )
            self.hook(what, random.choice(WHAT[what]), session, agent)


def part(log: Log, after: int, until: int) -> Part:
    chain = log.entries[after - 1].chain if after else None
    return Part(ORIGIN, log.log_id, after, until, log.entries[after:until], chain)


def turns(lake: MemoryLake) -> list[tuple[Any, ...]]:
    rows = sorted(lake.rows["agent_turn"], key=lambda row: row["n"])
    names = ("n", "prompt_at", "stop_at", "tools", "errors", "outcome")
    return [tuple(_second(row[name]) for name in names) for row in rows]


def _second(value: Any) -> Any:
    return round((plain(value) - as_time(START)).total_seconds()) if isinstance(value, datetime) else value


def read(spark: SparkSession, parts: Iterable[Part]) -> MemoryLake:
    lake = MemoryLake(spark, ["agent_turn", "agent_session"])
    for one in parts:
        lake.run([one])
    assert lake.breaches == []
    return lake


def test_a_turn_goes_from_its_prompt_to_its_end_and_counts_what_lies_between(spark: SparkSession) -> None:
    desk = Desk()
    desk.hook("session_start")
    desk.hook("user_prompt_submit")  # 2
    desk.hook("tool_use")
    desk.hook("tool_done")
    desk.hook("user_prompt_submit")  # 5
    for what, name in (
        ("tool_use", ""),
        ("tool_use", ""),
        ("tool_done", "PostToolUseFailure"),
        ("error", "PermissionDenied"),
    ):
        desk.hook(what, name)
    desk.hook("agent_stop")  # 10
    desk.hook("agent_stop")
    desk.hook("user_prompt_submit")  # 12
    desk.hook("tool_use")
    lake = read(spark, [part(desk.log, 0, 7), part(desk.log, 7, 13)])
    assert turns(lake) == [
        (1, 2, None, 1, 0, "interrupted"),
        (2, 5, 10, 2, 2, "complete"),
        (3, 12, None, 1, 0, "open"),
    ]


def test_turns_are_what_their_twin_says_and_those_of_a_restored_device_count_once(spark: SparkSession) -> None:
    random, desk = Random(3), Desk()
    desk.happen(random, 240)
    parts = [part(desk.log, after, after + 80) for after in (0, 80, 160)]
    copy = Log(desk.log.log_id, desk.log.entries[:150], desk.log.entries[149].chain, desk.log.at)
    desk.log = copy.forked(b"M" * 16)
    for entry in parts[2].entries[5:25]:  # the copy had these before it, and had not told of them
        desk.log.say(_draft(entry), SECOND)
    desk.happen(random, 40)
    parts.append(part(desk.log, 150, len(desk.log.entries)))
    lake = read(spark, parts)
    story = twins.Story(parts)
    expected = agents.agent_turn(story)
    assert {row["outcome"] for row in expected} == {"complete", "interrupted", "open"}
    assert {row["session"] for row in expected} == {"s", "t"}
    assert seen(lake.rows["agent_turn"], None) == seen(expected, sorted(expected[0]))


def _draft(entry: Entry) -> Any:
    detail = HookDetail.decode(entry.detail)
    assert entry.event_id is not None
    return received(entry.event_id.hex(), entry.size or 0, detail)


def test_an_entry_of_a_hook_that_cannot_be_read_breaks_a_rule(spark: SparkSession) -> None:
    desk = Desk()
    desk.hook("user_prompt_submit")
    whole = desk.log.entries[0]
    torn = []
    for number, detail in enumerate((whole.detail[:9], b"", whole.detail[:-13])):
        log, draft = Log(bytes([number]) * 16), _draft(whole)
        log.say(type(draft)(kind=draft.kind, event_id=draft.event_id, size=1, detail=detail))
        torn.append(replace(part(log, 0, 1), origin=f"{ORIGIN}-{number}"))
    lake = MemoryLake(spark, ["agent_turn", "agent_session"])
    lake.run(torn)
    assert [table for table, _ in lake.breaches] == ["agent_session"] * len(torn)
    assert all(any(one.origin in row for _, row in lake.breaches) for one in torn)
