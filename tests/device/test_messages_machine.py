"""Any life of messages: whatever happens to them in whatever order, statuses follow the table and every rule holds."""

import itertools
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from holdfast.device import arrivals, inbox, outbox, requeue, scheduled
from holdfast.device.forks import Fork
from holdfast.device.outbox import Committed, Item
from holdfast.device.requeue import Requeued
from holdfast.protocol.outbox import REQUEUES, TRANSITIONS, RelayWord, Signal, Status, word_at_hand
from holdfast.protocol.payload import Payload
from holdfast.protocol.reaction import REACTIONS, Confirmation, FaultKind
from holdfast.protocol.refusal import Refusal
from tests.device.desk import LOG, Desk

answers = st.sampled_from(
    [
        Confirmation.CREATED,
        Confirmation.DUPLICATE,
        FaultKind.TIMEOUT,
        Refusal.QUEUE_FULL,
        Refusal.HELD_BACK,
        Refusal.STALE_KEY,
        Refusal.MAY_NOT_POST,
        Refusal.IDEMPOTENCY_KEY_REUSED,
    ]
)
words = st.sampled_from([None, RelayWord.NOT_COMMITTED, RelayWord.COMMITTED, RelayWord.UNREACHABLE])
picks = st.integers(0, 1_000)


class LifeOfMessages(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.desk = Desk(Path(self.folder.name) / "device.db")
        self.statuses: dict[str, Status] = {}  # by client_message_id
        self.receipted: dict[str, str] = {}  # likewise, with the status in the receipt
        self.lost: set[str] = set()  # by a restored relay, by id
        self.relay_ids = itertools.count()
        self.log_number = 0
        self.forks: list[Fork] = []

    @property
    def log_id(self) -> bytes:
        return LOG[:-1] + bytes([self.log_number])

    def pick(self, number: int, *statuses: Status) -> Item | None:
        names = [name for name, status in self.statuses.items() if not statuses or status in statuses]
        return self.desk.item(names[number % len(names)]) if names else None

    def moved(self, item: Item, signal: Signal) -> None:
        self.statuses[item.client_message_id] = TRANSITIONS[item.status, signal]

    @rule(to=st.sampled_from(["bob", "carol", "@news"]), soon=st.booleans())
    def send(self, to: str, soon: bool) -> None:
        later = None if soon else self.desk.now + 5
        name = str(self.desk.send(to, not_before=later).body["client_message_id"])
        if soon:
            self.statuses[name] = Status.PENDING

    @rule()
    def wait(self) -> None:
        desk = self.desk
        desk.now += 3
        due = [each for each in desk.look(scheduled.waiting) if each.not_before <= desk.now]
        assert desk.do(lambda tx: scheduled.release(tx, desk.facts, desk.now, desk.random)) == len(due)
        self.statuses |= {each.client_message_id: Status.PENDING for each in due}

    @rule(number=picks)
    def cancel(self, number: int) -> None:
        desk, waiting = self.desk, self.desk.look(scheduled.waiting)
        if waiting:
            name = waiting[number % len(waiting)].client_message_id
            desk.do(lambda tx: scheduled.cancel(tx, desk.facts, desk.now, name))
            assert name not in {each.client_message_id for each in desk.look(scheduled.waiting)}

    @rule(number=picks, says=answers)
    def attempt(self, number: int, says: Confirmation | FaultKind | Refusal) -> None:
        item = self.pick(number, Status.PENDING)
        if item is None:
            return
        claimed = self.desk.claim(item)
        self.desk.settle(claimed, says, log_id=self.log_id)
        waits = says is Refusal.MAY_NOT_POST and item.destination_kind == "topic" and item.id in self.lost
        self.moved(claimed, Signal.POSTPONED if waits else REACTIONS[says].signal)

    @rule(number=picks)
    def claim(self, number: int) -> None:
        item = self.pick(number, Status.PENDING)
        if item is not None:
            self.desk.claim(item)
            self.moved(item, Signal.CLAIMED)

    @rule(number=picks, word=words, force=st.booleans())
    def requeue(self, number: int, word: RelayWord | None, force: bool) -> None:
        desk, item = self.desk, self.pick(number)
        if item is None:
            return
        committed = self.committed() if word is RelayWord.COMMITTED else None
        done = desk.do(
            lambda tx: requeue.requeue(
                tx, desk.facts, desk.now, desk.random, item.id, word=word, committed=committed, force=force
            )
        )
        if item.status is Status.ABORTED:  # it was requeued before, just so
            assert isinstance(done, Requeued)
            assert done.id == item.superseded_by
            return
        known = word_at_hand(item.status, item.attempts, item.broker_message_id is not None)
        known = known or word or RelayWord.UNREACHABLE
        if item.client_message_id in self.receipted and (item.status, RelayWord.RECEIPTED) in REQUEUES:
            has_arrived = item.destination_kind == "dm" and self.receipted[item.client_message_id] == "stored"
            proven = RelayWord.RECEIPTED if has_arrived else RelayWord.RECEIPTED_BY_SOME
            known = known if known is RelayWord.COMMITTED else proven
        ruling = REQUEUES[item.status, known]
        assert isinstance(done, Requeued) is (ruling.refusal is None or (ruling.force_helps and force))
        if isinstance(done, Requeued):
            self.moved(item, Signal.REQUEUED)
            self.statuses[done.client_message_id] = Status.PENDING
        elif ruling.signal is not None:
            self.moved(item, ruling.signal)

    @rule(number=picks)
    def late_yes(self, number: int) -> None:
        desk, item = self.desk, self.pick(number)
        if item is not None:
            desk.do(lambda tx: outbox.keep_yes(tx, desk.facts, desk.now, item, Signal.DUPLICATE, self.committed()))
            self.moved(item, Signal.DUPLICATE)

    @rule(back=st.integers(0, 3))
    def restore_relay(self, back: int) -> None:
        desk = self.desk
        items = [desk.item(name) for name, status in self.statuses.items() if status is Status.DONE]
        fork = max(0, max((item.history_id or 0 for item in items), default=0) - back)
        self.forks.append(Fork(self.log_id, fork))
        self.log_number += 1
        desk.do(lambda tx: outbox.roll_back(tx, desk.facts, desk.now, self.forks))
        for item in items:
            if (item.history_id or 0) > fork:
                self.moved(item, Signal.ROLLED_BACK)
                self.lost.add(item.id)

    @rule(number=picks, status=st.sampled_from(["stored", "unreadable", "duplicate"]))
    def receipt(self, number: int, status: str) -> None:
        item = self.pick(number, Status.DONE, Status.DEAD)
        if item is None or item.event_id is None:
            return
        if self.desk.take(self.desk.receipt(self.desk.bob, (item, status)), self.desk.bob).taken:
            self.receipted[item.client_message_id] = status

    @rule(readable=st.booleans(), same=st.booleans())
    def arrive(self, readable: bool, same: bool) -> None:
        desk = self.desk
        event = desk.bob.message(desk.me, client_message_id="same" if same else None)
        desk.store(desk.arrival(event, body=b"x" if readable else None))

    @precondition(lambda self: self.desk.inbox())
    @rule(number=picks, does=st.sampled_from(["open", "fail", "apply"]))
    def handle(self, number: int, does: str) -> None:
        desk = self.desk
        messages = desk.inbox()
        name = messages[number % len(messages)].id
        if does == "open":
            desk.do(lambda tx: arrivals.reopen(tx, desk.facts, desk.now, [(name, Payload(body=b"late"))]))
        elif does == "fail":
            desk.do(lambda tx: inbox.fail(tx, desk.facts, desk.now, name, "it raised"))
        else:
            desk.do(lambda tx: inbox.acknowledge(tx, desk.facts, desk.now, [name]))

    def committed(self) -> Committed:
        number = next(self.relay_ids)
        return Committed(broker_message_id=f"asked-{number}", history_id=500 + number, log_id=self.log_id)

    def teardown(self) -> None:
        rows = self.desk.rows("SELECT client_message_id, status FROM operation_log WHERE destination_kind <> 'receipt'")
        assert dict(rows) == {name: status.value for name, status in self.statuses.items()}
        self.desk.close()
        self.folder.cleanup()


LifeOfMessages.TestCase.settings = settings(max_examples=30, stateful_step_count=20, deadline=None)
TestLifeOfMessages = LifeOfMessages.TestCase
