"""Violations planted into files: what somebody with the disk in hand could do, as data, and what must be found of it.

Each is done by raw SQL or to the bytes of the file itself, never through our own code, on a relay that does not run. `plant`
says which findings must come of it, each by its kind and key, and no others may.
"""

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import apsw
import msgspec

from holdfast.protocol import event, receipt
from holdfast.protocol.history import Draft, Entry, Kind, link
from holdfast.protocol.receipt import ReceiptStatus
from tests.pipeline.files import Files, part_of

Found = set[tuple[str, str]]


@dataclass(frozen=True)
class Plant:
    """One thing that is done, and the name it goes by."""

    name: str
    do: "Callable[[Files, apsw.Connection], Found]"


def plant(files: Files, plants: Sequence[Plant]) -> Found:
    """Do all of these to a relay's database; what must be found then."""
    expected: Found = set()
    for one in plants:
        with closing(apsw.Connection(str(files.database))) as connection:
            expected |= one.do(files, connection)
    return expected


def _row(connection: apsw.Connection, sql: str, *parameters: Any) -> tuple[Any, ...]:
    found = list(connection.execute(sql, parameters))
    assert found, sql
    row: tuple[Any, ...] = found[0]
    return row


def _delete_delivery(files: Files, connection: apsw.Connection) -> Found:
    mesh, member, seq = _row(
        connection,
        "SELECT mesh, member, seq FROM delivery WHERE state = 'delivered' AND is_receipt = 0 ORDER BY seq DESC LIMIT 1 OFFSET 5",
    )
    connection.execute("DELETE FROM delivery WHERE mesh = ? AND member = ? AND seq = ?", (mesh, member, seq))
    return {("delivery_missing", f"{mesh}/{member}/{seq}")}


def _close_delivery(files: Files, connection: apsw.Connection) -> Found:
    """A message that waits is marked as delivered, and nobody is told."""
    mesh, member, seq = _row(
        connection,
        "SELECT mesh, member, seq FROM delivery WHERE state = 'open' AND is_receipt = 0 ORDER BY seq LIMIT 1",
    )
    connection.execute(
        "UPDATE delivery SET state = 'delivered', closed_at = 1, was_stored = 1 WHERE mesh = ? AND member = ? AND seq = ?",
        (mesh, member, seq),
    )
    return {("delivery_differs", f"{mesh}/{member}/{seq}")}


def _delete_dedupe(files: Files, connection: apsw.Connection) -> Found:
    key = _row(connection, "SELECT mesh, sender, client_message_id FROM dedupe ORDER BY seq DESC LIMIT 1 OFFSET 8")
    connection.execute("DELETE FROM dedupe WHERE mesh = ? AND sender = ? AND client_message_id = ?", key)
    return {("dedupe_missing", "/".join(key))}


def _delete_mention(files: Files, connection: apsw.Connection) -> Found:
    mesh, member, seq = _row(connection, "SELECT mesh, member, seq FROM mention ORDER BY seq LIMIT 1")
    connection.execute("DELETE FROM mention WHERE mesh = ? AND member = ? AND seq = ?", (mesh, member, seq))
    return {("mention_missing", f"{mesh}/{member}/{seq}")}


def _delete_message(files: Files, connection: apsw.Connection) -> Found:
    (message_id,) = _row(connection, "SELECT message_id FROM message ORDER BY seq DESC LIMIT 1 OFFSET 12")
    connection.execute("DELETE FROM message WHERE message_id = ?", (message_id,))
    return {("message_missing", message_id)}


def _add_message(files: Files, connection: apsw.Connection) -> Found:
    """A message that nobody sent, at a place where none is."""
    names = [row[1] for row in connection.execute("PRAGMA table_info(message)")]
    changed = {"message_id": "'invented'", "seq": "seq + 1"}
    values = ", ".join(changed.get(name, name) for name in names)
    connection.execute(
        f"INSERT INTO message ({', '.join(names)}) SELECT {values} FROM message "
        "WHERE seq + 1 NOT IN (SELECT seq FROM message) LIMIT 1"
    )
    return {("message_unknown", "invented")}


