"""Where relays pruned their histories: what is left must go on from what they signed, and what the lake has must end so."""

from collections.abc import Callable
from dataclasses import replace

import msgspec
import pytest
from pyspark.sql import SparkSession

from holdfast.protocol import keys
from holdfast.protocol.anchor import digest
from holdfast.protocol.history import Draft, Kind, Pruned
from tests.pipeline.tables.memory_lake import MemoryLake, Part
from tests.pipeline.twins import twins
from tests.pipeline.twins.random_world import AUX, Log, secret_of

THROUGH = 4

pytestmark = pytest.mark.timeout(600)  # a session of Spark on a busy machine takes its time


def cut(name: str, *, chain: bytes | None = None, signer: str | None = None) -> Part:
    """All of the history of a relay that pruned its first entries and said so."""
    log = Log(name.encode().ljust(16, b"."))
    for number in range(6):
        log.say(Draft(kind=Kind.ADMIN, destination_ref=f"{name} {number}"), 1)
    there = chain or log.entries[THROUGH - 1].chain
    signature = keys.sign(secret_of(signer or name), digest(log.log_id, THROUGH, there), AUX)
    log.say(Draft(kind=Kind.PRUNED, detail=Pruned(THROUGH, there, signature).encode()))
    return Part(f"relay:{keys.public_key(secret_of(name))}", log.log_id, 0, 7, log.entries)


def restored(name: str) -> Part:
    """The same of a relay that went on as a copy afterwards: what was signed is signed under its log's old id."""
    part = cut(name)
    log = Log(part.log_id, list(part.entries), part.entries[-1].chain, part.entries[-1].at).forked(b"another log id..")
    return replace(part, log_id=log.log_id, until=8, entries=log.entries)


def left(part: Part) -> Part:
    """What somebody reads of it who comes after the cut."""
    return replace(part, after=THROUGH, entries=part.entries[THROUGH:])


def changed(part: Part) -> Part:
    """Its first entry is another one, and everything else as it was."""
    first = msgspec.structs.replace(part.entries[0], destination_ref="somebody")
    return replace(part, entries=[first, *part.entries[1:]])


def test_every_cut_is_held_against_what_the_relay_signed(spark: SparkSession) -> None:
    parts = {
        "honest": cut("honest"),
        "late": left(cut("late")),
        "restored": restored("restored"),
        "other": cut("other", chain=b"x" * 32),
        "forged": cut("forged", signer="somebody"),
        "late and changed": changed(left(cut("late and changed"))),
        "late, forged": left(cut("late, forged", signer="somebody")),
    }
    lake = MemoryLake(spark, ["chain_break"])
    lake.run(list(parts.values()), full=True)
    assert lake.breaches == []
    assert set(lake.violations()) == twins.chain_break([list(parts.values())])
    first = {name: f"{part.log_id.hex()}/" for name, part in parts.items()}
    assert lake.findings() == sorted(
        [
            ("anchor_mismatch", f"{first['other']}{THROUGH}", True),
            ("anchor_forged", f"{first['forged']}{THROUGH}", True),
            ("chain_mismatch", f"{first['late and changed']}{THROUGH + 1}", True),
            ("anchor_forged", f"{first['late, forged']}{THROUGH}", True),
            ("beginning_unproved", f"{first['late, forged']}{THROUGH + 1}", True),
        ]
    )


@pytest.mark.parametrize("begins", [left, lambda part: changed(left(part))], ids=["honest", "changed"])
def test_a_first_entry_that_came_in_an_earlier_batch_is_held_against_the_cut_too(
    spark: SparkSession, begins: Callable[[Part], Part]
) -> None:
    parts = [begins(cut("late")), begins(restored("restored"))]
    one, many = MemoryLake(spark, ["chain_break"]), MemoryLake(spark, ["chain_break"])
    one.run(parts)
    for after, until in ((THROUGH, 5), (5, 6), (6, 8)):
        many.run([piece(part, after, until) for part in parts])
    assert one.breaches == many.breaches == []
    assert one.rows["chain_break"] == many.rows["chain_break"]
    assert set(one.violations()) == twins.chain_break([parts])
    found = [("chain_mismatch", f"{part.log_id.hex()}/{THROUGH + 1}") for part in parts if begins is not left]
    assert many.violations() == sorted(found)


