"""Any order of sends, connections, cuts, acknowledgements, receipts, sweeps and expiries, against a model that forgets nothing."""

import os
from collections import Counter
from dataclasses import dataclass, field
from random import Random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from holdfast.protocol.event import Event
from holdfast.protocol.history import Kind
from holdfast.protocol.refusal import Refusal
from holdfast.relay.database import SCHEMA
from holdfast.relay.settings import Limits, QueueSettings, Retention, Settings
from holdfast.store.check import check
from tests.people import Person
from tests.relay.queue_world import Reader, World

EXAMPLES = int(os.environ.get("HOLDFAST_QUEUE_SCHEDULES", "30"))
CAP = 6
DAY = 86_400_000_000
SETTINGS = Settings(
    limits=Limits(queue_messages_max=CAP, messages_burst=1_000_000),
    retention=Retention(queue_ttl_days=1, sweep_rows_max=3),
    queue=QueueSettings(batch_messages=3, window_messages=4, pause_ms=0),
)

NAMES = ["alice", "bob", "carol"]
READERS = ["bob", "bob", "carol", "alice"]  # most goes to one, so that queues fill
WEIGHTS = {
    "send": 8,
    "post": 2,
    "connect": 5,
    "let_through": 3,
    "acknowledge": 4,
    "catch_up": 6,
    "receipt": 5,
    "cut": 2,
    "acknowledge_what_is_anothers": 1,
    "let_time_pass": 2,
    "sweep": 1,
    "restart": 1,
    "revoke_carol": 1,
}
ACTIONS = [action for action, weight in WEIGHTS.items() for _ in range(weight)]


@dataclass
class Row:
    """A delivery as the model has it."""

    seq: int
    event_id: str
    sender: str
    expires_at: int
    is_receipt: bool
    state: str = "open"
    is_receipted: bool = False


@dataclass
class Member:
    person: Person
    rows: dict[int, Row] = field(default_factory=dict)
    disk: set[int] = field(default_factory=set)  # what it has stored
    reader: Reader | None = None
    closed_before: set[int] = field(default_factory=set)  # when its reader connected
    is_out: bool = False

    def waiting(self, now: int) -> list[Row]:
        return [row for row in self.rows.values() if row.state == "open" and row.expires_at > now]

    @property
    def count(self) -> int:
        return sum(row.state == "open" and not row.is_receipt for row in self.rows.values())