def _swap_positions(files: Files, connection: apsw.Connection) -> Found:
    """Two neighbours of one moment change places."""
    (seq,) = _row(
        connection,
        "SELECT one.seq FROM history AS one JOIN history AS two ON two.seq = one.seq + 1 AND two.at = one.at "
        "WHERE one.kind = 'delivered' AND two.kind = 'delivered' ORDER BY one.seq DESC LIMIT 1 OFFSET 20",
    )
    for old, new in ((seq, -1), (seq + 1, seq), (-1, seq + 1)):
        connection.execute("UPDATE history SET seq = ? WHERE seq = ?", (new, old))
    return {("chain_mismatch", f"{files.log_id.hex()}/{place}") for place in (seq, seq + 1, seq + 2)}


def _flip_byte(files: Files, connection: apsw.Connection) -> Found:
    """One bit of one entry's link, in the file itself."""
    seq, chain = _row(connection, "SELECT seq, chain FROM history WHERE kind = 'expired' ORDER BY seq LIMIT 1 OFFSET 2")
    list(connection.execute("PRAGMA wal_checkpoint(TRUNCATE)"))
    connection.close()
    content = files.database.read_bytes()
    assert content.count(chain) == 1
    place = content.index(chain) + 7
    with files.database.open("r+b") as file:
        file.seek(place)
        file.write(bytes([content[place] ^ 0x10]))
    return {("chain_mismatch", f"{files.log_id.hex()}/{at}") for at in (seq, seq + 1)}


def _forge_receipt(files: Files, connection: apsw.Connection) -> Found:
    """Somebody else signs that a message arrived; the rest of the history is chained anew, as a relay could."""
    entries = files.entries()
    old = [entry for entry in entries if entry.kind is Kind.RECEIPT][-3]
    said = receipt.from_event(event.decode(old.detail))
    lines = tuple(msgspec.structs.replace(line, status=ReceiptStatus.STORED) for line in said.messages)
    signed = receipt.sign_receipt(b"\x07" * 32, 1_780_000_000, msgspec.structs.replace(said, messages=lines), bytes(32))
    raw, event_id = event.encode(signed), bytes.fromhex(signed.id)
    changed = msgspec.structs.replace(old, detail=raw, event_id=event_id, size=len(raw))
    for table in ("message", "dedupe"):
        connection.execute(f"UPDATE {table} SET event_id = ? WHERE message_id = ?", (event_id, old.message_id))
    connection.execute("UPDATE message SET event = ?, size = ? WHERE message_id = ?", (raw, len(raw), old.message_id))
    chain_anew(connection, [*entries[: old.seq - 1], changed, *entries[old.seq :]])
    return {("receipt_forged", f"{files.log_id.hex()}/{old.seq}")} | unmet_anchors(files, old.seq)


def _repeat_sequence(files: Files, connection: apsw.Connection) -> Found:
    """A send gets the sequence of an earlier one of its sender's, whose device is not in the lake."""
    entries = files.entries()
    told = {member for _, member in files.device_members()}
    sends = [entry for entry in entries if entry.kind is Kind.ACCEPTED and entry.sender not in told]
    last = sends[-1]
    first = next(entry for entry in sends if entry.sender == last.sender)
    changed = msgspec.structs.replace(last, sequence=first.sequence)
    chain_anew(connection, [*entries[: last.seq - 1], changed, *entries[last.seq :]])
    key = f"{last.mesh}/{last.sender}/{(last.epoch or b'').hex()}/{first.sequence}/{files.log_id.hex()}/{last.seq}"
    return {("equivocation", key)} | unmet_anchors(files, last.seq)


