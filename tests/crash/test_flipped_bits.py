"""One byte changed anywhere in a file that programs live on: noticed, or harmless; never another answer in silence."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.check import inspect
from holdfast.device.home import Home
from holdfast.hook import spool
from holdfast.relay import closing, identity
from holdfast.relay.settings import Settings
from holdfast.store import faults, history
from holdfast.store.sqlite import SqliteEngine
from tests.device.house import furnish
from tests.relay.place import Place, make_topic

IS_WHOLE = "HOLDFAST_CRASH_CYCLES" in os.environ
FLIP = 0x55

Look = Callable[[Path], Any]


class Noticed(Exception):
    """Somebody is told that something is wrong."""


def make_relay(directory: Path) -> Path:
    """A relay's database with a mesh, a topic, and messages that wait and that do not."""
    path = directory / "relay.db"
    place = Place(path, Settings(), SqliteEngine(path)).settle()
    make_topic(place, place.bob, place.carol)
    for number in range(8):
        place.expect(201, place.alice.message(place.bob, bytes([number]) * 200), place.bob.post("news"))
    seqs = [seq for (seq,) in place.rows("SELECT seq FROM delivery WHERE member = 'member-bob'")][:4]
    mesh, member, waited = place.bob.mesh, place.bob.member, dict.fromkeys(seqs, True)
    asyncio.run(place.relay.decide(lambda tx: closing.acknowledge(tx, place.now, mesh, member, waited)))
    place.engine.close()
    return path


def look_at_relay(path: Path) -> Any:
    """What the history says, and what its readers would be sent."""
    _, findings = inspect(path)
    if findings:
        raise Noticed
    engine = SqliteEngine(path, read_only=True)
    try:
        with engine.read() as transaction:
            waiting = transaction.rows(
                "SELECT member, delivery.seq, event FROM delivery JOIN message USING (seq) WHERE state = 'open' ORDER BY 1, 2"
            )
        return list(history.walk(engine)), waiting
    finally:
        engine.close()


def make_spool(directory: Path) -> Path:
    path = directory / "hooks.spool"
    path.write_bytes(b"".join(spool._line({"event_id": f"{number}", "payload": "x" * 50}) for number in range(5)))
    return path


def look_at_spool(path: Path) -> Any:
    records, damaged = spool.parse(path.read_bytes())
    if damaged:
        raise Noticed
    return records


def make_key(directory: Path) -> Path:
    furnish(Home(directory / "home"))
    return directory / "home" / "member.key"


def look_at_key(path: Path) -> Any:
    return Home(path.parent).secret(os.urandom)


def make_relay_key(directory: Path) -> Path:
    identity.Identity.load(directory, lambda size: b"\x07" * size)
    return directory / identity.RELAY_KEY


FILES: dict[str, tuple[Callable[[Path], Path], Look, int]] = {
    "a relay's database": (make_relay, look_at_relay, 97 if IS_WHOLE else 3_989),
    "the spool of hooks": (make_spool, look_at_spool, 1 if IS_WHOLE else 3),
    "a member's key": (make_key, look_at_key, 1),
    "a relay's key": (make_relay_key, identity.read_key, 1),
}
"""How it is made, what somebody would learn from it, and how far apart the bytes are that are changed."""


@pytest.mark.parametrize("name", FILES)
def test_a_changed_byte_is_noticed_or_harmless(tmp_path: Path, name: str) -> None:
    make, look, stride = FILES[name]
    path = make(tmp_path)
    content, expected = path.read_bytes(), look(path)
    noticed = 0
    for position in range(0, len(content), stride):
        path.write_bytes(content[:position] + bytes([content[position] ^ FLIP]) + content[position + 1 :])
        try:
            found = look(path)
        except (faults.Fault, Noticed):
            noticed += 1
        else:
            assert found == expected, f"byte {position}"
        for leftover in path.parent.glob(f"{path.name}-*"):
            leftover.unlink()
    assert noticed
