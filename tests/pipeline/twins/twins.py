"""Every table once more, slowly and plainly: the whole of the histories in one walk, in memory, entry after entry.

A reading is what a lake was given: parts of logs in the order in which they came. What the twins give depends on the entries
alone, not on how they were cut into batches.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from holdfast.protocol import event, keys, receipt
from holdfast.protocol.action import AddMember, CreateMesh, Join, RevokeMember, RotateMemberKey, read_action
from holdfast.protocol.administration import check_agreement
from holdfast.protocol.anchor import digest
from holdfast.protocol.history import Entry, Kind, Restored, broken_links, genesis
from holdfast.protocol.refusal import Refused
from tests.pipeline.tables.memory_lake import Part, as_time

CLOSINGS = ("delivered", "expired", "dropped", "quarantined", "moderated")
DAY = 86_400_000_000
Rows = list[dict[str, Any]]


class Story:
    """A reading in order: each entry with its origin and log, and where logs were cut off."""

    def __init__(self, parts: Iterable[Part]) -> None:
        self.told: list[tuple[str, bytes, Entry]] = []
        self.logs: dict[tuple[str, bytes], dict[str, Any]] = {}
        for part in parts:
            for entry in part.entries:
                self._take(part.origin, part.log_id, entry)

    def _take(self, origin: str, log_id: bytes, entry: Entry) -> None:
        self.told.append((origin, log_id, entry))
        log = self.logs.setdefault((origin, log_id), {"first_seq": entry.seq, "cut": None})
        log.setdefault("first_seq", entry.seq)
        log.update(last_seq=entry.seq, last_at=entry.at, last_chain=entry.chain)
        if entry.kind is Kind.RESTORED:
            fork = Restored.decode(entry.detail)
            left = self.logs.setdefault((origin, fork.old_log_id), {})
            left["cut"] = (fork.fork_seq, entry.seq, entry.at)

    def cut(self, origin: str, log_id: bytes) -> tuple[int, int, int] | None:
        found: tuple[int, int, int] | None = self.logs[origin, log_id]["cut"]
        return found

    def of(self, kind: str) -> list[tuple[str, bytes, Entry]]:
        return [one for one in self.told if one[0].startswith(kind)]

    def alive(self, kind: str) -> list[tuple[str, bytes, Entry]]:
        return [one for one in self.of(kind) if not self._is_cut(one)]

    def _is_cut(self, one: tuple[str, bytes, Entry]) -> bool:
        cut = self.cut(one[0], one[1])
        return cut is not None and one[2].seq > cut[0]

    @property
    def at(self) -> int:
        return max(entry.at for _, _, entry in self.told)


def extent(story: Story) -> Rows:
    rows = []
    for (origin, log_id), log in story.logs.items():
        cut = log["cut"] or (None, None, None)
        rows.append(
            {
                "origin": origin,
                "log_id": log_id,
                "first_seq": log.get("first_seq"),
                "last_seq": log.get("last_seq"),
                "last_at": _time(log.get("last_at")),
                "last_chain": log.get("last_chain"),
                "valid_until": cut[0],
                "cut_seq": cut[1],
                "cut_at": _time(cut[2]),
            }
        )
    return rows


class Fates:
    """Deliveries, as they open and close."""

    def __init__(self, story: Story) -> None:
        self.open: dict[tuple[str, str, str], dict[str, Any]] = {}
        self.closed: Rows = []
        self.reopened: dict[tuple[str, str, str], dict[str, Any]] = {}
        self.repeated: Rows = []
        self.unmatched: list[tuple[str, Entry]] = []
        self._standing: dict[tuple[str, str, str], dict[str, Any]] = {}  # closings that no fork has undone
        for origin, log_id, entry in story.of("relay:"):
            self._take(origin, log_id, entry)

    def _take(self, origin: str, log_id: bytes, entry: Entry) -> None:
        if entry.kind is Kind.RESTORED:
            self._fork(origin, log_id, entry)
        elif entry.kind in (Kind.ACCEPTED, Kind.RECEIPT):
            self._accept(origin, log_id, entry)
        elif entry.kind in CLOSINGS and entry.recipient is not None:
            self._close(origin, log_id, entry)

    def _accept(self, origin: str, log_id: bytes, entry: Entry) -> None:
        for member, outcome in entry.recipients:
            row = {
                "origin": origin,
                "log_id": log_id,
                "mesh": entry.mesh,
                "message_id": entry.message_id,
                "recipient": member,
                "kind": "receipt" if entry.kind is Kind.RECEIPT else "message",
                "sender": entry.sender,
                "client_message_id": entry.client_message_id,
                "event_id": entry.event_id,
                "destination_kind": entry.destination_kind,
                "destination_ref": entry.destination_ref,
                "size": entry.size,
                "accepted_seq": entry.seq,
                "accepted_at": as_time(entry.at),
            }
            if outcome == "queued":
                self.open[origin, entry.message_id or "", member] = {**row, "passed_over": False}
            else:
                self.closed.append(_ended(row, log_id, entry, outcome))

    def _close(self, origin: str, log_id: bytes, entry: Entry) -> None:
        key = (origin, entry.message_id or "", entry.recipient or "")
        if key not in self.reopened and key not in self.open:
            self.unmatched.append((origin, entry))
            return
        was_closed = key in self.reopened
        row = self.reopened.pop(key) if was_closed else self.open.pop(key)
        if entry.kind is Kind.DELIVERED and row["kind"] == "message" and not was_closed:
            self._pass_over(row)
        ended = _ended(row, log_id, entry, str(entry.kind), entry.was_stored, entry.reason)
        (self.repeated if was_closed else self.closed).append(ended)
        self._standing[key] = ended

    def _pass_over(self, delivered: dict[str, Any]) -> None:
        """What was accepted before, for the same recipient, and is still open."""
        for row in self.open.values():
            same = all(row[name] == delivered[name] for name in ("origin", "mesh", "recipient"))
            row["passed_over"] |= same and row["accepted_seq"] < delivered["accepted_seq"]

    def _fork(self, origin: str, log_id: bytes, entry: Entry) -> None:
        fork_seq = Restored.decode(entry.detail).fork_seq

        def is_undone(row: dict[str, Any], of: str) -> bool:
            log = row["closed_log_id" if of == "closed" else "log_id"]
            return bool(row["origin"] == origin and log != log_id and row[f"{of}_seq"] > fork_seq)

        for key, row in list(self.open.items()):
            if is_undone(row, "accepted"):
                self.closed.append(_ended(self.open.pop(key), row["log_id"], entry, "rolled_back"))
        for key, row in list(self._standing.items()):
            if is_undone(row, "closed"):
                self.reopened[key] = {name: row[name] for name in _OPENED}
                del self._standing[key]
        for key, row in list(self.reopened.items()):
            if is_undone(row, "accepted"):
                del self.reopened[key]


def _ended(
    row: dict[str, Any],
    log_id: bytes,
    entry: Entry,
    outcome: str,
    was_stored: bool | None = None,
    reason: str | None = None,
) -> dict[str, Any]:
    """A delivery with the entry that closed it."""
    at = as_time(entry.at)
    opened = {name: row[name] for name in _OPENED}
    closed = {"closed_log_id": log_id, "closed_seq": entry.seq, "closed_at": at, "outcome": outcome, "day": at.date()}
    return {**opened, **closed, "was_stored": was_stored, "reason": reason}


_OPENED = (
    *("origin", "log_id", "mesh", "message_id", "recipient", "kind", "sender", "client_message_id", "event_id"),
    *("destination_kind", "destination_ref", "size", "accepted_seq", "accepted_at"),
)


def receipts(story: Story) -> Rows:
    rows = []
    for origin, log_id, entry in story.of("relay:"):
        if entry.kind is not Kind.RECEIPT:
            continue
        said = json.loads(entry.detail)
        for line, tag in enumerate(tag for tag in said["tags"] if tag[0] == "r"):
            rows.append(
                {
                    "origin": origin,
                    "log_id": log_id,
                    "seq": entry.seq,
                    "at": as_time(entry.at),
                    "mesh": entry.mesh,
                    "message_id": entry.message_id,
                    "receipt_event_id": entry.event_id,
                    "recipient": entry.sender,
                    "sender": entry.destination_ref,
                    "pubkey": said["pubkey"],
                    "line": line,
                    "event_id": bytes.fromhex(tag[1]),
                    "was_stored": {"true": True, "false": False}[tag[2]],
                    "status": tag[3],
                    "day": as_time(entry.at).date(),
                }
            )
    return rows


def delivery_slo(fates: Fates) -> dict[tuple[Any, ...], int]:
    counts: dict[tuple[Any, ...], int] = defaultdict(int)
    for row in fates.closed:
        if row["outcome"] == "delivered" and row["kind"] == "message":
            hour = row["accepted_at"].replace(minute=0, second=0, microsecond=0)
            latency = (row["closed_at"] - row["accepted_at"]) // _MICROSECOND
            bucket = (max(1, latency) ** 32).bit_length() - 1
            counts[hour.date(), row["mesh"], hour, row["was_stored"], bucket] += 1
    return dict(counts)


_MICROSECOND = as_time(1) - as_time(0)


def applied(story: Story) -> Rows:
    names = ("mesh", "message_id", "client_message_id", "sender", "recipient", "event_id", "reason", "seq")
    return [
        {
            "origin": origin,
            "log_id": log_id,
            "at": as_time(entry.at),
            "outcome": str(entry.kind),
            "day": as_time(entry.at).date(),
            **{name: getattr(entry, name) for name in names},
        }
        for origin, log_id, entry in story.of("device:")
        if entry.kind in (Kind.APPLIED, Kind.PARKED)
    ]


class Senders:
    """Sends, as devices write them down and settle them."""

    def __init__(self, story: Story) -> None:
        self.open: dict[tuple[str, int], dict[str, Any]] = {}
        self.closed: Rows = []
        for origin, log_id, entry in story.of("device:"):
            if entry.kind is Kind.RESTORED:
                self._fork(origin, log_id, entry)
            elif entry.sequence is not None:
                self._take(origin, log_id, entry)

    def _take(self, origin: str, log_id: bytes, entry: Entry) -> None:
        key = (origin, entry.sequence or 0)
        if entry.kind is Kind.ENQUEUED or (entry.kind is Kind.ATTEMPTED and entry.reason == "rolled_back"):
            self.open[key] = self._opened(origin, log_id, entry)
        elif entry.kind is Kind.ATTEMPTED and key in self.open:
            row = self.open[key]
            row["attempts"] = max(row["attempts"], int.from_bytes(entry.detail[:8], "big"))
            row.update(attempted_at=as_time(entry.at), attempted_seq=entry.seq)
            row["last_reason"] = entry.reason or row["last_reason"]
        elif entry.kind in (Kind.RELAYED, Kind.DEAD, Kind.ABORTED):
            self._settle(key, entry)

    def _opened(self, origin: str, log_id: bytes, entry: Entry) -> dict[str, Any]:
        names = ("sequence", "mesh", "epoch", "client_message_id", "destination_kind", "destination_ref", "size")
        return {
            "origin": origin,
            "log_id": log_id,
            "enqueued_seq": entry.seq,
            "enqueued_at": as_time(entry.at),
            **{name: getattr(entry, name) for name in names},
            "attempts": 0,
            "attempted_at": None,
            "attempted_seq": None,
            "last_reason": None,
        }

    def _settle(self, key: tuple[str, int], entry: Entry) -> None:
        is_late = key not in self.open
        unknown = dict.fromkeys(("log_id", "enqueued_seq", "enqueued_at", "size"))
        row = self.open.pop(key, None) or {**self._opened(key[0], b"", entry), **unknown}
        self.closed.append(
            {
                **row,
                "status": str(entry.kind),
                "closed_seq": entry.seq,
                "closed_at": as_time(entry.at),
                "message_id": entry.message_id,
                "event_id": entry.event_id,
                "superseded_by": entry.detail.decode() if entry.kind is Kind.ABORTED else None,
                "reason": entry.reason,
                "is_late": is_late,
                "day": as_time(entry.at).date(),
            }
        )

    def _fork(self, origin: str, log_id: bytes, entry: Entry) -> None:
        fork_seq = Restored.decode(entry.detail).fork_seq
        for key, row in list(self.open.items()):
            if row["origin"] == origin and row["log_id"] != log_id and row["enqueued_seq"] > fork_seq:
                nothing = {
                    "message_id": None,
                    "event_id": None,
                    "superseded_by": None,
                    "reason": None,
                    "is_late": False,
                }
                at = as_time(entry.at)
                ended = {"status": "rolled_back", "closed_seq": entry.seq, "closed_at": at, "day": at.date()}
                self.closed.append({**self.open.pop(key), **ended, **nothing})


def stuck(story: Story, fates: Fates, senders: Senders) -> set[tuple[Any, ...]]:
    """(origin, mesh, member, cause, count, oldest, newest)."""
    groups: dict[tuple[str, str, str, str], list[Any]] = defaultdict(list)
    for row in fates.open.values():
        cause = "recipient_away"
        if row["accepted_at"] < as_time(story.at - 8 * DAY):
            cause = "overdue"
        elif row["passed_over"]:
            cause = "passed_over"
        groups[row["origin"], row["mesh"], row["recipient"], cause].append(row["accepted_at"])
    for (origin, _), row in senders.open.items():
        member = origin.split("/", 1)[1]
        groups[origin, row["mesh"], member, f"unsent:{row['last_reason'] or 'not_tried'}"].append(row["enqueued_at"])
    return {(*key, len(times), min(times), max(times)) for key, times in groups.items()}


Found = set[tuple[str, str]]


def chain_break(batches: Sequence[Sequence[Part]]) -> Found:
    """Breaks of each log's own chain, and anchors of devices that it did not keep to when they were read."""
    reading = [part for batch in batches for part in batch]
    story = Story(reading)
    found: Found = set()
    words = {"follows": "position_gap", "is": "time_goes_back", "does": "chain_mismatch"}
    for (origin, log_id), log in story.logs.items():
        if "last_seq" not in log:
            continue
        entries = [entry for one, name, entry in story.told if (one, name) == (origin, log_id)]
        first = next(part for part in reading if (part.origin, part.log_id) == (origin, log_id) and part.entries)
        walks = [list(broken_links(first.after, start, entries)) for start in _starts(story, first)]
        unknown = broken_links(entries[0].seq, entries[0].chain, entries[1:])  # nobody says from what it goes on
        for seq, wrong in min(walks, key=len, default=unknown):
            found.add((words[wrong.split(" ", 1)[0]], f"{log_id.hex()}/{seq}"))
    for origin in {one for one, _ in story.logs if one.startswith("relay:")}:
        found |= _against_cuts(story, origin) | _unproved(story, origin, reading)
    for known, entry in anchors(batches):
        found |= _anchor(known, entry)
    return found