class Queues(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.world = World(SETTINGS)
        place = self.world.place
        self.members = {person.name: Member(person) for person in (place.alice, place.bob, place.carol)}
        self.outcomes: Counter[str] = Counter()

    @property
    def now(self) -> int:
        return self.world.place.now

    @rule(action=st.sampled_from(ACTIONS), luck=st.randoms(use_true_random=False))
    def act(self, action: str, luck: Random) -> None:
        """One rule for all, so that each has its weight in every schedule."""
        name, other = luck.choice(READERS), luck.choice(NAMES)
        match action:
            case "send":
                self.send(other, name, luck.randint(1, 5), luck.choice([None, 1, DAY // 2, 3 * DAY]))
            case "post":
                self.post(other)
            case "connect":
                self.connect(name, replay=luck.random() < 0.3)
            case "let_through":
                self.let_through(name, luck.randint(1, 9))
            case "acknowledge":
                self.acknowledge(name, luck)
            case "receipt":
                self.receipt(name, other)
            case "acknowledge_what_is_anothers":
                self.acknowledge_what_is_anothers(name, other)
            case "let_time_pass":
                self.let_time_pass(luck.choice([0.1, 0.5, 1.0, 1.1]))
            case "catch_up" | "cut":
                getattr(self, action)(name)
            case _:
                getattr(self, action)()

    def send(self, sender: str, to: str, count: int, lifetime: int | None) -> None:
        for _ in range(count):
            self._send(sender, to, lifetime)

    def _send(self, sender: str, to: str, lifetime: int | None) -> None:
        source, target = self.members[sender], self.members[to]
        expires_at = None if lifetime is None else self.now + lifetime
        event = source.person.message(target.person, expires_at=expires_at)
        (answer,) = self.world.publish(event)
        if source.is_out:
            assert answer.refusal is Refusal.NOT_A_MEMBER
        elif target.is_out:
            assert answer.refusal is Refusal.DESTINATION_UNKNOWN
        elif self._has_room(target):
            assert answer.http_status == 201, answer
            self._queue(target, answer.members["history_id"], event, source, expires_at)
        else:
            assert answer.refusal is Refusal.QUEUE_FULL

    def post(self, sender: str) -> None:
        source = self.members[sender]
        event = source.person.post("news")
        (answer,) = self.world.publish(event)
        if source.is_out:
            assert answer.refusal is Refusal.NOT_A_MEMBER
            return
        assert answer.http_status == 201, answer
        skipped = []
        for name in ("bob", "carol"):  # who subscribed
            target = self.members[name]
            if target is source or target.is_out:
                continue
            if self._has_room(target):
                self._queue(target, answer.members["history_id"], event, source, None)
            else:
                skipped.append(target.person.member)
                self.outcomes["full"] += 1
        assert answer.members["skipped"] == skipped

    def connect(self, name: str, *, replay: bool) -> None:
        member = self.members[name]
        if member.is_out:
            return
        older = member.reader
        member.closed_before = set() if replay else {row.seq for row in member.rows.values() if row.state != "open"}
        member.reader = Reader(self.world, member.person, replay=replay)
        self.world.settle()
        if older is not None and not older.is_gone:
            raise AssertionError("the older connection stayed")
        status = next(frame[3] for frame in member.reader.frames if frame[2:3] == ("STATUS",))
        assert status["pending_count"] == sum(not row.is_receipt for row in member.waiting(self.now))

    def let_through(self, name: str, count: int) -> None:
        reader = self.members[name].reader
        if reader is not None:
            reader.let_through(count)
            self.world.settle()

    def acknowledge(self, name: str, luck: Random) -> None:
        member = self.members[name]
        if member.reader is None or member.reader.is_gone or not member.reader.messages:
            return
        seqs = sorted({seq for seq, _, _ in member.reader.messages})
        self._acknowledge(member, luck.sample(seqs, luck.randint(1, len(seqs))))

    def catch_up(self, name: str) -> None:
        """Whoever reads and acknowledges gets all there is on the connection it has, however long that has been open."""
        member = self.members[name]
        if member.reader is None or member.reader.is_gone:
            return
        self._take_all(member)
        assert member.waiting(self.now) == []

    def acknowledge_what_is_anothers(self, name: str, other: str) -> None:
        member, seqs = self.members[name], [*self.members[other].rows]
        if member.reader is None or member.reader.is_gone or member is self.members[other] or not seqs:
            return
        unknown = [seq for seq in seqs if seq not in member.rows]
        if unknown:
            member.reader.say("QUEUE", "q", "ACK", unknown)
            self.world.settle()
            assert member.reader.frames[-1][2] == "ERR"

    def cut(self, name: str) -> None:
        reader = self.members[name].reader
        if reader is not None:
            reader.cut()
            self.world.settle()

    def restart(self) -> None:
        for member in self.members.values():
            if member.reader is not None:
                member.reader.cut()
        self.world.settle()
        self.world.restart()

    def let_time_pass(self, share: float) -> None:
        self.world.place.now += int(share * DAY)
        for member in self.members.values():
            member.person.now_s = self.now // 1_000_000

    def sweep(self) -> None:
        self.world.run(self.world.place.relay.sweep())
        for member in self.members.values():
            self._expire(member)

    def receipt(self, name: str, to: str) -> None:
        member, target = self.members[name], self.members[to]
        due = [row for row in member.rows.values() if row.sender == to and not row.is_receipt]
        if not due or member.is_out:
            return
        chosen = due[-3:]
        event = member.person.receipt(target.person, *(row.event_id for row in chosen))
        (answer,) = self.world.publish(event)
        taken = [row for row in chosen if row.state != "open" and not row.is_receipted]
        if target.is_out:
            assert answer.refusal is Refusal.DESTINATION_UNKNOWN
        elif any(row.state == "open" for row in chosen):
            assert answer.refusal is Refusal.RECEIPT_EARLY
        elif not taken:
            assert answer.refusal is Refusal.RECEIPT_UNKNOWN
        else:
            assert answer.http_status == 201
            assert answer.members["skipped"] == [row.event_id for row in chosen if row not in taken]
            for row in taken:
                row.is_receipted = True
            self._queue(target, answer.members["history_id"], event, member, None, is_receipt=True)

    def revoke_carol(self) -> None:
        carol = self.members["carol"]
        if carol.is_out:
            return
        was_connected = carol.reader is not None and not carol.reader.is_gone
        (answer,) = self.world.publish(self.members["alice"].person.revoke(carol.person))
        assert answer.http_status == 201
        carol.is_out = True
        for row in carol.rows.values():
            if row.state == "open":
                row.state = "dropped"
        if was_connected:
            assert carol.reader is not None
            assert carol.reader.closed is Refusal.MEMBER_REVOKED

    @invariant()
    def the_store_is_as_the_model_says(self) -> None:
        if not hasattr(self, "world"):
            return
        stored = {
            (member, seq): state
            for member, seq, state in self.world.place.rows("SELECT member, seq, state FROM delivery")
        }
        assert stored == {
            (member.person.member, row.seq): row.state
            for member in self.members.values()
            for row in member.rows.values()
        }
        assert list(check(self.world.place.engine, SCHEMA)) == []

    @invariant()
    def readers_get_what_is_theirs_in_order(self) -> None:
        for member in self.members.values() if hasattr(self, "members") else ():
            if member.reader is not None:
                _check_reader(member)

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        for member in self.members.values():
            if not member.is_out:
                self._finish(member)
        self._check_balance()
        self.world.close()

    def _finish(self, member: Member) -> None:
        """Whoever comes back at last gets exactly what is left, and then has exactly what was accepted and not closed."""
        expected = [row.seq for row in member.waiting(self.now)]
        member.closed_before = {row.seq for row in member.rows.values() if row.state != "open"}
        member.reader = Reader(self.world, member.person)
        self._take_all(member)
        assert [seq for seq, _, _ in member.reader.messages] == expected
        assert member.reader.frames.count(next(f for f in member.reader.frames if f[2:3] == ("LIVE",))) == 1
        _check_reader(member)
        assert sorted(seq for seq in member.disk if member.rows[seq].state == "delivered") == [
            row.seq for row in member.rows.values() if row.state == "delivered"
        ]

    def _take_all(self, member: Member) -> None:
        assert member.reader is not None
        member.reader.let_through(1000)
        self.world.settle()
        done = 0
        while len(member.reader.messages) > done:
            new = [seq for seq, _, _ in member.reader.messages[done:]]
            done += len(new)
            self._acknowledge(member, new)

    def _check_balance(self) -> None:
        """Every recipient of every accept has one outcome."""
        entries = self.world.place.entries()
        named = Counter(
            outcome for e in entries if e.kind in (Kind.ACCEPTED, Kind.RECEIPT) for _, outcome in e.recipients
        )
        closed = Counter(e.kind.value for e in entries if e.recipient is not None)
        open_ = sum(row.state == "open" for member in self.members.values() for row in member.rows.values())
        assert named["full"] == self.outcomes["full"]
        assert named["queued"] == sum(closed.values()) + open_
        assert closed == Counter(
            row.state for member in self.members.values() for row in member.rows.values() if row.state != "open"
        )

    def _acknowledge(self, member: Member, seqs: list[int]) -> None:
        assert member.reader is not None
        member.disk |= set(seqs)
        member.reader.say("QUEUE", "q", "ACK", seqs)
        self.world.settle()
        assert any(frame[2:] == ("ACKED", tuple(sorted(seqs))) for frame in member.reader.frames)
        for seq in seqs:
            if member.rows[seq].state == "open":
                member.rows[seq].state = "delivered"

    def _has_room(self, member: Member) -> bool:
        if member.count >= CAP:
            expired = [row for row in member.rows.values() if row.state == "open" and not row.is_receipt]
            for row in [row for row in expired if row.expires_at <= self.now][: SETTINGS.retention.sweep_rows_max]:
                row.state = "expired"
        return member.count < CAP

    def _expire(self, member: Member) -> None:
        for row in member.rows.values():
            if row.state == "open" and row.expires_at <= self.now:
                row.state = "expired"

    def _queue(
        self, to: Member, seq: int, event: Event, source: Member, expires_at: int | None, *, is_receipt: bool = False
    ) -> None:
        last = self.now + DAY
        until = last if expires_at is None else min(last, expires_at)
        to.rows[seq] = Row(seq, event.id, source.person.name, until, is_receipt)


def _check_reader(member: Member) -> None:
    assert member.reader is not None
    is_live, first, last_replayed, last = False, True, 0, 0
    unacknowledged: set[int] = set()
    for frame in member.reader.frames:
        word = frame[2] if len(frame) > 2 else frame[0]
        if word == "LIVE":
            assert not is_live, "LIVE comes once"
            is_live = True
        elif word == "MSG":
            seq, about = frame[3], frame[4]
            assert member.rows[seq].seq == seq, "it is the member's own"
            assert about["was_stored"] is not is_live
            if about.get("replayed"):
                assert (last, is_live) == (0, False), "what was delivered before comes first"
                assert seq > last_replayed
                last_replayed = seq
            else:
                assert seq > last, "in order, each once"
                assert seq not in member.closed_before, "what was closed does not come again"
                last = seq
            unacknowledged.add(seq)
            assert len(unacknowledged) <= SETTINGS.queue.window_messages
        elif word == "ACKED":
            unacknowledged -= set(frame[3])
        elif word == "STATUS":
            assert first
            first = False


TestQueues = Queues.TestCase
TestQueues.settings = settings(max_examples=EXAMPLES, stateful_step_count=50, deadline=None)
