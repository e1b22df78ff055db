"""Event streams: every entry once, in order, from where the reader was, whatever happens to the daemon meanwhile."""

import asyncio
import http.client
import json
import queue
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.device import ipc_events, operations
from holdfast.device.client import Client, Event
from holdfast.device.device import at_work
from holdfast.device.home import Home
from holdfast.device.ipc_link import RequestRefused
from holdfast.protocol.refusal import Refusal
from holdfast.store import history
from holdfast.wire.network import SystemNetwork
from tests.device.house import House, UnixConnection, at_home, furnish, new_house
from tests.relay.running import ANSWER_S


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    with new_house(tmp_path / "home") as made:
        yield made


class Stream:
    """One stream, read line by line."""

    def __init__(self, house: House, path: str = "/v1/events", **headers: str) -> None:
        self._house = house
        self._connection = UnixConnection(house.service.socket)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self._connection.request("GET", path, headers=named)
        self._response: http.client.HTTPResponse = self._connection.getresponse()
        assert self._response.status == 200
        assert self._response.getheader("content-type") == "text/event-stream"
        assert self._response.getheader("content-length") is None

    def block(self) -> dict[str, str]:
        """The next event or comment, by field."""
        fields = {}
        while line := self._response.readline().decode().rstrip("\n"):
            name, _, value = line.partition(": ")
            fields[name] = value
        return fields

    def entries(self, count: int) -> list[tuple[int, str]]:
        """Position and kind of the next entries."""
        found: list[tuple[int, str]] = []
        while len(found) < count:
            block = self.block()
            if "id" in block:
                log_id, _, seq = block["id"].partition(":")
                assert json.loads(block["data"])["seq"] == int(seq)
                assert log_id == self._house.look(history.head).log_id.hex()
                found.append((int(seq), block["event"]))
        return found

    def rest(self) -> bytes:
        return self._response.read()

    def close(self) -> None:
        self._connection.close()


Open = Callable[..., Stream]


@pytest.fixture
def stream(house: House) -> Iterator[Open]:
    """Opens streams, and closes them when the test is over."""
    opened: list[Stream] = []

    def open_one(path: str = "/v1/events", **headers: str) -> Stream:
        opened.append(Stream(house, path, **headers))
        return opened[-1]

    yield open_one
    for one in opened:
        one.close()


def test_a_stream_begins_now_and_tells_every_entry_that_is_written(house: House, stream: Open) -> None:
    one = stream()
    assert one.block() == {"": "holdfast"}
    sent = house.sent()
    assert one.entries(1) == [(3, "enqueued")]
    house.relay(sent)
    assert one.entries(2) == [(4, "attempted"), (5, "relayed")]


def test_a_reader_goes_on_exactly_where_it_was(house: House, stream: Open) -> None:
    for _ in range(300):  # more than is sent at once
        house.sent()
    head = house.look(history.head).seq
    assert stream(last_event_id="2").entries(head - 2) == [(seq, "enqueued") for seq in range(3, head + 1)]
    assert stream(last_event_id="250").entries(1) == [(251, "enqueued")]
    assert stream("/v1/events?after=250").entries(1) == [(251, "enqueued")]
    assert stream("/v1/events?after=7", last_event_id="250").entries(1) == [(251, "enqueued")]


def test_an_entry_is_told_whole_but_for_its_bytes(house: House, stream: Open) -> None:
    house.store(house.arrival(house.bob.message(house.me)))
    one = stream("/v1/events?kinds=stored", last_event_id="0")
    block = one.block()
    while block.get("event") != "stored":
        block = one.block()
    told = json.loads(block["data"])
    (entry,) = [entry for entry in house.entries() if entry.kind == "stored"]
    assert (told["sender"], told["event_id"]) == (house.bob.member, (entry.event_id or b"").hex())
    assert (told["was_stored"], told["reason"], told["at"]) == (True, "stored", entry.at)
    assert not {"detail", "chain"} & told.keys()


def test_only_the_kinds_that_are_asked_for_are_told(house: House, stream: Open) -> None:
    house.relay(house.sent())
    house.relay(house.sent())
    assert stream("/v1/events?kinds=relayed", last_event_id="2").entries(2) == [(5, "relayed"), (8, "relayed")]
    assert str(house.ask("GET", "/v1/events?kinds=shouted")) == "400 malformed"


class _Silent(SystemNetwork):
    """Nobody answers, and nobody says that there is nobody: a daemon does not find out by itself how it stands."""

    async def connect(self, *arguments: object) -> Any:
        await asyncio.Event().wait()


def test_whether_the_relay_is_there_is_told_without_a_position(tmp_path: Path) -> None:
    with new_house(tmp_path / "home", network=_Silent()) as house:
        one = Stream(house)
        assert one.block() == {"": "holdfast"}
        block = one.block()
        assert (block["event"], "id" in block) == ("disconnected", False)
        assert json.loads(block["data"])["relay"] == "http://127.0.0.1:9"
        house.loop.call_soon_threadsafe(house.service.daemon.connected, 7, 168)
        block = one.block()
        assert (block["event"], json.loads(block["data"])["pending_count"]) == ("connected", 7)
        one.close()