def _starts(story: Story, first: Part) -> list[bytes]:
    """The chains that the first part of a log may go on from."""
    if first.after == 0:
        return [genesis(name) for one, name in story.logs if one == first.origin]
    signed = [chain for seq, chain, _, _ in _cuts(story, first.origin) if seq == first.after]
    return signed if first.chain is None else [first.chain]


def _cuts(story: Story, origin: str) -> list[tuple[int, bytes, bytes, bool]]:
    """(position, chain, log id, is signed) of the cuts that a relay's history tells of; the id is the one that it is signed under."""
    found = []
    names = [name for one, name in story.logs if one == origin]
    for one, _, entry in story.told:
        if one == origin and entry.kind is Kind.PRUNED and len(entry.detail) == 104:
            seq, chain, signature = int.from_bytes(entry.detail[:8], "big"), entry.detail[8:40], entry.detail[40:]
            pubkey = origin.removeprefix("relay:")
            signed = [name for name in names if keys.verify(pubkey, digest(name, seq, chain), signature)]
            found.append((seq, chain, max(signed or names), bool(signed)))
    return found


def _against_cuts(story: Story, origin: str) -> Found:
    found: Found = set()
    chains = {entry.seq: entry.chain for one, _, entry in story.alive("relay:") if one == origin}
    for seq, chain, name, is_signed in _cuts(story, origin):
        if not is_signed:
            found.add(("anchor_forged", f"{name.hex()}/{seq}"))
        elif chains.get(seq, chain) != chain:
            found.add(("anchor_mismatch", f"{name.hex()}/{seq}"))
    return found


