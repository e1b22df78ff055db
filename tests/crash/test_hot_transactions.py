"""The transactions that everything rests on, on a disk that loses power or fails at any step of them.

A relay accepts, acknowledges, takes receipts and sweeps; a device sends, is answered, stores what arrives and has it applied.
Whoever was told yes finds it there afterwards, once, and every rule of the database holds.
"""

import asyncio
import copy
import itertools
import os
import random
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from typing import Any

import apsw
import pytest

from holdfast.device import database as device_database
from holdfast.device import inbox
from holdfast.device.operations import Facts
from holdfast.protocol.event import Event
from holdfast.protocol.history import Kind
from holdfast.protocol.schedule import DAY, SECOND
from holdfast.relay import closing
from holdfast.relay.database import SCHEMA as RELAY_SCHEMA
from holdfast.relay.settings import FeedSettings, Settings
from holdfast.store import faults, history
from holdfast.store.check import check
from tests.crash.test_power_cut import FIRST, SmallJournal, named
from tests.device.desk import START, Book, Desk
from tests.disk import Disk
from tests.people import MESH, Person
from tests.relay.feed_client import Author
from tests.relay.place import Place

CUTS = int(os.environ.get("HOLDFAST_CRASH_CYCLES", "8")) * 5
DEEDS_BEFORE_A_CUT = 12
STEPS_MAX = 200  # more than any one transaction takes

Said = dict[str, set[Any]]


class PowerCut(Exception):
    """The machine is off; whatever was under way, nobody got an answer."""


class Office:
    """A relay on such a disk, and what it said yes to."""

    settings = Settings()

    def __init__(self, disk: Disk, people: Mapping[str, Person], said: Said, boots: int) -> None:
        self.disk = disk
        self.people = people
        self.said = said
        self.engine = SmallJournal("relay", vfs=disk.boot(), exclusive=True)
        self.place = Place(None, self.settings, self.engine)  # type: ignore[arg-type]  # there is no path
        self.place.seed = boots * 1_000_000  # randomness does not repeat itself
        self.place.now += boots * SECOND

    def found(self) -> None:
        """A mesh of three."""
        alice, bob, carol = (self.people[name] for name in ("alice", "bob", "carol"))
        self.place.alice, self.place.bob, self.place.carol = alice, bob, carol
        self.place.settle()

    def tell(self, what: str, value: Any) -> None:
        """Somebody hears it, unless the power is gone."""
        if self.disk.off:
            raise PowerCut
        self.said[what].add(value)

    def accept(self) -> None:
        self._publish(self.people["alice"].message(self.people["bob"]))

    def accept_many(self) -> None:
        self._publish(*(self.people["carol"].message(self.people["bob"], bytes([n]) * 400) for n in range(5)))

    def _publish(self, *events: Event) -> None:
        for event, answer in zip(events, self.place.publish(*events), strict=True):
            assert answer.http_status in (201, 503), answer
            if answer.http_status == 201:
                self.tell("accepted", event.id)

    def acknowledge(self) -> None:
        waiting = self._waiting()
        if waiting:
            bob, now = self.people["bob"], self.place.now
            done = self.place.relay.decide(
                lambda tx: closing.acknowledge(tx, now, bob.mesh, bob.member, dict.fromkeys(waiting, True))
            )
            for seq in asyncio.run(done).closed:
                self.tell("delivered", seq)

    def receipt(self) -> None:
        owed = self.place.rows(
            "SELECT message.event_id, message.sender FROM delivery JOIN message USING (message_id) "
            "WHERE state = 'delivered' AND receipted_at IS NULL AND member = 'member-bob' ORDER BY delivery.seq LIMIT 1"
        )
        for event_id, sender in owed:
            to = self.people[str(sender).removeprefix("member-")]
            self._publish(self.people["bob"].receipt(to, bytes(event_id).hex()))

    def sweep(self) -> None:
        self.place.now += 8 * DAY  # longer than anything waits
        asyncio.run(self.place.relay.sweep())

    def _waiting(self) -> list[int]:
        rows = self.place.rows(
            "SELECT seq FROM delivery WHERE state = 'open' AND member = 'member-bob' ORDER BY seq LIMIT 3"
        )
        return [int(seq) for (seq,) in rows]

    def lost(self) -> list[str]:
        assert list(check(self.engine, RELAY_SCHEMA)) == []
        accepted = {
            bytes(entry.event_id or b"").hex()
            for entry in history.walk(self.engine)
            if entry.kind in (Kind.ACCEPTED, Kind.RECEIPT)
        }
        lost = [f"accepted {event}" for event in self.said["accepted"] - accepted]
        again = {
            int(seq)
            for (seq,) in self.place.rows("SELECT seq FROM delivery WHERE state = 'open' AND member = 'member-bob'")
        }
        return lost + [f"delivered {seq}" for seq in self.said["delivered"] & again]