def piece(part: Part, after: int, until: int) -> Part:
    """Some of the entries of a history that is read in several batches."""
    first, until = part.entries[0].seq, min(until, part.until)
    chain = part.entries[after - first].chain if after >= first else None
    return replace(
        part, after=after, until=until, entries=part.entries[after + 1 - first : until + 1 - first], chain=chain
    )


def test_a_first_entry_that_a_restore_left_behind_is_not_held_against_the_cut_of_another_past(
    spark: SparkSession,
) -> None:
    old = Log(b"old".ljust(16, b"."))
    for number in range(3):
        old.say(Draft(kind=Kind.ADMIN, destination_ref=str(number)), 1)
    new = old.forked(b"new".ljust(16, b"."))
    for log in (old, new):
        log.say(Draft(kind=Kind.ADMIN, destination_ref=f"{log.log_id!r}"), 1)
        log.say(Draft(kind=Kind.ADMIN), 1)
    signature = keys.sign(secret_of("relay"), digest(new.log_id, THROUGH, new.entries[THROUGH - 1].chain), AUX)
    new.say(Draft(kind=Kind.PRUNED, detail=Pruned(THROUGH, new.entries[THROUGH - 1].chain, signature).encode()))
    origin, lake = f"relay:{keys.public_key(secret_of('relay'))}", MemoryLake(spark, ["chain_break"])
    lake.run([Part(origin, old.log_id, THROUGH, 5, old.entries[THROUGH:5])])
    lake.run([Part(origin, new.log_id, 3, len(new.entries), new.entries[3:], new.entries[2].chain)])
    assert lake.violations() == []


def lost(part: Part) -> Part:
    """What is left of it without the entry that tells of the cut."""
    return replace(left(part), until=6, entries=part.entries[THROUGH:6])


def test_a_beginning_that_no_relay_signed_away_is_missed_once_everything_is_read(spark: SparkSession) -> None:
    parts = [lost(cut("lost")), left(cut("pruned")), lost(cut("somewhat later"))]
    parts[2] = replace(parts[2], after=THROUGH + 1, entries=parts[2].entries[1:])
    lake = MemoryLake(spark, ["chain_break"])
    batches = [
        [replace(part, until=6, entries=[entry for entry in part.entries if entry.seq <= 6]) for part in parts],
        [piece(left(cut("pruned")), 6, 7), piece(cut("somewhat later"), 6, 7)],
    ]
    lake.run(batches[0])
    assert lake.violations() == [], "what proves it may still come"
    lake.run(batches[1], full=True)
    lake.run([], full=True)
    assert lake.breaches == []
    assert set(lake.violations()) == twins.chain_break(batches)
    places = ((parts[0], THROUGH + 1), (parts[2], THROUGH + 2))  # of which the last one signed another cut
    assert lake.violations() == sorted(("beginning_unproved", f"{part.log_id.hex()}/{seq}") for part, seq in places)


def test_a_log_that_a_restore_began_is_not_said_to_lack_its_beginning(spark: SparkSession) -> None:
    """Not even if entries of the log before it were pruned unread, so that the lake has that one from a later position on."""
    old = Log(b"old".ljust(16, b"."))
    for number in range(9):
        old.say(Draft(kind=Kind.ADMIN, destination_ref=str(number)), 1)
    new = Log(old.log_id, old.entries[:3], old.entries[2].chain, old.entries[2].at).forked(b"new".ljust(16, b"."))
    origin, lake = f"relay:{keys.public_key(secret_of('relay'))}", MemoryLake(spark, ["chain_break"])
    batches = [
        [Part(origin, old.log_id, 0, 4, old.entries[:4])],
        [Part(origin, old.log_id, 6, 9, old.entries[6:])],
        [Part(origin, new.log_id, 3, 4, new.entries[3:], new.entries[2].chain)],
    ]
    for batch, full in zip(batches, (True, False, True), strict=True):
        lake.run(batch, full=full)
    assert lake.violations() == []
