"""Small random histories of a relay and its devices, with everything in them that tables must cope with.

Not traffic as it would be, but as it could be at worst: closings of nothing, closings twice, forks, sequences used again,
receipts signed by others, anchors of other chains. The relay's state is kept beside its history, by the plainest means.
"""

import copy
import hashlib
from dataclasses import dataclass, field
from random import Random
from typing import Any

from holdfast.protocol import administration, event, keys, receipt
from holdfast.protocol.action import AddMember, CreateMesh, RevokeMember, Role, write_action
from holdfast.protocol.anchor import sign_anchor
from holdfast.protocol.envelope import Destination, Head
from holdfast.protocol.fingerprint import DestinationKind
from holdfast.protocol.history import Draft, Entry, Kind, Restored, genesis, link
from holdfast.protocol.receipt import Receipted, ReceiptStatus
from tests.pipeline.twins import random_documents
from tests.pipeline.twins.random_documents import Feed

MESH = "mesh-1"
START = 1_780_000_000_000_000
AUX = bytes(32)
CLOSINGS = (Kind.DELIVERED, Kind.EXPIRED, Kind.DROPPED, Kind.QUARANTINED, Kind.MODERATED)


def secret_of(name: str) -> bytes:
    return hashlib.sha256(b"random world " + name.encode()).digest()


@dataclass
class Log:
    """A history in the making; what a fork keeps is copied."""

    log_id: bytes
    entries: list[Entry] = field(default_factory=list)
    chain: bytes = b""
    at: int = START

    def say(self, draft: Draft, pause: int = 0) -> Entry:
        self.at += pause
        entry = link(self.chain or genesis(self.log_id), len(self.entries) + 1, self.at, draft)
        self.entries.append(entry)
        self.chain = entry.chain
        return entry

    def forked(self, log_id: bytes, epoch: bytes | None = None) -> "Log":
        """The log of a copy of this one, made now."""
        new = Log(log_id, list(self.entries), self.chain, self.at)
        detail = Restored(self.log_id, log_id, len(self.entries), self.chain).encode()
        new.say(Draft(kind=Kind.RESTORED, epoch=epoch, detail=detail), 1)
        return new


@dataclass
class State:
    """What the relay's tables hold, by their keys."""

    dedupe: dict[str, dict[str, Any]] = field(default_factory=dict)
    message: dict[str, dict[str, Any]] = field(default_factory=dict)
    delivery: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    mention: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    feed: Feed = field(default_factory=Feed)

    @property
    def snapshot(self) -> dict[int, dict[str, Any]]:
        return self.feed.snapshot


@dataclass
class Member:
    name: str
    epoch: bytes
    sequence: int = 0
    secret: bytes = b""
    is_in: bool = True


