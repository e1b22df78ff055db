"""What the handlers of several processes did, and whether that is as it was promised."""

from pathlib import Path
from typing import NamedTuple

from holdfast.protocol.hook_queue import Item
from tests.hook.receivers import rows


class Line(NamedTuple):
    what: str
    at: int  # nanoseconds
    pid: int
    session: str
    number: int
    event_id: str


def read(path: Path) -> list[Line]:
    if not path.exists():
        return []
    words = [line.split() for line in path.read_text().splitlines() if line]
    return sorted((Line(w[0], int(w[1]), int(w[2]), w[3], int(w[4]), w[5]) for w in words), key=lambda line: line.at)


def assert_one_at_a_time(lines: list[Line], died_at: dict[int, int]) -> None:
    """Of one session, nothing begins before what began earlier has ended, or its process has."""
    under_way: dict[str, Line] = {}
    for line in lines:
        if line.what == "begin":
            before = under_way.get(line.session)
            assert before is None or died_at.get(before.pid, line.at + 1) <= line.at, (before, line)
            under_way[line.session] = line
        else:
            assert under_way.pop(line.session).pid == line.pid


def assert_handled_in_order(lines: list[Line], home: Path, stored: set[int]) -> None:
    """Every event that was said to be stored has ended; the critical ones handled, in order, or dead with a reason."""
    found = rows(home, "id, event_id, session_id, event_type, status, last_error, json_extract(payload, '$.n')")
    assert stored <= {row[6] for row in found}
    assert len({row[6] for row in found}) == len(found)
    ends: dict[str, list[int]] = {}
    for line in lines:
        if line.what == "end" and line.number not in ends.setdefault(line.session, []):
            ends[line.session].append(line.number)
    expected: dict[str, list[int]] = {}
    for row_id, event_id, session, event_type, status, error, number in found:
        assert status in ("done", "dead", "coalesced"), (row_id, status)
        assert {line.event_id for line in lines if line.number == number} <= {event_id}
        if Item(row_id, event_type).is_critical:
            assert status == "done" or (status == "dead" and error), (row_id, status, error)
            if status == "done":
                expected.setdefault(session, []).append(number)
    critical = {number for numbers in expected.values() for number in numbers}
    assert {name: [number for number in numbers if number in critical] for name, numbers in ends.items()} == expected