class Library(Office):
    """The same relay with documents: whatever may be compacted is, with the next sweep."""

    settings = Settings(feed=FeedSettings(open=True, compact_after_hours=0, recent_count=1, tombstones_max=1))

    def edit(self) -> None:
        self._publish_snapshots(*(self._version(d, {"A": self._next()}) for d in ("plan", "list")))

    def disagree(self) -> None:
        """Two devices that knew nothing of each other, but everything before."""
        known = self._next()
        for clock in ({"A": known + 1, "B": known}, {"A": known, "B": known + 1}):
            self._publish_snapshots(self._version("poem", clock))

    def delete(self) -> None:
        self._publish_snapshots(*(self._version(d, {"A": self._next()}, o="del") for d in ("list", "map")))

    def _next(self) -> int:
        """A counter that no snapshot has had."""
        return 2 * int(next(self.people["alice"].sequences)) + 1

    def _version(self, d: str, clock: dict[str, int], **more: Any) -> Event:
        return Author("library").snapshot(d, clock, at_s=self.place.now // SECOND, **more)

    def _publish_snapshots(self, *events: Event) -> None:
        for event, answer in zip(events, self.place.publish(*events), strict=True):
            assert answer.http_status in (200, 201, 503), answer
            if answer.http_status != 503:
                self.tell("snapshots", event.id)

    def lost(self) -> list[str]:
        told = {bytes(e.event_id or b"").hex() for e in history.walk(self.engine) if e.kind is Kind.SNAPSHOT}
        return super().lost() + [f"snapshot {event}" for event in self.said["snapshots"] - told]


class Drawer(Desk):
    """A device's database on such a disk, and what it said."""

    def __init__(self, disk: Disk, people: Mapping[str, Person], said: Said, boots: int) -> None:
        self.disk = disk
        self.said = said
        self.engine = SmallJournal("device", vfs=disk.boot(), exclusive=True)
        self._borrow(people, boots)
        device_database.prepare(self.engine, lambda: self.now, self.random)

    def _borrow(self, people: Mapping[str, Person], boots: int) -> None:
        self.now = START + boots * SECOND
        self.me, self.bob, self.carol = (people[name] for name in ("alice", "bob", "carol"))
        self.facts = Facts(mesh=MESH, member=self.me.member)
        self.book = Book(self.me, self.bob, self.carol)
        self._bytes = itertools.count(boots * 1_000_000)
        self._positions = itertools.count(1 + boots * 1_000)

    def found(self) -> None:
        """Nothing is needed before."""

    def tell(self, what: str, value: Any) -> None:
        if self.disk.off:
            raise PowerCut
        self.said[what].add(value)

    def accept(self) -> None:
        answer = self.send("bob", "x" * 300)
        self.tell("sent", str(answer.body["client_message_id"]))

    def answered(self) -> None:
        for (name,) in self.rows(
            "SELECT client_message_id FROM operation_log WHERE status = 'pending' AND destination_kind = 'dm' LIMIT 1"
        ):
            self.relay(self.item(str(name)))
            self.tell("relayed", str(name))

    def arrive(self) -> None:
        events = [self.bob.message(self.me, bytes([n]) * 300) for n in range(3)]
        self.store(*(self.arrival(event) for event in events))
        for event in events:
            self.tell("arrived", event.id)

    def apply(self) -> None:
        for (name,) in self.rows("SELECT id FROM inbox WHERE applied_at IS NULL LIMIT 1"):
            self.do(lambda tx, name=name: inbox.acknowledge(tx, self.facts, self.now, [str(name)]))  # type: ignore[misc]
            self.tell("applied", str(name))

    def lost(self) -> list[str]:
        assert list(check(self.engine, device_database.SCHEMA)) == []
        there = {
            "sent": "SELECT client_message_id FROM operation_log",
            "relayed": "SELECT client_message_id FROM operation_log WHERE status = 'done'",
            "applied": "SELECT id FROM inbox WHERE applied_at IS NOT NULL",
            "arrived": "SELECT lower(hex(event_id)) FROM inbox",
        }
        return [
            f"{what} {value}"
            for what, statement in there.items()
            for value in self.said[what] - {str(found) for (found,) in self.rows(statement)}
        ]


WORLDS: dict[str, tuple[Any, list[str]]] = {
    "relay": (Office, ["accept", "accept_many", "acknowledge", "receipt", "sweep"]),
    "feed": (Library, ["edit", "disagree", "delete", "sweep"]),
    "device": (Drawer, ["accept", "answered", "arrive", "apply"]),
}


def people() -> dict[str, Person]:
    return {name: Person(name) for name in ("alice", "bob", "carol")}


@cache
def begun(name: str) -> tuple[Disk, dict[str, Person]]:
    """A disk on which the world has lived for a while in peace."""
    kind, deeds = WORLDS[name]
    disk, who = Disk(), people()
    world = kind(disk, who, defaultdict(set), 0)
    world.found()
    for deed in [*deeds, *deeds]:
        getattr(world, deed)()
    world.engine.close()
    disk.off = True
    return disk, who


def another(name: str) -> tuple[Disk, dict[str, Person]]:
    found, who = begun(name)
    disk = Disk()
    disk.files = copy.deepcopy(found.files)
    return disk, copy.deepcopy(who)


def reopened(name: str, disk: Disk, who: dict[str, Person], said: Said, boots: int) -> list[str]:
    """What is lost of what was said, after the machine was started again."""
    disk.trouble = lambda step, what: None
    world = WORLDS[name][0](disk, who, said, boots)
    lost: list[str] = world.lost()
    world.engine.close()
    return lost


def spoil(disk: Disk, at: int, trouble: Callable[[], None]) -> None:
    """Have something happen at the n-th change of the disk from now on."""
    start = disk.steps

    def troubled(step: int, what: str) -> None:
        if step == start + at:
            trouble()

    disk.trouble = troubled


@pytest.mark.parametrize("name", WORLDS)
def test_a_power_cut_loses_nothing_that_was_said(name: str, record_property: Callable[[str, object], None]) -> None:
    kind, deeds = WORLDS[name]
    lost = []
    for seed in range(FIRST, FIRST + CUTS):
        luck = random.Random(seed)
        disk, who = another(name)
        said: Said = defaultdict(set)
        world = kind(disk, who, said, 1)
        spoil(disk, luck.randrange(1, 200), lambda disk=disk, luck=luck: disk.cut(luck))  # type: ignore[misc]
        with suppress(PowerCut):
            for _ in range(DEEDS_BEFORE_A_CUT):
                getattr(world, luck.choice(deeds))()
        if not disk.off:
            disk.cut(luck)
        with named(seed):
            lost += [f"seed {seed}: {what}" for what in reopened(name, disk, who, said, 2)]
    assert lost == []
    record_property("power cuts of a device" if name == "device" else "power cuts of a relay", CUTS)


@pytest.mark.parametrize(("name", "deed"), [(name, deed) for name, (_, deeds) in WORLDS.items() for deed in deeds])
def test_an_error_of_the_disk_at_any_step_is_never_answered_with_a_yes(
    name: str, deed: str, record_property: Callable[[str, object], None]
) -> None:
    """The n-th change of the disk fails, for every n that the transaction has; then the power goes, too."""
    kind, deeds = WORLDS[name]
    for nth in range(1, STEPS_MAX):
        disk, who = another(name)
        said: Said = defaultdict(set)
        world = kind(disk, who, said, 1)
        for before in deeds[: deeds.index(deed)]:  # so that there is something to do
            getattr(world, before)()
        failed: list[int] = []

        def fail(failed: list[int] = failed, nth: int = nth) -> None:
            failed.append(nth)
            raise apsw.IOError("failed")

        spoil(disk, nth, fail)
        with suppress(faults.Fault):
            getattr(world, deed)()
        disk.cut()
        assert reopened(name, disk, who, said, 2) == [], f"step {nth}"
        if not failed:
            assert nth > 1, "it wrote nothing at all"
            record_property("errors of the disk", nth - 1)
            return
    pytest.fail(f"it takes more than {STEPS_MAX} steps")