class RandomRelay:
    """A relay that does as chance says."""

    def __init__(self, random: Random, log_id: bytes) -> None:
        self.random = random
        self.secret = secret_of("relay")
        self.origin = "relay:" + keys.public_key(self.secret)
        self.log = Log(log_id)
        self.state = State()
        self.members = {
            name: Member(name, hashlib.sha256(name.encode()).digest()[:16], 0, secret_of(name))
            for name in ("ann", "bob", "cy", "dee")
        }
        self.delivered: list[tuple[Entry, str]] = []
        self.count = 0
        self._found()

    def step(self) -> None:
        """Something happens."""
        happenings = (
            (self.accept, 10),
            (self.close, 9),
            (self.receipt, 3),
            (self.prune, 1),
            (self.forget, 1),
            (self.rotate, 1),
            (self.decide, 1),
            (self.close_wrongly, 1),
            (self.publish, 6),
            (self.let_go, 1),
        )
        pick = self.random.choices([one for one, _ in happenings], [weight for _, weight in happenings])[0]
        pick()

    def snapshot(self) -> "RandomRelay":
        """A backup: the log is cut where it is now, whatever the original does later."""
        twin = copy.copy(self)
        twin.state = copy.deepcopy(self.state)
        twin.members = copy.deepcopy(self.members)
        twin.delivered = list(self.delivered)
        twin.log = Log(self.log.log_id, list(self.log.entries), self.log.chain, self.log.at)
        return twin

    def restore(self, backup: "RandomRelay", log_id: bytes) -> None:
        """Go on from a backup under another log id. Devices' counters do not go back."""
        counters = {name: member.sequence for name, member in self.members.items()}
        self.state, self.delivered = copy.deepcopy(backup.state), list(backup.delivered)
        self.members = copy.deepcopy(backup.members)
        for name, member in self.members.items():
            member.sequence = counters[name]
        at = self.log.at
        self.log = backup.log.forked(log_id)
        self.log.at = max(at, self.log.at)

    def _found(self) -> None:
        self.log.say(Draft(kind=Kind.ADMIN, destination_kind="consumer", destination_ref="a lake"))
        ann, *others = self.members.values()
        action = CreateMesh(name="m", member=ann.name, member_name=ann.name, key=keys.public_key(ann.secret))
        self.administer(ann, write_action(action))
        for member in others:
            key = keys.public_key(member.secret)
            if member.name == "cy":
                joined = administration.join(secret_of("invitation"), MESH, member.name, member.name, key, AUX)
                self.administer(member, write_action(joined))
            else:
                added = AddMember(member=member.name, name=member.name, key=key, role=Role.MEMBER)
                self.administer(ann, write_action(added))

    def administer(self, signer: Member, content: str) -> None:
        self._taken(signer, Kind.ADMIN, (), "admin", MESH, detail=content.encode())

    def accept(self) -> None:
        sender = self.random.choice([one for one in self.members.values() if one.is_in])
        others = [name for name, one in self.members.items() if one is not sender and one.is_in]
        if not others:
            return
        chosen = self.random.sample(others, self.random.randint(1, len(others)))
        outcomes = tuple(
            (name, self.random.choice(("queued", "queued", "queued", "full", "blocked"))) for name in chosen
        )
        mentions = tuple(self.random.sample(chosen, 1)) if self.random.random() < 0.3 else ()
        self._taken(sender, Kind.ACCEPTED, outcomes, "topic", "all", mentions=mentions)

    def _taken(
        self,
        sender: Member,
        kind: Kind,
        outcomes: tuple[tuple[str, str], ...],
        destination_kind: str,
        destination_ref: str,
        **more: Any,
    ) -> Entry:
        self.count += 1
        sequence = more.pop("sequence", None)
        if sequence is None:
            sequence = self._next(sender)
        event_id = more.pop("event_id", None) or self.random.randbytes(32)
        message_id, client_message_id = f"message-{self.count}", more.pop("client_message_id", f"client-{self.count}")
        entry = self.log.say(
            Draft(
                kind=kind,
                mesh=MESH,
                message_id=message_id,
                client_message_id=client_message_id,
                sender=sender.name,
                epoch=sender.epoch,
                sequence=sequence,
                recipients=outcomes,
                destination_kind=destination_kind,
                destination_ref=destination_ref,
                event_id=event_id,
                size=self.random.randint(1, 999),
                **more,
            ),
            self.random.choice((0, 1, 999, 3_600_000_000)),
        )
        self._keep(entry)
        return entry

    def _next(self, sender: Member) -> int:
        """Mostly the next one; now and then one is left out, or used a second time."""
        chance = self.random.random()
        if chance < 0.04 and sender.sequence:
            return self.random.randrange(sender.sequence)
        sender.sequence += 2 if chance < 0.12 else 1
        return sender.sequence - 1

    def _keep(self, entry: Entry) -> None:
        names = {"mesh": MESH, "message_id": entry.message_id, "seq": entry.seq}
        full = {
            **names,
            **{
                name: getattr(entry, name)
                for name in ("sender", "client_message_id", "event_id", "destination_kind", "destination_ref")
            },
        }
        assert entry.message_id is not None
        self.state.dedupe[entry.message_id] = {**full, "history_available": True}
        self.state.message[entry.message_id] = {**full, "size": entry.size, "kind": 4201}
        for member, outcome in entry.recipients:
            if outcome == "queued":
                self.state.delivery[entry.message_id, member] = {
                    **names,
                    "member": member,
                    "state": "open",
                    "was_stored": None,
                }
        for member in entry.mentions:
            self.state.mention[entry.message_id, member] = {**names, "member": member}

    def close(self) -> None:
        waiting = [key for key, row in self.state.delivery.items() if row["state"] == "open"]
        if not waiting:
            return
        message_id, member = self.random.choice(waiting)
        row = self.state.delivery[message_id, member]
        accepted = self.log.entries[row["seq"] - 1]
        kind = self.random.choice((*CLOSINGS, Kind.DELIVERED, Kind.DELIVERED, Kind.DELIVERED))
        was_stored = self.random.random() < 0.5 if kind is Kind.DELIVERED else None
        self._close(accepted, member, kind, was_stored)
        row.update(state=str(kind), was_stored=was_stored)
        if kind is Kind.DELIVERED and accepted.kind is Kind.ACCEPTED:
            self.delivered.append((accepted, member))

    def _close(self, accepted: Entry, member: str, kind: Kind, was_stored: bool | None) -> None:
        self.log.say(
            Draft(
                kind=kind,
                mesh=MESH,
                message_id=accepted.message_id,
                client_message_id=accepted.client_message_id,
                sender=accepted.sender,
                recipient=member,
                event_id=accepted.event_id,
                was_stored=was_stored,
            ),
            self.random.choice((0, 7, 40_000, 7_200_000_000)),
        )

    def close_wrongly(self) -> None:
        """A closing that nothing is open for: of what is closed already, or of what never was."""
        closed = [key for key, row in self.state.delivery.items() if row["state"] != "open"]
        accepted = self.random.choice([entry for entry in self.log.entries if entry.kind is Kind.ACCEPTED] or [None])
        if closed and self.random.random() < 0.5:
            message_id, member = self.random.choice(closed)
            self._close(
                self.log.entries[self.state.delivery[message_id, member]["seq"] - 1], member, Kind.DELIVERED, True
            )
        elif accepted is not None and all(member != "nobody" for member, _ in accepted.recipients):
            self._close(accepted, "nobody", Kind.EXPIRED, None)

    def decide(self) -> None:
        """A decision that closes nothing by itself."""
        self.log.say(
            Draft(
                kind=Kind.MODERATED,
                mesh=MESH,
                message_id="message-2",
                destination_kind="moderation",
                destination_ref="op",
                reason="spam",
            )
        )

    def receipt(self) -> None:
        """A receipt for some that were delivered; one in five is not what it seems."""
        if not self.delivered:
            return
        accepted, name = self.random.choice(self.delivered)
        signer = self.members[name]
        if not signer.is_in:
            return
        self.count += 1
        client_message_id = f"client-{self.count}"
        sequence = self._next(signer)
        statuses = tuple(ReceiptStatus)
        said = receipt.Receipt(
            head=Head(mesh=MESH, client_message_id=client_message_id, epoch=signer.epoch, sequence=sequence),
            destination=Destination(DestinationKind.DM, accepted.sender or ""),
            messages=tuple(
                Receipted(event_id.hex(), self.random.random() < 0.5, self.random.choice(statuses))
                for event_id in (accepted.event_id or b"", self.random.randbytes(32))[: self.random.randint(1, 2)]
            ),
        )
        fault = self.random.choice(("stranger", "byte", "signature", "id", *[""] * 12))
        secret = secret_of("stranger") if fault == "stranger" else signer.secret
        signed = receipt.sign_receipt(secret, self.log.at // 1_000_000, said, AUX)
        raw = event.encode(signed)
        if fault == "byte":
            raw = raw.replace(b'"kind":4202', b'"kind":4203')
        if fault == "signature":
            raw = raw.replace(signed.sig.encode(), signed.sig[::-1].encode())
        event_id = self.random.randbytes(32) if fault == "id" else bytes.fromhex(signed.id)
        self.count -= 1
        self._taken(
            signer,
            Kind.RECEIPT,
            ((accepted.sender or "", "queued"),),
            "dm",
            accepted.sender or "",
            client_message_id=client_message_id,
            sequence=sequence,
            event_id=event_id,
            detail=raw,
        )

    def prune(self) -> None:
        settled = [
            message_id
            for message_id in self.state.message
            if all(row["state"] != "open" for key, row in self.state.delivery.items() if key[0] == message_id)
        ]
        if not settled:
            return
        message_id = self.random.choice(settled)
        row = self.state.message.pop(message_id)
        names = {name: row[name] for name in ("mesh", "sender", "client_message_id", "message_id")}
        self.log.say(Draft(kind=Kind.PRUNED, **names))
        if message_id in self.state.dedupe:
            self.state.dedupe[message_id]["history_available"] = False
        for table in (self.state.delivery, self.state.mention):
            for key in [key for key in table if key[0] == message_id]:
                del table[key]

    def forget(self) -> None:
        if not self.state.dedupe:
            return
        row = self.state.dedupe.pop(self.random.choice(list(self.state.dedupe)))
        names = {name: row[name] for name in ("mesh", "sender", "client_message_id", "message_id")}
        self.log.say(Draft(kind=Kind.DEDUPE_EXPIRED, **names))

    def publish(self) -> None:
        random_documents.publish(self.random, self.state.feed, self.log.say)

    def let_go(self) -> None:
        random_documents.let_go(self.random, self.state.feed, self.log.say)
        random_documents.tell_anew(self.random, self.state.feed, self.log.say)

    def rotate(self) -> None:
        """A member takes another key, begins another epoch, or leaves."""
        member = self.random.choice([one for one in self.members.values() if one.is_in])
        if self.random.random() < 0.25 and member.name != "ann":
            self.administer(self.members["ann"], write_action(RevokeMember(member=member.name)))
            member.is_in = False
            return
        if self.random.random() < 0.4:
            member.epoch = self.random.randbytes(16)  # its device was restored; the counter goes on
            return
        secret = self.random.randbytes(32)
        action = administration.rotate_member_key(secret, MESH, member.name, AUX)
        self.administer(member, write_action(action))
        member.secret = secret

    def rows(self, state: State) -> dict[str, list[dict[str, Any]]]:
        """State as it is exported."""
        page = {"origin": self.origin, "log_id": self.log.log_id}
        return {
            name: [{**page, **row} for row in getattr(state, name).values()]
            for name in ("dedupe", "message", "delivery", "mention", "snapshot")
        }


class RandomDevice:
    """A device that does as chance says, beside a relay that it has anchors of."""

    def __init__(self, random: Random, relay: RandomRelay, name: str) -> None:
        self.random = random
        self.relay = relay
        self.member = relay.members[name]
        self.origin = f"device:{MESH}/{name}"
        self.log = Log(hashlib.sha256(b"device " + name.encode()).digest()[:16])
        self.status: dict[int, str] = {}
        self.attempts: dict[int, int] = {}
        self.next = 0
        self.told: set[int] = set()

    def step(self) -> None:
        happenings = (
            (self.enqueue, 6),
            (self.attempt, 5),
            (self.settle, 5),
            (self.receive, 2),
            (self.lose, 1),
            (self.late, 1),
        )
        self.random.choices([one for one, _ in happenings], [weight for _, weight in happenings])[0]()

    def _say(self, kind: Kind, sequence: int, **more: Any) -> None:
        self.log.say(
            Draft(
                kind=kind,
                mesh=MESH,
                client_message_id=f"{self.member.name}-{sequence}",
                epoch=more.pop("epoch", self.member.epoch),
                sequence=sequence,
                destination_kind="dm",
                destination_ref="bob",
                **more,
            ),
            self.random.choice((0, 5, 50_000)),
        )

    def enqueue(self) -> None:
        self._say(Kind.ENQUEUED, self.next, size=3)
        self.status[self.next], self.attempts[self.next] = "pending", 0
        self.next += 1

    def _pending(self) -> list[int]:
        return [sequence for sequence, status in self.status.items() if status == "pending"]

    def attempt(self) -> None:
        for sequence in self.random.sample(self._pending(), min(1, len(self._pending()))):
            self.attempts[sequence] += 1
            reason = self.random.choice((None, "unreachable", "queue_full"))
            self._say(Kind.ATTEMPTED, sequence, reason=reason, detail=self.attempts[sequence].to_bytes(8, "big"))

    def settle(self) -> None:
        for sequence in self.random.sample(self._pending(), min(1, len(self._pending()))):
            kind = self.random.choice((Kind.RELAYED, Kind.RELAYED, Kind.DEAD, Kind.ABORTED))
            self.status[sequence] = str(kind)
            if kind is Kind.RELAYED:
                self._say(
                    kind,
                    sequence,
                    message_id=f"message-{sequence}",
                    detail=self._anchor(),
                    event_id=self._event(sequence),
                )
            elif kind is Kind.DEAD:
                epoch = self.random.choice((None, self.member.epoch))
                self._say(kind, sequence, epoch=epoch, reason="refused", detail=(1).to_bytes(8, "big") + b"no")
            else:
                self._say(kind, sequence, detail=b"row-" + str(sequence).encode())

    def _event(self, sequence: int) -> bytes:
        """What it says that it sent; now and then another event under the same sequence."""
        other = len(self.log.entries) % 3 == 0
        return hashlib.sha256(f"{self.member.name} {sequence} {other}".encode()).digest()

    def _anchor(self) -> bytes:
        """Of some entry of the relay's; now and then with another chain, another's signature, or past the end."""
        log = self.relay.log
        seq = self.random.randint(1, len(log.entries))
        chain, secret = log.entries[seq - 1].chain, self.relay.secret
        chance = self.random.random()
        if chance < 0.04:
            chain = self.random.randbytes(32)
        elif chance < 0.08:
            secret = secret_of("stranger")
        anchor = sign_anchor(secret, log.log_id, seq, chain, AUX)
        return log.log_id + seq.to_bytes(8, "big") + chain + bytes.fromhex(anchor.sig)

    def receive(self) -> None:
        """Something came, and was applied, or not."""
        kind = self.random.choice((Kind.STORED, Kind.APPLIED, Kind.PARKED))
        self.log.say(
            Draft(
                kind=kind,
                mesh=MESH,
                message_id=f"message-{self.random.randint(1, 50)}",
                client_message_id=f"client-{self.random.randint(1, 50)}",
                sender="bob",
                recipient=self.member.name,
                event_id=self.random.randbytes(32),
                reason="handler_failed" if kind is Kind.PARKED else None,
            )
        )

    def lose(self) -> None:
        """The relay has lost something that it had confirmed: it waits again."""
        done = [sequence for sequence, status in self.status.items() if status == "relayed"]
        for sequence in self.random.sample(done, min(1, len(done))):
            self.status[sequence] = "pending"
            detail = self.attempts[sequence].to_bytes(8, "big") + b"rolled back"
            self._say(Kind.ATTEMPTED, sequence, reason="rolled_back", detail=detail)

    def late(self) -> None:
        """An answer for what was given up; now and then the relay loses that again, which is told of what is dead."""
        over = [sequence for sequence, status in self.status.items() if status in ("dead", "aborted")]
        for sequence in self.random.sample(over, min(1, len(over))):
            self._say(Kind.RELAYED, sequence, message_id=f"message-{sequence}", detail=b"")
            if self.status[sequence] == "dead" and len(self.log.entries) % 2:
                detail = self.attempts[sequence].to_bytes(8, "big") + b"rolled back"
                self._say(Kind.DEAD, sequence, reason="rolled_back", detail=detail)

    def rows(self) -> list[dict[str, Any]]:
        """The operation log as it is exported."""
        page = {"origin": self.origin, "log_id": self.log.log_id}
        return [
            {
                **page,
                "seq": entry.seq,
                "sequence": entry.sequence,
                "client_message_id": entry.client_message_id,
                "status": self.status[entry.sequence or 0].replace("relayed", "done"),
            }
            for entry in self.log.entries
            if entry.kind is Kind.ENQUEUED
        ]

    def restore(self, log_id: bytes, keep: int) -> None:
        """Go on from an older copy, under another log id and epoch."""
        entries = self.log.entries[:keep]
        old = Log(self.log.log_id, entries, entries[-1].chain if entries else b"", entries[-1].at if entries else START)
        at = self.log.at
        self.member = copy.copy(self.member)
        self.member.epoch = self.random.randbytes(16)
        self.log = old.forked(log_id, self.member.epoch)
        self.log.at = max(at, self.log.at)
        self.status, self.attempts, self.next = {}, {}, 0
        for entry in entries:
            sequence = entry.sequence
            if sequence is None:
                continue
            if entry.kind is Kind.ENQUEUED:
                self.next = sequence + 1
                self.status[sequence], self.attempts[sequence] = "pending", 0
            elif entry.kind in (Kind.RELAYED, Kind.DEAD, Kind.ABORTED) and self.status.get(sequence) == "pending":
                self.status[sequence] = str(entry.kind)
            elif entry.kind is Kind.ATTEMPTED:
                self.attempts[sequence] = int.from_bytes(entry.detail[:8], "big")
                if entry.reason == "rolled_back":
                    self.status[sequence] = "pending"