def _unproved(story: Story, origin: str, reading: Sequence[Part]) -> Found:
    """Where a relay's history, as it counts now, begins past all that was read of it before, and no signed cut says why."""
    reached, found = 0, set()
    proved = {seq for seq, _, _, is_signed in _cuts(story, origin) if is_signed}
    for part in [part for part in reading if part.origin == origin]:
        if part.after > reached and story.cut(origin, part.log_id) is None:
            is_proved = part.after in proved
            found = set() if is_proved else {("beginning_unproved", f"{part.log_id.hex()}/{part.after + 1}")}
        reached = part.until
    return found


def anchors(batches: Sequence[Sequence[Part]]) -> list[tuple[Story, Entry]]:
    """The entries that keep an anchor, each with what was known when it was read; void ones are left out."""
    found: list[tuple[Story, Entry]] = []
    known: list[Part] = []
    for batch in batches:
        known += batch
        story = Story(known)
        told = [entry for part in batch if part.origin.startswith("device:") for entry in part.entries]
        kept = [entry for entry in told if entry.kind is Kind.RELAYED and len(entry.detail) == 120]
        found += [(story, entry) for entry in kept if not _is_void(story, entry)]
    return found


def _is_void(story: Story, entry: Entry) -> bool:
    """Whether a restored relay never saw what this anchor is of."""
    cut = story.cut(_relay_of(story, entry), entry.detail[:16])
    return cut is not None and int.from_bytes(entry.detail[16:24], "big") > cut[0]


