"""Wrong versions of the programs, each wrong in one way that the contract forbids, and the command that has them found.

    python -m tests.world.mutants [NAME…]             every mutant, or those, with the seed that is kept for it
    python -m tests.world.mutants --search [NAME…]    the first seed that finds it: the one that is kept, or from 0 on

Seeds are kept in tests/reliability.json, into which `--page` writes them. A mutant counts as found when a rule over the durable files is broken that the programs without it keep in the same world; a
program that stops with an error finds nothing.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests import ledger

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"
SEEDS_MAX = 100
SECONDS = 300
TIMEOUT_S = 3_600  # on a machine that has much else to do
Found = tuple[int, str]  # a seed, and the rule that is broken there
NOT_THE_ORACLE = ("mistake:", "Traceback")


@dataclass(frozen=True)
class Change:
    """In a file, one text becomes another."""

    file: str  # below src/holdfast
    old: str
    new: str


@dataclass(frozen=True)
class Mutant:
    """The programs with one mistake in them."""

    name: str
    why: str  # it is wrong
    changes: tuple[Change, ...]

    @property
    def seed(self) -> int | None:
        """The one that found it last; None if none is known."""
        found = ledger.read().get("mutants", {}).get(self.name, {})
        return found["seed"] if found.get("rule") else None


MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="acknowledge_before_commit",
        why="a yes leaves before its transaction is on disk",
        changes=(Change("store/sqlite.py", "PRAGMA synchronous=EXTRA", "PRAGMA synchronous=NORMAL"),),
    ),
    Mutant(
        name="failed_commit_is_a_yes",
        why="a commit that the disk refused is answered like one that it took",
        changes=(
            Change(
                "store/writer.py",
                """        try:
            with self._engine.write(brief=True) as transaction:
                self._begin_batch""",
                """        answers = None
        try:
            with self._engine.write(brief=True) as transaction:
                self._begin_batch""",
            ),
            Change(
                "store/writer.py",
                """            return [fault.again() for _ in batch]
""",
                """            return [fault.again() for _ in batch] if answers is None else [(one,) for one in answers]
""",
            ),
        ),
    ),
    Mutant(
        name="delete_before_acknowledgement",
        why="a row leaves its queue when it is sent, not when it is acknowledged",
        changes=(
            Change(
                "relay/stream.py",
                """        await self._tell("MSG", message.seq, about, Raw(message.event or b"null"))
""",
                """        await self._tell("MSG", message.seq, about, Raw(message.event or b"null"))
        if not replayed:
            await self.acknowledge([message.seq])
""",
            ),
        ),
    ),
    Mutant(
        name="seq_outside_the_transaction",
        why="positions are counted in memory, and a transaction that came to nothing leaves a hole",
        changes=(
            Change(
                "store/history.py",
                "    seq, chain, at = last.seq, last.chain, max(now, last.at)\n",
                "    seq, chain, at = max(last.seq, _NEXT.get(last.log_id, 0)), last.chain, max(now, last.at)\n",
            ),
            Change("store/history.py", "    if entries:\n", "    _NEXT[last.log_id] = seq\n    if entries:\n"),
            Change(
                "store/history.py", "def create(transaction", "_NEXT: dict[bytes, int] = {}\n\n\ndef create(transaction"
            ),
        ),
    ),
    Mutant(
        name="limiter_before_dedupe",
        why="a repetition of what was committed is refused because its sender is too fast",
        changes=(
            Change(
                "relay/accept.py",
                """        if earlier is not None:
            return Repetition(offer, earlier)
        try:
""",
                """        try:
            self._limiter.check(self._paced(offer), offer.event.id, self._now)
        except Refused as refused:
            return refusal_answer(refused, offer.event.id)
        if earlier is not None:
            return Repetition(offer, earlier)
        try:
