"""Receipts that somebody else wrote, and senders that say two things: each way to do it, one by one."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession

from holdfast.pipeline.tables.receipt_forged import _RECEIPT, _fault
from holdfast.protocol import administration, event, keys, receipt
from holdfast.protocol.action import Action, AddMember, RevokeMember, Role, write_action
from holdfast.protocol.envelope import Destination, Head
from holdfast.protocol.fingerprint import DestinationKind
from holdfast.protocol.history import Draft, Kind
from holdfast.protocol.receipt import Receipted, ReceiptStatus
from tests.pipeline.tables.memory_lake import MemoryLake, Part
from tests.pipeline.twins.random_world import AUX, MESH, START, Log, secret_of

SECRET = secret_of("ben")
SAID = receipt.Receipt(
    head=Head(mesh=MESH, client_message_id="client-1", epoch=b"e" * 16, sequence=3),
    destination=Destination(DestinationKind.DM, "ann"),
    messages=(Receipted("ab" * 32, True, ReceiptStatus.STORED),),
)

Row = dict[str, Any]
pytestmark = pytest.mark.timeout(600)  # a session of Spark on a busy machine takes its time


def honest(secret: bytes = SECRET) -> Row:
    """A receipt's entry, and what is known of its member, as the table hands them over."""
    signed = receipt.sign_receipt(secret, START // 1_000_000, SAID, AUX)
    told = {"mesh": MESH, "sender": "ben", "client_message_id": "client-1", "epoch": b"e" * 16, "sequence": 3}
    entry = {"destination_ref": "ann", "event_id": bytes.fromhex(signed.id), "detail": event.encode(signed)}
    member = {"key": keys.public_key(SECRET), "invite": None, "agreement": None, "is_known": True}
    return {**told, **entry, **member}


def fault(row: Row) -> str | None:
    return _fault(*(row[name] for name in _RECEIPT))


def signature_turned(row: Row) -> Row:
    signed = event.decode(row["detail"])
    return {**row, "detail": event.encode(msgspec.structs.replace(signed, sig=signed.sig[::-1]))}


FORGERIES: dict[str, Callable[[Row], Row]] = {
    "another signature": signature_turned,
    "another signer": lambda row: honest(secret_of("stranger")),
    "no event": lambda row: {**row, "detail": b"\xff"},
    "another kind of event": lambda row: {**row, "detail": row["detail"].replace(b'"kind":4202', b'"kind":4201')},
    "another event's id": lambda row: {**row, "event_id": bytes(32)},
    "another mesh": lambda row: {**row, "mesh": "mesh-2"},
    "another id": lambda row: {**row, "client_message_id": "client-2"},
    "another epoch": lambda row: {**row, "epoch": bytes(16)},
    "another sequence": lambda row: {**row, "sequence": 4},
    "another recipient": lambda row: {**row, "destination_ref": "cy"},
    "nobody's": lambda row: {**row, "key": None},
    "another key": lambda row: {**row, "key": keys.public_key(secret_of("cy"))},
    "an invitation that vouches for nobody": lambda row: {
        **row,
        "key": None,
        "invite": "ab" * 32,
        "agreement": "cd" * 64,
    },
}


def test_a_receipt_that_is_what_its_entry_says_is_no_forgery() -> None:
    assert fault(honest()) is None


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_receipt_that_is_not_is_one(forgery: str) -> None:
    assert fault(FORGERIES[forgery](honest())) is not None


def _receipt(signer: str, *, wrongly: bool = False) -> Draft:
    """A receipt of ben's, signed by him or by somebody else."""
    row = signature_turned(honest(secret_of(signer))) if wrongly else honest(secret_of(signer))
    names = ("mesh", "sender", "client_message_id", "epoch", "sequence", "destination_ref", "event_id", "detail")
    return Draft(kind=Kind.RECEIPT, destination_kind="dm", **{name: row[name] for name in names})


def test_a_lake_that_began_late_accuses_nobody_whose_key_it_cannot_know(spark: SparkSession) -> None:
    log = Log(b"A" * 16)
    key, other = keys.public_key(SECRET), keys.public_key(secret_of("cy"))
    said = [
        _admin(AddMember(member="ben", name="ben", key=key, role=Role.MEMBER)),
        _receipt("ben"),
        _receipt("cy"),  # whose key it is, a lake cannot know that begins here
        _receipt("ben", wrongly=True),
        _admin(administration.rotate_member_key(secret_of("cy"), MESH, "ben", AUX)),
        _receipt("cy"),
        _receipt("ben"),
        _admin(RevokeMember(member="ben")),
        _receipt("cy"),
    ]
    for draft in said:
        log.say(draft, 1)
    assert other != key

    def found(after: int) -> set[int]:
        lake = MemoryLake(spark, ["receipt_forged"])
        lake.run([Part("relay:x", log.log_id, after, len(said), log.entries[after:])])
        assert lake.breaches == []
        return {row["seq"] for row in lake.rows["receipt_forged"]}

    assert found(0) == {3, 4, 7, 9}
    assert found(1) == {4, 7, 9}


def _admin(action: Action) -> Draft:
    return Draft(kind=Kind.ADMIN, mesh=MESH, sender="ann", detail=write_action(action).encode())


def _send(sequence: int, event_id: bytes) -> Draft:
    return Draft(kind=Kind.ACCEPTED, mesh=MESH, sender="ann", epoch=b"e" * 16, sequence=sequence, event_id=event_id)


def test_a_sequence_is_used_twice_only_by_another_event(spark: SparkSession) -> None:
    """The same event comes again after a relay went back; another one under its sequence is another matter."""
    old = Log(b"A" * 16)
    old.say(_send(0, b"a" * 32))
    fork = old.forked(b"B" * 16)
    old.say(_send(1, b"b" * 32), 1)
    old.say(_send(2, b"c" * 32), 1)
    new = fork
    new.say(_send(1, b"b" * 32), 5)  # what the relay forgot
    new.say(_send(2, b"x" * 32), 1)  # what somebody else would have been told
    new.say(_send(3, b"d" * 32), 1)
    for told in (b"d", b"y"):  # the first of them is no other event than the one before, whatever comes later
        new.say(_send(3, told * 32), 1)
    lake = MemoryLake(spark, ["equivocation"])
    lake.run([Part("relay:x", old.log_id, 0, 3, old.entries)])
    lake.run([Part("relay:x", new.log_id, 1, 7, new.entries[1:], new.entries[0].chain)])
    epoch = (b"e" * 16).hex()
    assert lake.findings() == [
        ("equivocation", f"{MESH}/ann/{epoch}/2/{new.log_id.hex()}/4", True),
        ("equivocation", f"{MESH}/ann/{epoch}/3/{new.log_id.hex()}/7", True),
    ]


def test_a_sequence_is_used_twice_at_one_position_of_two_logs(spark: SparkSession) -> None:
    old = Log(b"A" * 16)
    old.say(_send(0, b"a" * 32))
    new = old.forked(b"B" * 16)
    old.say(_send(1, b"b" * 32), 1)
    old.say(_send(0, b"c" * 32), 1)
    new.say(_send(0, b"d" * 32), 5)
    lake = MemoryLake(spark, ["equivocation"])
    lake.run([Part("relay:x", old.log_id, 0, 3, old.entries)])
    lake.run([Part("relay:x", new.log_id, 1, 3, new.entries[1:], new.entries[0].chain)])
    epoch = (b"e" * 16).hex()
    assert lake.findings() == [
        ("equivocation", f"{MESH}/ann/{epoch}/0/{log.log_id.hex()}/3", True) for log in (old, new)
    ]