def _relay_of(story: Story, entry: Entry) -> str:
    return next(origin for origin, log_id in story.logs if origin.startswith("relay:") and log_id == entry.detail[:16])


def _anchor(story: Story, entry: Entry) -> Found:
    origin, log_id, seq = _relay_of(story, entry), entry.detail[:16], int.from_bytes(entry.detail[16:24], "big")
    chain, signature = entry.detail[24:56], entry.detail[56:]
    key = f"{log_id.hex()}/{seq}"
    if not keys.verify(origin.removeprefix("relay:"), digest(log_id, seq, chain), signature):
        return {("anchor_forged", key)}
    chains = {entry.seq: entry.chain for one, _, entry in story.alive("relay:") if one == origin}
    return set() if chains.get(seq) == chain else {("anchor_mismatch", key)}


def _sends(story: Story) -> list[tuple[str, bytes, Entry]]:
    kinds = (Kind.ACCEPTED, Kind.RECEIPT, Kind.ADMIN)
    return [one for one in story.of("relay:") if one[2].kind in kinds and one[2].sequence is not None]


Sequences = dict[tuple[str, str, str, bytes, str], set[int]]


def sequences(batches: Sequence[Sequence[Part]]) -> Sequences:
    """The sequences of each sender's epoch: those that the relay accepted, those that the device was told of."""
    found: Sequences = defaultdict(set)
    for origin, _, entry in _sends(Story(part for batch in batches for part in batch)):
        found[origin, entry.mesh or "", entry.sender or "", entry.epoch or b"", "accepted"].add(entry.sequence or 0)
    member = {entry: part.origin for batch in batches for part in batch for entry in part.entries}
    for story, entry in anchors(batches):
        mesh, name = member[entry].removeprefix("device:").split("/")
        found[_relay_of(story, entry), mesh, name, entry.epoch or b"", "relayed"].add(entry.sequence or 0)
    return found


