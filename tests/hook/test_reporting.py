"""What surrounds the handling of events: the spool before it, the history, the log and the pruning after it."""

import asyncio
import json
import os
from binascii import crc32
from collections.abc import Callable, Sequence

import pytest
import structlog

from holdfast.hook import intake, outbox, spool
from holdfast.hook.intake import PIECE_BYTES
from holdfast.protocol.history import Draft
from holdfast.protocol.hook_entry import HookDetail
from holdfast.protocol.schedule import DAY
from holdfast.store.engine import Transaction
from tests.hook.office import Office, Scene


def test_the_spool_is_emptied_in_order_before_anything_is_fetched(
    office: Office, play: Callable[[Scene], None]
) -> None:
    office.put("a", "session_start")
    for event_type in ("user_prompt_submit", "agent_stop"):
        spool.append(str(office.home), office.record("a", event_type))
    with (office.home / "hooks.spool").open("ab") as file:
        file.write(b'0badc0de {"half')  # a receiver died here; it had told nobody that this is stored
    spool.append(str(office.home), office.record("a", "session_end"))
    dropped = {"agent": "claude", "event_name": "New", "reason": "unknown", "received_at": 5}
    for _ in range(2):
        spool.append(str(office.home), {"statement": "count_dropped", "values": dropped})

    async def scene() -> None:
        async with office.at_work() as worker:
            await office.until_all_ended()
            assert worker.statistics.counts["spooled"] == 5

    play(scene)
    assert office.desk.of("a") == [1, 2, 3, 4]
    assert [row["count"] for row in office.do(outbox.dropped)] == [2]
    assert (office.home / "hooks.rejected").read_bytes() == b'0badc0de {"half\n'