def _repeat_own_sequence(files: Files, connection: apsw.Connection) -> Found:
    """A device says that it sent two things under one sequence; nobody but it has signed its history."""
    home, (mesh, member) = files.homes[1], files.device_members()[1]
    part = part_of("", home / "device.db")
    entries = list(part.entries)
    relayed = [entry for entry in entries if entry.kind is Kind.RELAYED and entry.destination_kind == "dm"]
    first, last = relayed[0], relayed[-1]
    changed = msgspec.structs.replace(last, sequence=first.sequence)
    with closing(apsw.Connection(str(home / "device.db"))) as device:
        chain_anew(device, [*entries[: last.seq - 1], changed, *entries[last.seq :]])
    key = f"{mesh}/{member}/{(last.epoch or b'').hex()}/{first.sequence}/{part.log_id.hex()}/{last.seq}"
    return {("equivocation", key), ("operation_differs", f"{mesh}/{member}/{last.sequence}")}


def _cut_tail(files: Files, connection: apsw.Connection) -> Found:
    """The last entries go, among them one that the relay signed for a device; the head is set back."""
    entries = files.entries()
    head = max(seq for seq, _ in files.anchors()) - 1
    gone = entries[head:]
    connection.execute("DELETE FROM history WHERE seq > ?", (head,))
    last = entries[head - 1]
    connection.execute("UPDATE history_head SET seq = ?, at = ?, chain = ?", (last.seq, last.at, last.chain))
    return {("tail_missing", f"{files.log_id.hex()}/{head + 1}")} | _undone(connection, gone, head)


def _cut_beginning(files: Files, connection: apsw.Connection) -> Found:
    """The first entries go, and the history says that they were pruned; but its relay never signed that."""
    seq, chain = _row(connection, "SELECT seq, chain FROM history WHERE seq = 12")
    connection.execute("DELETE FROM history WHERE seq <= ?", (seq,))
    connection.execute("UPDATE history_head SET anchor_seq = ?, anchor_chain = ?", (seq, chain))
    return {("beginning_unproved", f"{files.log_id.hex()}/{seq + 1}")}


def _undone(connection: apsw.Connection, gone: Sequence[Entry], head: int) -> Found:
    """Deliveries that the state calls closed, by entries that went."""
    found: Found = set()
    for entry in gone:
        if entry.kind in ("delivered", "expired", "dropped", "quarantined", "moderated") and entry.recipient:
            rows = list(
                connection.execute(
                    "SELECT mesh, member, seq FROM delivery WHERE message_id = ? AND member = ? AND seq <= ?",
                    (entry.message_id, entry.recipient, head),
                )
            )
            found |= {("delivery_differs", f"{mesh}/{member}/{seq}") for mesh, member, seq in rows}
    return found


def _delete_and_chain_anew(files: Files, connection: apsw.Connection) -> Found:
    """A delivery was never acknowledged, says the new history; everything after it moves up, in all tables."""
    entries = files.entries()
    kept = {seq for (seq,) in connection.execute("SELECT seq FROM delivery")}
    place = {entry.message_id: entry.seq for entry in entries if entry.kind is Kind.ACCEPTED}
    old = [entry for entry in entries if entry.kind is Kind.DELIVERED and place.get(entry.message_id) in kept][-40]
    following = [msgspec.structs.replace(entry, seq=entry.seq - 1) for entry in entries[old.seq :]]
    connection.execute("DELETE FROM history WHERE seq >= ?", (old.seq,))
    for table in ("message", "dedupe", "delivery", "mention"):
        connection.execute(f"UPDATE {table} SET seq = -seq WHERE seq > ?", (old.seq,))
        connection.execute(f"UPDATE {table} SET seq = -seq - 1 WHERE seq < 0")
    chain_anew(connection, [*entries[: old.seq - 1], *following])
    undone = {("delivery_differs", f"{old.mesh}/{old.recipient}/{place[old.message_id]}")}
    head = entries[-1].seq - 1
    cut = {("tail_missing", f"{files.log_id.hex()}/{head + 1}") for seq, _ in files.anchors() if seq > head}
    return undone | cut | {one for one in unmet_anchors(files, old.seq) if int(one[1].split("/")[1]) <= head}