def runs(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Numbers as runs without holes."""
    found: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if found and found[-1][1] == number - 1:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return found


def sequence_gap(all_of_them: Sequences) -> Found:
    found: Found = set()
    for (origin, mesh, sender, epoch, claim), numbers in all_of_them.items():
        name = f"{mesh}/{sender}/{epoch.hex()}"
        if claim == "relayed":
            accepted = all_of_them.get((origin, mesh, sender, epoch, "accepted"), set())
            for first, last in runs(numbers):
                for start, end in runs(set(range(first, last + 1)) - accepted):
                    found.add(("sequence_gap", f"{name}/{start}-{end}"))
        elif (origin, mesh, sender, epoch, "relayed") not in all_of_them and len(runs(numbers)) > 1:
            found.add(("sequence_unexplained", name))
    return found


def sender_reset(story: Story) -> Found:
    found: Found = set()
    epochs: dict[tuple[str, str, str], list[bytes]] = defaultdict(list)
    for origin, _, entry in _sends(story):
        known = epochs[origin, entry.mesh or "", entry.sender or ""]
        if entry.epoch not in known:
            if known:
                found.add(("sender_reset", f"{entry.mesh}/{entry.sender}/{(entry.epoch or b'').hex()}"))
            known.append(entry.epoch or b"")
    for _, _, entry in story.of("device:"):
        if entry.kind is Kind.RESTORED and entry.epoch is not None:
            found.add(("sender_reset", entry.epoch.hex()))
    return found


def equivocation(story: Story, batches: Sequence[Sequence[Part]]) -> Found:
    return _accepted_twice(story) | _relayed_twice(batches)


def _relayed_twice(batches: Sequence[Sequence[Part]]) -> Found:
    """Sequences for which a device has the word of one log of a relay twice, for different events."""
    found: Found = set()
    seen: dict[tuple[Any, ...], set[bytes | None]] = defaultdict(set)
    member = {entry: part for batch in batches for part in batch for entry in part.entries}
    for _, entry in anchors(batches):
        origin, log_id = member[entry].origin, member[entry].log_id
        events = seen[origin, entry.epoch, entry.sequence, entry.detail[:16]]
        if events - {entry.event_id}:
            found.add(_equivocation(origin.removeprefix("device:"), log_id, entry))
        events.add(entry.event_id)
    return found


def _accepted_twice(story: Story) -> Found:
    found: Found = set()
    seen: dict[tuple[Any, ...], list[Entry]] = defaultdict(list)
    for origin, log_id, entry in _sends(story):
        key = (origin, entry.mesh, entry.sender, entry.epoch, entry.sequence)
        if any(other.event_id != entry.event_id for other in seen[key]):
            found.add(_equivocation(f"{entry.mesh}/{entry.sender}", log_id, entry))
        seen[key].append(entry)
    return found


def _equivocation(sender: str, log_id: bytes, entry: Entry) -> tuple[str, str]:
    place = f"{(entry.epoch or b'').hex()}/{entry.sequence}/{log_id.hex()}/{entry.seq}"
    return "equivocation", f"{sender}/{place}"


def receipt_forged(story: Story) -> Found:
    """Receipts whose signer was not the member, by the keys that count when the receipt was read."""
    found: Found = set()
    held: dict[tuple[str, str, str], list[tuple[bytes, int, Any]]] = defaultdict(list)
    for origin, log_id, entry in story.of("relay:"):
        if entry.kind is Kind.RESTORED:
            fork_seq = Restored.decode(entry.detail).fork_seq
            for changes in held.values():
                changes[:] = [one for one in changes if one[0] == log_id or one[1] <= fork_seq]
        elif entry.kind is Kind.ADMIN and entry.detail:
            action = read_action(entry.detail.decode())
            if isinstance(action, CreateMesh | AddMember | RotateMemberKey | Join | RevokeMember):
                held[origin, entry.mesh or "", action.member].append((log_id, entry.seq, action))
        elif entry.kind is Kind.RECEIPT and not _is_genuine(entry, held[origin, entry.mesh or "", entry.sender or ""]):
            found.add(("receipt_forged", f"{log_id.hex()}/{entry.seq}"))
    return found


def _is_genuine(entry: Entry, changes: list[tuple[bytes, int, Any]]) -> bool:
    try:
        signed = event.decode(entry.detail)
        event.verify(signed)
        said = receipt.from_event(signed)
    except Refused:
        return False
    told = (entry.mesh, entry.client_message_id, entry.epoch, entry.sequence, entry.event_id, entry.destination_ref)
    head = said.head
    meant = (
        head.mesh,
        head.client_message_id,
        head.epoch,
        head.sequence,
        bytes.fromhex(signed.id),
        said.destination.ref,
    )
    if told != meant or not changes or isinstance(changes[-1][2], RevokeMember):
        return False
    action = changes[-1][2]
    if isinstance(action, Join):
        try:
            check_agreement(entry.mesh or "", action, signed.pubkey)
        except Refused:
            return False
        return True
    return bool(action.key == signed.pubkey)


def member_key(story: Story) -> set[tuple[Any, ...]]:
    """(origin, log_id, seq, mesh, member, key, invite)."""
    rows = set()
    for origin, log_id, entry in story.of("relay:"):
        if entry.kind is Kind.ADMIN and entry.detail:  # else a reader of the export registered itself
            action = read_action(entry.detail.decode())
            if isinstance(action, CreateMesh | AddMember | RotateMemberKey | Join | RevokeMember):
                more = (getattr(action, "key", None), getattr(action, "invite", None))
                rows.add((origin, log_id, entry.seq, entry.mesh, action.member, *more))
    return rows


def _time(at: int | None) -> Any:
    return None if at is None else as_time(at)