def test_a_silent_stream_says_that_it_is_still_there(
    house: House, stream: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ipc_events.KEEP_ALIVE_S == 15.0
    monkeypatch.setattr(ipc_events, "KEEP_ALIVE_S", 0.05)
    one = stream()
    blocks = [one.block() for _ in range(4)]
    assert blocks[0] == {"": "holdfast"}
    assert blocks[-1] == {"": "still here"}
    house.sent()
    assert one.entries(1) == [(3, "enqueued")]


@pytest.mark.parametrize(
    ("cursor", "expected"),
    [
        ("4", "409 cursor-ahead"),
        ("-1", "400 range_invalid"),
        ("x", "400 range_invalid"),
        ("1.5", "400 range_invalid"),
        ("ab:1", "400 range_invalid"),
        (f"{'0d' * 16}:", "400 range_invalid"),
    ],
)
def test_a_cursor_that_cannot_be_is_refused(house: House, cursor: str, expected: str) -> None:
    house.sent()
    assert str(house.ask("GET", "/v1/events", last_event_id=cursor)) == expected


def _restore(house: House, log_id: bytes) -> int:
    """Let the history go on as that of a copy; says where it forked."""
    fork = house.look(history.head).seq
    house.do(lambda tx: history.fork(tx, house.now, log_id))
    return fork


def test_a_cursor_of_the_log_before_a_restoration_counts_as_far_as_both_share_it(house: House, stream: Open) -> None:
    house.sent()
    before = house.look(history.head).log_id
    fork = _restore(house, b"\x0d" * 16)
    house.sent()  # there may be another entry in its place in the log of before
    assert stream(last_event_id=f"{before.hex()}:{fork}").entries(1) == [(fork + 1, "restored")]
    assert str(house.ask("GET", "/v1/events", last_event_id=f"{before.hex()}:{fork + 1}")) == "409 other_log"
    assert str(house.ask("GET", f"/v1/events?after={before.hex()}:{fork + 1}")) == "409 other_log"
    assert str(house.ask("GET", "/v1/events", last_event_id=f"{'0e' * 16}:0")) == "409 other_log"
    assert stream(last_event_id=f"{'0d' * 16}:{fork + 1}").entries(1) == [(fork + 2, "enqueued")]


def test_a_later_restoration_may_undo_what_an_earlier_one_shared(house: House) -> None:
    first = house.look(history.head).log_id
    fork = _restore(house, b"\x0d" * 16)
    _restore(house, b"\x0e" * 16)
    assert str(house.ask("GET", "/v1/events", last_event_id=f"{first.hex()}:{fork + 1}")) == "409 other_log"
    assert str(house.ask("GET", "/v1/events", last_event_id=f"{'0d' * 16}:{fork + 2}")) == "409 other_log"


def test_restorations_are_found_without_reading_the_history(house: House) -> None:
    steps = house.look(lambda tx: tx.rows(f"EXPLAIN QUERY PLAN {ipc_events._SQL['restored']}"))
    assert [step[-1] for step in steps] == ["SCAN history USING INDEX history_restored"]


def test_a_client_goes_on_across_a_new_log_id_and_is_told_of_a_restoration(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    furnish(home)
    copy = tmp_path / "earlier.db"
    with at_work(home) as device:
        device.do(operations.mark_backup)
    shutil.copyfile(home.database, copy)
    with at_home(home) as house, house.client() as client:
        told = (event for event in client.events(after=2) if event.seq is not None)
        house.sent()
        assert [next(told).kind, next(told).kind] == ["restored", "enqueued"]
        _restore(house, b"\x0d" * 16)  # as when the relay knows more than the log
        house.sent()
        last = [next(told), next(told)][-1]
        assert (last.kind, last.cursor) == ("enqueued", f"{'0d' * 16}:{last.seq}")
    shutil.copyfile(copy, home.database)
    with at_home(home) as house, house.client() as client:
        for _ in range(10):
            house.sent()
        with pytest.raises(RequestRefused) as refused:
            next(client.events(after=last.cursor))
        assert refused.value.refusal is Refusal.OTHER_LOG


def test_a_reader_who_was_away_too_long_is_told_and_gets_no_gap(house: House, stream: Open) -> None:
    for _ in range(5):
        house.sent()
    house.do(lambda tx: history.prune(tx, house.now, 4))
    assert str(house.ask("GET", "/v1/events", last_event_id="3")) == "410 range_pruned"
    assert stream(last_event_id="4").entries(1) == [(5, "enqueued")]


def test_streams_end_when_the_daemon_does(tmp_path: Path) -> None:
    with new_house(tmp_path / "home") as house:
        stream = Stream(house)
        house.sent()
        assert stream.entries(1) == [(3, "enqueued")]
    assert stream.rest() == b"", "an end, and not a break"
    stream.close()


def test_a_client_sees_every_entry_once_across_restarts_of_the_daemon(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    furnish(home)
    seen: queue.Queue[Event] = queue.Queue()
    client = Client(home=home.path)

    def read() -> None:
        for event in client.events(after=2):
            seen.put(event)

    reader = threading.Thread(target=read, daemon=True)
    expected: list[str] = []
    for restart in range(3):
        with at_home(home) as house:
            if not reader.is_alive():
                reader.start()
            expected += [house.sent().client_message_id for _ in range(20)]
            if restart < 2:
                continue  # away, perhaps before the reader has seen any of it
            found: list[Any] = []
            while len(found) < len(expected):
                event = seen.get(timeout=ANSWER_S)
                if event.seq is not None:
                    found.append(event)
    assert [event.seq for event in found] == list(range(3, 3 + len(expected)))
    assert [event.data["client_message_id"] for event in found] == expected
    client.stop()
    reader.join(ANSWER_S)
    client.close()