def test_a_large_spool_is_taken_in_pieces_while_receivers_go_on_and_files_change(
    office: Office, play: Callable[[Scene], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake, "PIECE_BYTES", 1_000)
    monkeypatch.setattr(intake, "ROTATE_BYTES", 5_000)
    taken: list[int] = []
    take_in = outbox.take_in

    def noted(transaction: Transaction, records: Sequence[spool.Record]) -> list[spool.Record]:
        taken.append(len(records))
        return take_in(transaction, records)

    monkeypatch.setattr(outbox, "take_in", noted)
    for number in range(60):
        big = json.dumps({"n": number + 1, "text": "x" * 3_000 * (number % 20 == 7)})
        spool.append(str(office.home), office.record("a", "agent_stop", big))

    async def scene() -> None:
        office.store.latency_s = 0.01
        async with office.at_work() as worker:
            await office.until(lambda: office.rows("id"))
            for _ in range(40):
                spool.append(str(office.home), office.record("a", "agent_stop"))
                await asyncio.sleep(0.001)
            await office.until(lambda: len(office.desk.handled) == 100)
            assert worker.spool_bytes == 0

    play(scene)
    assert office.desk.of("a") == list(range(1, 101))
    assert spool.size(str(office.home)) < 10_000
    assert list(office.home.glob("hooks.spool.*")) == []
    assert max(taken) < 20
    assert sum(taken) == 100


def _place(office: Office) -> intake.Place:
    place: intake.Place = office.do(intake.place)
    return place


def test_what_was_taken_in_is_not_taken_in_again_by_the_next_worker(
    office: Office, play: Callable[[Scene], None]
) -> None:
    dropped = {"agent": "claude", "event_name": "New", "reason": "unknown", "received_at": 5}
    spool.append(str(office.home), {"statement": "count_dropped", "values": dropped})

    async def scene() -> None:
        for _ in range(3):
            async with office.at_work():
                await office.until(lambda: _place(office).end > 0)
                await asyncio.sleep(2)

    play(scene)
    assert [row["count"] for row in office.do(outbox.dropped)] == [1]


def test_a_file_that_lost_its_name_is_read_to_its_end_after_a_crash_and_before_the_next(
    office: Office, play: Callable[[Scene], None]
) -> None:
    home = str(office.home)
    spool.append(home, office.record("a", "session_start"))
    take_in(office)
    spool.append(home, office.record("a", "user_prompt_submit"))  # it came just before the file lost its name
    (office.home / "hooks.spool").rename(office.home / "hooks.spool.0123")
    spool.append(home, office.record("a", "agent_stop"))
    take_in(office)
    assert office.rows("event_type") == ["session_start", "user_prompt_submit", "agent_stop"]
    assert [path.name for path in office.home.glob("hooks.spool*")] == ["hooks.spool"]


def test_a_file_that_was_read_to_its_end_and_not_yet_removed_is_removed(office: Office) -> None:
    home = str(office.home)
    dropped = {"agent": "claude", "event_name": "New", "reason": "unknown", "received_at": 5}
    spool.append(home, {"statement": "count_dropped", "values": dropped})
    content = (office.home / "hooks.spool").read_bytes()
    (office.home / "hooks.spool").rename(office.home / "hooks.spool.0123")
    take_in(office)
    (office.home / "hooks.spool.0123").write_bytes(content)  # a power cut brings it back
    take_in(office)
    assert list(office.home.glob("hooks.spool*")) == []
    assert [row["count"] for row in office.do(outbox.dropped)] == [1]


def test_a_copy_that_somebody_made_of_the_spool_is_left_alone(office: Office) -> None:
    spool.append(str(office.home), office.record("a", "session_start"))
    for name in ("hooks.spool.bak", "hooks.spool.old"):
        (office.home / name).write_bytes((office.home / "hooks.spool").read_bytes())
    take_in(office)
    assert office.rows("event_type") == ["session_start"]
    assert sorted(path.name for path in office.home.glob("hooks.spool.*")) == ["hooks.spool.bak", "hooks.spool.old"]


def test_a_line_that_goes_into_a_file_while_it_loses_its_name_is_in_the_next_one_too(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, sync, steps = str(office.home), os.fdatasync, ["hooks.spool.0", "hooks.spool.1"]

    def disturbed(descriptor: int) -> None:
        sync(descriptor)
        if steps:
            (office.home / "hooks.spool").rename(office.home / steps.pop())

    monkeypatch.setattr(spool, "_sync", disturbed)
    spool.append(home, office.record("a", "session_start"))
    assert len(list(office.home.glob("hooks.spool*"))) == 3
    take_in(office)
    assert office.rows("event_type") == ["session_start"]


def test_a_worker_whose_place_is_of_another_file_reads_from_the_beginning(office: Office) -> None:
    home = str(office.home)
    for _ in range(3):
        spool.append(home, office.record("a", "agent_stop"))
    take_in(office)
    (office.home / "hooks.spool").unlink()
    for _ in range(5):
        spool.append(home, office.record("a", "agent_stop"))
    take_in(office)
    assert len(office.rows()) == 8


def take_in(office: Office) -> None:
    office.loop.run_until_complete(intake.Intake(office.home, office.store).take_in())


def test_while_the_database_has_no_time_the_spool_keeps_its_lines(
    office: Office, play: Callable[[Scene], None]
) -> None:
    for event_type in ("session_start", "agent_stop"):
        spool.append(str(office.home), office.record("a", event_type))
    office.store.busy = 1_000_000

    async def scene() -> None:
        async with office.at_work() as worker:
            await asyncio.sleep(3.5)
            assert worker.is_failing
            assert worker.spool_bytes == spool.size(str(office.home))
            spool.append(str(office.home), office.record("a", "error"))
            office.store.busy = 0
            await office.until(lambda: len(office.desk.handled) == 3)
            assert worker.spool_bytes == 0

    play(scene)
    assert office.desk.of("a") == [1, 2, 3]


def test_a_database_that_is_put_aside_while_it_is_in_use_is_noticed(
    office: Office, play: Callable[[Scene], None]
) -> None:
    path = office.home / "hooks.db"
    path.touch()

    async def scene() -> None:
        work = asyncio.create_task(office.worker().run())
        await asyncio.sleep(40)
        assert not work.done()
        path.rename(office.home / "aside")
        path.touch()  # as the next receiver does
        await asyncio.wait([work], timeout=20)
        assert isinstance(work.exception(), BaseExceptionGroup)
        assert "was put aside" in str(work.exception().exceptions[0])  # type: ignore[union-attr]

    play(scene)


def test_what_was_stored_before_the_spool_could_be_emptied_is_not_stored_again(
    office: Office, play: Callable[[Scene], None]
) -> None:
    record = office.record("a", "session_start")
    office.do(lambda tx: outbox.take_in(tx, [record]))
    spool.append(str(office.home), record)

    async def scene() -> None:
        async with office.at_work():
            await office.until_all_ended()
            await asyncio.sleep(2)

    play(scene)
    assert office.rows("status") == ["done"]


def test_a_line_of_the_spool_that_no_database_takes_is_put_aside_and_in_nobodys_way(
    office: Office, play: Callable[[Scene], None]
) -> None:
    wrong = office.record("a", "session_start")
    wrong["values"] = {**wrong["values"], "event_id": "short"}  # type: ignore[dict-item]  # it is a dict
    spool.append(str(office.home), wrong)
    spool.append(str(office.home), {"statement": "drop_table", "values": {}})
    spool.append(str(office.home), office.record("a", "agent_stop"))

    async def scene() -> None:
        async with office.at_work():
            await office.until(lambda: office.desk.handled)

    play(scene)
    assert office.desk.of("a") == [2]
    aside = [json.loads(line[9:]) for line in (office.home / "hooks.rejected").read_text().splitlines()]
    assert [record["statement"] for record in aside] == ["insert_event", "drop_table"]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[1]",
        b"\xff",
        *(b'{"statement":"insert_event","values":%s}' % one for one in (b"null", b"[1]", b'"x"')),
        b'{"statement":"count_dropped","values":{"agent":"a","event_name":"e","reason":"r","received_at":%d}}' % 2**70,
    ],
)
def test_a_line_that_means_nothing_is_put_aside_although_its_checksum_is_right(
    content: bytes, office: Office, play: Callable[[Scene], None]
) -> None:
    line = b"%08x %s" % (crc32(content), content)
    (office.home / "hooks.spool").write_bytes(line + b"\n")
    spool.append(str(office.home), office.record("a", "agent_stop"))

    async def scene() -> None:
        async with office.at_work():
            await office.until(lambda: office.desk.handled)

    play(scene)
    assert office.desk.of("a") == [1]
    assert (office.home / "hooks.rejected").read_bytes().strip() == line.strip()