""",
            ),
        ),
    ),
    Mutant(
        name="live_before_replay",
        why="whoever follows a feed goes on from where it is now, not from where the replay ended",
        changes=(
            Change(
                "relay/changes.py",
                "            await self._follow(covered)\n",
                "            await self._follow((await self._relay.seen()).seq)\n",
            ),
        ),
    ),
    Mutant(
        name="live_before_backlog",
        why="the newest of a queue is sent before what has waited, and that never",
        changes=(
            Change(
                "relay/queue.sql",
                "state = 'open' AND seq > :after AND expires_at > :now\n            ORDER BY seq LIMIT :limit",
                "state = 'open' AND seq > :after AND expires_at > :now\n            ORDER BY seq DESC LIMIT 1 + 0 * :limit",
            ),
        ),
    ),
    Mutant(
        name="requeue_in_two_transactions",
        why="between them both rows are in the outbox, and both are sent",
        changes=(
            Change(
                "device/requeue.py",
                "    _retire(transaction, item, status.value, now, by)\n",
                "    LATER.append((item, status.value, now, by))\n",
            ),
            Change("device/requeue.py", "def doubt(transaction", "LATER: list[Any] = []\n\n\ndef doubt(transaction"),
            Change("device/ipc_handlers.py", "import os\n", "import asyncio\nimport os\n"),
            Change(
                "device/ipc_handlers.py",
                """        if isinstance(done, Refused):
            raise done
        return json_reply(
            documents.Requeued(""",
                """        if isinstance(done, Refused):
            raise done
        await asyncio.sleep(1.0)
        await self._daemon.do(lambda tx: requeues._retire(tx, *requeues.LATER.pop()))
        return json_reply(
            documents.Requeued(""",
            ),
        ),
    ),
    Mutant(
        name="counter_reset",
        why="the counter of a queue starts anew with every message, and the queue takes more than it may",
        changes=(
            Change(
                "relay/accept.sql", "SET queue_count = queue_count + wanted.count", "SET queue_count = wanted.count"
            ),
            Change(
                "relay/closing.sql",
                "SET queue_count = queue_count - :count",
                "SET queue_count = max(0, queue_count - :count)",
            ),
        ),
    ),
    Mutant(
        name="coalescing_across_a_critical_event",
        why="what an agent did before its user spoke is taken for what it did after",
        changes=(
            Change(
                "protocol/hook_queue.py",
                """        if row.is_critical:
            return None
        if row.event_type""",
                """        if row.event_type""",
            ),
        ),
    ),
    Mutant(
        name="receipt_before_the_inbox_row",
        why="a receipt is promised in a transaction of its own, before the message is kept",
        changes=(
            Change(
                "device/receiver.py",
                "        told = await self._device.do_soon(lambda tx: self._write(tx, log_id, found))\n",
                """        await self._device.do_soon(lambda tx: self._promise(tx, log_id, found))
        told = await self._device.do_soon(lambda tx: self._write(tx, log_id, found))
""",
            ),
            Change(
                "device/receiver.py",
                "    def _arrival(self, log_id",
                """    def _promise(self, transaction: Transaction, log_id: bytes, found: Sequence[_Brought]) -> None:
        facts, device = self._facts, self._device
        messages = [self._arrival(log_id, one) for one in found if one.event.kind == MESSAGE_KIND]
        rulings = [arrivals._rule(transaction, facts, one) for one in messages]
        new = [one for one in rulings if isinstance(one, arrivals._Ruling)]
        for one in new:
            owed = {one.arrival.sender: [arrivals._line(one)]}
            arrivals._owe_receipts(transaction, facts, device.clock(), device.random, owed)

    def _arrival(self, log_id""",
            ),
            Change(
                "device/arrivals.py",
                "    _owe_receipts(transaction, facts, now, random, owed)\n    return",
                "    return",
            ),
        ),
    ),
    Mutant(
        name="acknowledge_before_the_inbox_row",
        why="the relay forgets a message that its recipient has not written down",
        changes=(
            Change(
                "device/receiver.py",
                """        told = await self._device.do_soon(lambda tx: self._write(tx, log_id, found))
        positions = [one.seq for one in queued]
""",
                """        positions = [one.seq for one in queued]
        await socket.acknowledge(positions)
        told = await self._device.do_soon(lambda tx: self._write(tx, log_id, found))
""",
            ),
            Change(
                "device/receiver.py",
                "        self._told()\n        await socket.acknowledge(positions)\n",
                "        self._told()\n",
            ),
        ),
    ),
    Mutant(
        name="reseal_without_stale_key",
        why="a send that got no answer is sealed anew, and its repetition is another event under the same id",
        changes=(
            Change(
                "device/sending.py",
                "event=None if signal is Signal.KEY_STALE else operation.event",
                "event=None if signal in (Signal.KEY_STALE, Signal.FAULTED, Signal.RESTARTED) else operation.event",
            ),
        ),
    ),
    Mutant(
        name="filter_before_dominance",
        why="deletions are left out before it is decided what a snapshot replaces, so that they stay beside what came after",
        changes=(
            Change(
                "relay/snapshots.py",
                "            self._currents[author, d].append(_Current(seq, o, read_clock(clock)))\n",
                """            if o != Operation.DEL:
                self._currents[author, d].append(_Current(seq, o, read_clock(clock)))
""",
            ),
        ),
    ),
    Mutant(
        name="lane_goes_on_behind_its_head",
        why="what stands behind a message that was put off overtakes it",
        changes=(
            Change("device/lanes.py", "            found = found[:1]\n", "            found = found[1:] or found\n"),
        ),
    ),
    Mutant(
        name="in_flight_is_forgotten",
        why="what a dead process had claimed is never offered again",
        changes=(
            Change(
                "device/sender.py", "        await self._take_back()\n        self.has_begun", "        self.has_begun"
            ),
        ),
    ),
    Mutant(
        name="restored_home_keeps_its_epoch",
        why="a restored home gives its new sends the names of those that it forgot",
        changes=(
            Change(
                "device/operations.py",
                "    if backup:\n        renew_epoch",
                "    if not backup and backup:\n        renew_epoch",
            ),
            Change(
                "device/reconcile.py",
                "    if status.highest_sequence is not None and status.highest_sequence > highest:\n",
                "    if status.highest_sequence is not None and status.highest_sequence < -highest:\n",
            ),
        ),
    ),
    Mutant(
        name="fork_is_ignored",
        why="what a restored relay lost is never offered again",
        changes=(Change("device/reconcile.py", "    while forks:\n", "    while forks and not forks:\n"),),
    ),
    Mutant(
        name="restored_relay_keeps_its_log_id",
        why="a position of a restored relay means two things, and nobody is told",
        changes=(
            Change(
                "store/history.py",
                '    transaction.run(_SQL["rename"], {"log_id": log_id})\n',
                "    log_id = last.log_id\n",
            ),
        ),
    ),
    Mutant(
        name="full_recipients_are_left_out_in_silence",
        why="a subscriber whose queue is full is missing in the history of what it missed",
        changes=(
            Change(
                "relay/accept.py",
                "        return tuple((member, self._outcome(mesh, sender, member)) for member in others)\n",
                """        outcomes = [(member, self._outcome(mesh, sender, member)) for member in others]
        return tuple(one for one in outcomes if one[1] != FULL)
""",
            ),
        ),
    ),
    Mutant(
        name="text_in_the_clear",
        why="the relay sees the beginning of every text",
        changes=(
            Change(
                "device/sealer.py",
                "            reply_to=operation.reply_to,\n",
                """            reply_to=operation.reply_to or _beginning((operation.blob or b"")[70:79]),
""",
            ),
            Change(
                "device/sealer.py",
                "class Sealer:\n",
                """def _beginning(text: bytes) -> str | None:
    return text.decode() if text.isalpha() else None


class Sealer:
""",
            ),
        ),
    ),
    Mutant(
        name="ids_are_forgotten_early",
        why="a repetition of what was taken is taken again",
        changes=(
            Change(
                "relay/sweep.sql",
                "WHERE expires_at <= :now AND first_seen_at <= :cutoff",
                "WHERE expires_at > 0 * :now AND first_seen_at > 0 * :cutoff",
            ),
            Change(
                "relay/sweep.sql",
                "UPDATE forgotten SET before = :before WHERE",
                "UPDATE forgotten SET before = 0 * :before WHERE 1 = 0 AND",
            ),
        ),
    ),
    Mutant(
        name="revoked_member_keeps_its_queue",
        why="what waits for somebody who is out waits for ever, and nobody is told",
        changes=(Change("relay/administration.py", "    office.drop_queue(action.member)\n", ""),),
    ),
    Mutant(
        name="two_batches_of_one_lane",
        why="a second batch overtakes the first one's repetition",
        changes=(
            Change("device/lanes.py", "            self._busy.add(lane)\n", "            self._changed.add(lane)\n"),
            Change("protocol/lanes.py", "            line.is_barred = True\n", "            pass\n"),
        ),
    ),
    Mutant(
        name="handled_before_it_was",
        why="a hook event counts as handled before its handler has begun",
        changes=(
            Change(
                "hook/worker.py",
                """        try:
            async with asyncio.timeout(self._settings.handler_s):
                await self._handle(event)
""",
                """        await self._end(session, row, HookSignal.SUCCEEDED)
        try:
            async with asyncio.timeout(self._settings.handler_s):
                await self._handle(event)
""",
            ),
        ),
    ),
    Mutant(
        name="session_goes_on_behind_a_retry",
        why="what follows a hook event that is to be tried again is handled before it",
        changes=(
            Change(
                "hook/session.py",
                "        return [self._mark(item.row_id, HookSignal.RELEASED) for item in waiting]\n",
                """        self.queue = Queue(pending=waiting)
        return []
""",
            ),
            Change(
                "hook/worker.py", "            if not outbox.may_start(transaction, row):\n", "            if False:\n"
            ),
        ),
    ),
    Mutant(
        name="checkpoint_ahead_of_the_documents",
        why="a home remembers that it has read what it has not written down",
        changes=(
            Change(
                "device/feed_link.py",
                "            device, seq = self._device, max(positions)\n",
                """            device, seq = self._device, max(positions)
            await device.do_soon(lambda tx: feed_relays._move(tx, device.clock(), author, self.relay, self._log_id, seq))
""",
            ),
        ),
    ),
    Mutant(
        name="only_the_first_line_of_a_receipt_counts",
        why="a receipt about several messages is taken for one of them, and acknowledged",
        changes=(Change("device/receipts.py", "*proof) for proof in proofs]\n", "*proof) for proof in proofs[:1]]\n"),),
    ),
    Mutant(
        name="nobody_hears_of_what_expired",
        why="a sender is never told that its message was of no use any more before anybody took it",
        changes=(Change("relay/queue.sql", "kind IN ('delivered', 'expired', ", "kind IN ('delivered', "),),
    ),
    Mutant(
        name="applied_before_it_is_written",
        why="an application is told that its confirmation is kept while it is still being written",
        changes=(
            Change("device/ipc_handlers.py", "import os\n", "import asyncio\nimport os\n"),
            Change(
                "device/ipc_handlers.py",
                "        return json_reply(await self._daemon.do(lambda tx: inbox.acknowledge(tx, facts, now, ids)))\n",
                """        writing = self._daemon.do(lambda tx: inbox.acknowledge(tx, facts, now, ids))
        self._writing = asyncio.get_running_loop().create_task(writing)
        return json_reply(inbox.Acknowledged(tuple(ids), (), ()))
""",
            ),
        ),
    ),
    Mutant(
        name="object_in_the_clear",
        why="the relay sees which messages are about one thing",
        changes=(
            Change(
                "device/sealer.py",
                "            reply_to=operation.reply_to,\n",
                '            reply_to=operation.reply_to or (operation.blob or b"")[1:10].hex(),\n',
            ),
        ),
    ),
    Mutant(
        name="position_of_one_relay_counts_at_all",
        why="how far one relay was followed is taken for how far every relay was",
        changes=(
            Change(
                "device/feed_relays.sql",
                "UPDATE feed_relay SET log_id = :log_id, seq = :seq\nWHERE relay = :relay AND (",
                "UPDATE feed_relay SET log_id = CASE WHEN relay = :relay THEN :log_id ELSE log_id END, seq = :seq\n"
                "WHERE (relay = :relay OR seq < :seq) AND (",
            ),
        ),
    ),
    Mutant(
        name="seen_at_one_relay_is_there_at_all",
        why="what one relay brought is never offered to those that lack it",
        changes=(
            Change(
                "device/feed_relays.sql",
                "SELECT :relay, event_id, 'there' FROM snapshot WHERE event_id = :event_id\n",
                "SELECT feed_relay.relay, event_id, 'there' FROM snapshot CROSS JOIN feed_relay\n"
                "WHERE event_id = :event_id AND :relay <> ''\n",
            ),
        ),
    ),
    Mutant(
        name="cancelled_is_only_said",
        why="a send whose sender took it back, and was told so, leaves when its time has come",
        changes=(
            Change(
                "device/scheduled.py",
                """    transaction.run(_SQL["cancel"], {"client_message_id": client_message_id, "now": now})
""",
                "",
            ),
        ),
    ),
    Mutant(
        name="taken_down_waits_on",
        why="what an operator took down is on record as that, and is delivered all the same",
        changes=(
            Change(
                "relay/queue.py",
                "    closed = closing.take_down(transaction, now, message_id, reason)\n",
                "    closed = 0\n",
            ),
        ),
    ),
)
BY_NAME = {mutant.name: mutant for mutant in MUTANTS}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.world.mutants", description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", help="those that are run; all of them by default")
    parser.add_argument("--search", action="store_true", help="find the first seed for each of them")
    parser.add_argument("--most", type=int, default=SEEDS_MAX, help="seeds that are tried")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="mutants that are looked for at once")
    parser.add_argument("--page", action="store_true", help="write into docs/reliability.md what was found")
    chosen = parser.parse_args(arguments)
    mutants = [BY_NAME[name] for name in chosen.names] or list(MUTANTS)

    def judge(mutant: Mutant) -> Found | None:
        found = _judge(mutant, chosen.most if chosen.search else 0)
        if chosen.page:
            ledger.add("mutants", {mutant.name: _told(mutant, found)})
        return found

    with ThreadPoolExecutor(chosen.jobs) as pool:
        results = list(pool.map(judge, mutants))
    unfound = results.count(None)
    print(f"{len(results)} mutants, {unfound} not found")
    return 1 if unfound else 0


def _told(mutant: Mutant, found: "Found | None") -> dict[str, object]:
    seed, rule = found or (None, None)
    return {"place": MUTANTS.index(mutant), "why": mutant.why, "seed": seed, "rule": rule, "at": ledger.today()}


def _judge(mutant: Mutant, most: int) -> "Found | None":
    """The seed and the rule by which a mutant is found: the seed that is kept, or one of so many others."""
    with tempfile.TemporaryDirectory(prefix="holdfast-mutant-") as place:
        shutil.copytree(SOURCE, place, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
        prepare(mutant, Path(place) / "holdfast")
        kept = [] if mutant.seed is None else [mutant.seed]
        seeds = list(dict.fromkeys([*kept, *range(most)]))
        for seed in seeds:
            found = run(Path(place), seed)
            if found and not _clean(seed):
                print(f"{mutant.name}: seed {seed} finds something without it, too", flush=True)
            elif found:
                print(f"{mutant.name}: found by seed {seed}: {found[0]}", flush=True)
                return seed, found[0].partition(":")[0]
    print(f"{mutant.name}: NOT FOUND by {len(seeds)} seeds", flush=True)
    return None


@cache
def _clean(seed: int) -> bool:
    """Whether nothing is found in the world of a seed when there is no mistake."""
    return not run(SOURCE, seed)


def prepare(mutant: Mutant, place: Path) -> None:
    """Put the files that a mutant changes into a copy of the sources, changed."""
    for file in dict.fromkeys(change.file for change in mutant.changes):
        text = (SOURCE / "holdfast" / file).read_text()
        for change in mutant.changes:
            if change.file == file:
                if text.count(change.old) != 1:
                    raise ValueError(f"{mutant.name}: the text to change is {text.count(change.old)} times in {file}")
                text = text.replace(change.old, change.new)
        (place / file).parent.mkdir(parents=True, exist_ok=True)
        (place / file).write_text(text)


def run(source: Path, seed: int) -> list[str]:
    """What the rules find in a world of these sources, with assertions off."""
    environment = {
        **os.environ,
        "PYTHONPATH": f"{source}:{ROOT}",
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    command = [sys.executable, "-O", "-m", "tests.world", "--seed", str(seed), "--seconds", str(SECONDS)]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    lines = [line.strip().removeprefix("✗ ") for line in done.stdout.splitlines() if line.strip().startswith("✗")]
    found = [line for line in lines if not line.startswith(NOT_THE_ORACLE)]
    return sorted(found, key=lambda line: not line[0].isdigit())  # what breaks the contract says most


if __name__ == "__main__":
    sys.exit(main())