def _delete_operation(files: Files, connection: apsw.Connection) -> Found:
    """A device forgets that it sent something."""
    home, (mesh, member) = files.homes[0], files.device_members()[0]
    with closing(apsw.Connection(str(home / "device.db"))) as device:
        (sequence,) = _row(
            device, "SELECT sequence FROM operation_log WHERE status = 'done' ORDER BY sequence LIMIT 1 OFFSET 3"
        )
        device.execute("DELETE FROM operation_log WHERE sequence = ?", (sequence,))
    return {("operation_missing", f"{mesh}/{member}/{sequence}")}


def _revive_operation(files: Files, connection: apsw.Connection) -> Found:
    """A send that the relay confirmed waits again, and nobody is told why."""
    home, (mesh, member) = files.homes[1], files.device_members()[1]
    with closing(apsw.Connection(str(home / "device.db"))) as device:
        (sequence,) = _row(
            device, "SELECT sequence FROM operation_log WHERE status = 'done' ORDER BY sequence LIMIT 1 OFFSET 5"
        )
        device.execute(
            "UPDATE operation_log SET status = 'pending', delivered_at = NULL WHERE sequence = ?", (sequence,)
        )
    return {("operation_differs", f"{mesh}/{member}/{sequence}")}


def chain_anew(connection: apsw.Connection, entries: Sequence[Entry]) -> None:
    """Write entries with links that fit, from the first that does not, and the head with them."""
    chain, at = _row(connection, "SELECT anchor_chain, at FROM history_head")
    for entry in entries:
        fields = {name: getattr(entry, name) for name in Draft.__struct_fields__}
        made = link(chain, entry.seq, entry.at, Draft(**fields))
        if made.chain != entry.chain:
            _write(connection, made)
        chain, at = made.chain, made.at
    connection.execute("UPDATE history_head SET seq = ?, at = ?, chain = ?", (len(entries), at, chain))


def _write(connection: apsw.Connection, entry: Entry) -> None:
    values = msgspec.structs.asdict(entry)
    values["recipients"] = msgspec.json.encode(entry.recipients).decode()
    values["mentions"] = msgspec.json.encode(entry.mentions).decode()
    values["kind"] = str(entry.kind)
    names = ", ".join(values)
    places = ", ".join(f":{name}" for name in values)
    connection.execute(f"INSERT OR REPLACE INTO history ({names}) VALUES ({places})", values)


def unmet_anchors(files: Files, seq: int) -> Found:
    """The anchors of devices at and after a position whose chain is another one now."""
    return {("anchor_mismatch", f"{files.log_id.hex()}/{at}") for at, _ in files.anchors() if at >= seq}


ROWS = (
    Plant("a delivery row is deleted", _delete_delivery),
    Plant("a waiting delivery is marked as delivered", _close_delivery),
    Plant("a dedupe row is deleted", _delete_dedupe),
    Plant("a mention is deleted", _delete_mention),
    Plant("a message is deleted", _delete_message),
    Plant("a message is invented", _add_message),
    Plant("a device's send is deleted", _delete_operation),
    Plant("a device's send is set back", _revive_operation),
    Plant("two positions are swapped", _swap_positions),
    Plant("a byte is flipped", _flip_byte),
)
"""What can be done side by side in one database."""

FORGERIES = (
    Plant("a receipt is forged", _forge_receipt),
    Plant("a sequence is used twice", _repeat_sequence),
    Plant("a device says it used a sequence twice", _repeat_own_sequence),
)
"""What a relay could do that chains its history anew; only signatures and counters tell."""

CUT = (Plant("the tail is cut off", _cut_tail),)
REWRITTEN = (Plant("an entry is deleted and the rest chained anew", _delete_and_chain_anew),)
BEGINNING = (Plant("the beginning is deleted", _cut_beginning),)
ALL = {"rows": ROWS, "forgeries": FORGERIES, "cut": CUT, "rewritten": REWRITTEN, "beginning": BEGINNING}
