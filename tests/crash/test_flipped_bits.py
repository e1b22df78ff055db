"""One byte changed anywhere in a file that programs live on: noticed, or harmless; never another answer in silence."""

import asyncio
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.check import inspect
from holdfast.device.home import Home
from holdfast.hook import spool
from holdfast.hook.receiver import Call, receive
from holdfast.protocol import event as events
from holdfast.protocol.refusal import Refused
from holdfast.relay import closing, identity
from holdfast.relay.settings import Settings
from holdfast.store import faults, history
from holdfast.store.sqlite import SqliteEngine
from tests.device.desk import Desk
from tests.device.feed_world import Dwelling, Town
from tests.device.house import furnish
from tests.hook.receivers import take_in
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
    engine = _whole(path)
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


def make_membership(directory: Path) -> Path:
    furnish(Home(directory / "home"))
    return directory / "home" / "home.json"


def look_at_membership(path: Path) -> Any:
    return Home(path.parent).membership()


def make_device(directory: Path) -> Path:
    """A home's database with messages that came and that were sent, and documents with a conflict."""
    desk = Desk(directory / "device.db")
    for number in range(6):
        desk.sent("bob", f"mine {number}", meta={"number": number})
        desk.store(desk.arrival(desk.bob.message(desk.me), body=f"theirs {number}".encode()))
    desk.close()
    return desk.path


def look_at_device(path: Path) -> Any:
    """What was sent and what came, and all that is told of both."""
    engine = _whole(path)
    try:
        with engine.read() as transaction:
            came = transaction.rows("SELECT event_id, object_id, body, meta FROM inbox ORDER BY arrival")
            sent = transaction.rows("SELECT sequence, object_id, blob FROM operation_log ORDER BY sequence")
        return list(history.walk(engine)), came, sent
    finally:
        engine.close()


def make_documents(directory: Path) -> Path:
    _meet(directory)
    return directory / "home.db"


def make_relays_documents(directory: Path) -> Path:
    return _meet(directory)


def _meet(directory: Path) -> Path:
    """Two homes of one author who meet at a relay; the database of that."""
    town = Town(directory, "town")
    home, other = (Dwelling(directory, name, town.place.clock) for name in ("home", "other"))
    for one in (home, other):
        one.add(town)
        one.edit("both", f"by {one.name}")
        one.edit("own", f"of {one.name}")
    for one in (home, other, home):
        one.meet(town)
    for one in (home, other):
        one.close()
    town.place.engine.close()
    return town.path


def look_at_documents(path: Path) -> Any:
    """Which versions there are, what they say, and which of them count."""
    engine = _whole(path)
    try:
        with engine.read() as transaction:
            return transaction.rows("SELECT event_id, event, d, o, clock, status FROM snapshot ORDER BY event_id")
    finally:
        engine.close()


def look_at_relays_documents(path: Path) -> Any:
    """What whoever follows the feed is sent, and looks at before it takes anything."""
    engine = _whole(path)
    try:
        with engine.read() as transaction:
            rows = transaction.rows("SELECT seq, author, d, superseded_seq, event FROM snapshot ORDER BY seq")
    finally:
        engine.close()
    for *_, event in rows:
        try:
            events.verify(events.decode(event))
        except Refused as refused:
            raise Noticed from refused
    return rows


def make_hooks(directory: Path) -> Path:
    for number in range(8):
        said = {"session_id": "s", "hook_event_name": "UserPromptSubmit", "prompt": f"number {number}", "cwd": "/"}
        assert receive(Call(["--agent", "claude", "--home", str(directory), json.dumps(said)])) == "stored"
    take_in(directory)
    return directory / "hooks.db"


def look_at_hooks(path: Path) -> Any:
    """What handlers would be given, in which order."""
    engine = _whole(path)
    try:
        with engine.read() as transaction:
            return transaction.rows(
                "SELECT event_id, agent, session_id, event_type, payload FROM hook_outbox ORDER BY id"
            )
    finally:
        engine.close()


def _whole(path: Path) -> SqliteEngine:
    """A database in which nobody finds anything wrong."""
    _, findings = inspect(path)
    if findings:
        raise Noticed
    return SqliteEngine(path, read_only=True)


FILES: dict[str, tuple[Callable[[Path], Path], Look, int]] = {
    "a relay's database": (make_relay, look_at_relay, 97 if IS_WHOLE else 3_989),
    "the spool of hooks": (make_spool, look_at_spool, 1 if IS_WHOLE else 3),
    "the hooks' database": (make_hooks, look_at_hooks, 31 if IS_WHOLE else 1_997),
    "a home's database": (make_device, look_at_device, 61 if IS_WHOLE else 5_987),
    "a home's documents": (make_documents, look_at_documents, 61 if IS_WHOLE else 5_987),
    "a relay's documents": (make_relays_documents, look_at_relays_documents, 61 if IS_WHOLE else 5_987),
    "home.json": (make_membership, look_at_membership, 1),
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