@pytest.mark.parametrize("before", [[], ["session_start"]], ids=["the first", "behind what was read"])
def test_a_line_without_an_end_is_put_aside_and_nothing_behind_it_is_lost(
    before: list[str], office: Office, play: Callable[[Scene], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.hook.tail.LINE_BYTES_MAX", 2 * PIECE_BYTES)
    home = str(office.home)

    async def scene() -> None:
        async with office.at_work():
            for event_type in before:
                spool.append(home, office.record("a", event_type))
            await office.until(lambda: len(office.desk.handled) == len(before))
            with (office.home / "hooks.spool").open("ab") as file:
                file.write(b"\n" + b"\0" * (5 * PIECE_BYTES))
            spool.append(home, office.record("a", "agent_stop"))
            await office.until(lambda: len(office.desk.handled) == len(before) + 1)

    play(scene)
    assert (office.home / "hooks.rejected").read_bytes().count(b"\0") == 5 * PIECE_BYTES


class Book:
    """A history that cannot always be written to."""

    def __init__(self) -> None:
        self.drafts: list[Draft] = []

    async def __call__(self, drafts: Sequence[Draft]) -> None:
        await asyncio.sleep(0.01)
        known = {(draft.kind, draft.event_id) for draft in self.drafts}
        self.drafts += [draft for draft in drafts if (draft.kind, draft.event_id) not in known]


def test_every_event_is_told_of_twice_when_it_came_and_when_it_ended(
    office: Office, play: Callable[[Scene], None]
) -> None:
    office.put("a", "tool_use", "tool_use", "agent_stop")
    office.desk.errors["a", 3] = [ValueError("thing not found")]
    book = Book()

    async def scene() -> None:
        async with office.at_work(office.worker(report=book)):
            await office.until_all_ended()

    play(scene)
    ids = [bytes.fromhex(event_id) for event_id in office.rows("event_id")]
    told = {(ids.index(draft.event_id or b"") + 1, str(draft.kind)): draft for draft in book.drafts}
    assert sorted(told) == [
        (1, "hook_coalesced"),
        (1, "hook_received"),
        (2, "hook_done"),
        (2, "hook_received"),
        (3, "hook_dead"),
        (3, "hook_received"),
    ]
    dead = told[3, "hook_dead"]
    assert dead.reason == "unprocessable"
    assert HookDetail.decode(dead.detail) == HookDetail(
        agent="claude",
        session_id="a",
        event_type="agent_stop",
        event_name="agent_stop",
        received_at=office.rows("received_at")[2],
        attempts=1,
        error="ValueError: thing not found",
    )
    assert HookDetail.decode(told[3, "hook_received"].detail).error == ""
    assert told[2, "hook_received"].size == len('{"n": 2}')
    assert office.rows("received_reported, ended_reported") == [(1, 1)] * 3


def test_what_was_not_told_before_a_crash_is_told_at_the_next_start(
    office: Office, play: Callable[[Scene], None]
) -> None:
    office.put("a", "session_start", "agent_stop")
    book = Book()

    async def scene() -> None:
        async with office.at_work():  # nobody listens
            await office.until_all_ended()
        assert office.rows("received_reported, ended_reported") == [(0, 0)] * 2
        async with office.at_work(office.worker(report=book)):
            await office.until(lambda: len(book.drafts) == 4)

    play(scene)
    assert [str(draft.kind) for draft in book.drafts] == ["hook_received", "hook_done"] * 2


def test_only_what_is_in_the_history_is_pruned_and_that_after_seven_days(
    office: Office, play: Callable[[Scene], None]
) -> None:
    office.put("a", "session_start", "agent_stop", "error")
    book = Book()

    async def scene() -> None:
        async with office.at_work(office.worker(report=book)):
            await office.until_all_ended()
        office.do(lambda tx: tx.run("UPDATE hook_outbox SET ended_reported = 0 WHERE id = 2"))
        office.do(lambda tx: tx.run(f"UPDATE hook_outbox SET ended_at = ended_at - {7 * DAY} WHERE id <= 2"))
        async with office.at_work():
            await asyncio.sleep(1)

    play(scene)
    assert office.rows("id") == [2, 3]


def test_depth_and_lag_are_warned_of_once_in_fifteen_seconds_and_summed_up(
    office: Office, play: Callable[[Scene], None]
) -> None:
    office.desk.cost_s = 0.5
    office.put("a", *["agent_stop"] * 25)
    office.put("idle", "agent_stop")

    async def scene() -> None:
        async with office.at_work():
            await office.until_all_ended()

    with structlog.testing.capture_logs() as logs:
        play(scene)
    deep = [line for line in logs if line["event"] == "a session of hooks is deep"]
    late = [line for line in logs if line["event"] == "a session of hooks is late"]
    assert [(line["session_id"], line["depth"]) for line in deep] == [("a", 25)]
    assert [line["session_id"] for line in late] == ["a"]
    summaries = [line for line in logs if line["event"] == "hooks"]
    assert sum(line["processed"] for line in summaries) == 26
    assert summaries[-1]["lag_p99_s"] > 11


def test_what_has_been_open_for_a_minute_is_called_stuck(office: Office, play: Callable[[Scene], None]) -> None:
    office.put("a", "session_start")
    office.desk.gate = asyncio.Event()

    async def scene() -> None:
        async with office.at_work() as worker:
            await asyncio.sleep(50)
            assert worker.stuck == 0
            await asyncio.sleep(30)
            assert worker.stuck == 1
            assert office.desk.gate is not None
            office.desk.gate.set()
            await office.until_all_ended()
            await asyncio.sleep(16)
            assert worker.stuck == 0

    play(scene)
