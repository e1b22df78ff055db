"""Receipts that their recipient did not sign: the signature is checked again, from the history alone."""

from collections.abc import Iterator, Mapping
from functools import lru_cache

import pyarrow as pa  # type: ignore[import-untyped]  # the package ships no types
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - everybody calls it that

from holdfast.pipeline.table import Writing, table
from holdfast.pipeline.tables._entry import key_of, of_relay, text_of
from holdfast.pipeline.tables._finding import SCHEMA
from holdfast.pipeline.tables.chain_break import alive
from holdfast.pipeline.tables.extent import began, logs_of
from holdfast.protocol import event, receipt
from holdfast.protocol.action import Join
from holdfast.protocol.administration import check_agreement
from holdfast.protocol.refusal import Refused

KEYS_KNOWN_MAX = 100_000
"""How many keys that an invitation vouches for one worker remembers to have checked."""

_RECEIPT = (
    *("mesh", "sender", "client_message_id", "epoch", "sequence", "destination_ref", "event_id", "detail"),
    *("key", "invite", "agreement", "is_known"),
)


def forgeries_name_their_entry(new_receipt_forged: DataFrame) -> DataFrame:
    """A forged receipt has a position in its relay's history."""
    return new_receipt_forged.where(F.col("seq").isNull()).select("origin", "key")


@table(
    key=("origin", "kind", "key"),
    schema=SCHEMA,
    writing=Writing.APPEND,
    finds=True,
    invariant=forgeries_name_their_entry,
)
def receipt_forged(new_history: DataFrame, member_key: DataFrame, extent: DataFrame) -> DataFrame:
    """Receipts whose event is not what its author signed, or whose author had not the recipient's key at that time."""
    receipts = new_history.where(of_relay() & (F.col("kind") == "receipt"))
    logs = logs_of(extent)
    held = _held(alive(member_key, logs))
    in_force = (F.col("since_seq") < F.col("seq")) & (
        F.col("until_seq").isNull() | (F.col("seq") <= F.col("until_seq"))
    )
    named = receipts.alias("receipt").join(
        F.broadcast(held).alias("held"),
        on=(
            (F.col("receipt.origin") == F.col("held.origin"))
            & (F.col("receipt.mesh") == F.col("held.mesh"))
            & (F.col("receipt.sender") == F.col("held.member"))
            & in_force
        ),
        how="left",
    )
    wanted = named.select(
        *(F.col(f"receipt.{name}").alias(name) for name in ("origin", "log_id", "seq", "at", *_RECEIPT[:8])),
        *("key", "invite", "agreement"),
        _is_known(began(logs)).alias("is_known"),
    )
    judged = wanted.mapInArrow(_judged, "origin string, log_id binary, seq bigint, at timestamp, fault string")
    return judged.select(
        "origin",
        F.lit("receipt_forged").alias("kind"),
        key_of(text_of("log_id"), "seq").alias("key"),
        F.concat(F.lit("entry "), F.col("seq"), F.lit(": "), F.col("fault")).alias("detail"),
        *("seq", "at"),
        F.lit(True).alias("is_violation"),
    )


def _held(changes: DataFrame) -> DataFrame:
    """Changes of keys as spans of positions in which each was in force; after the last key there is one without."""
    order = Window.partitionBy("origin", "mesh", "member").orderBy("seq")
    return changes.select(
        *("origin", "mesh", "member", "key", "invite", "agreement"),
        F.col("seq").alias("since_seq"),
        F.lead("seq").over(order).alias("until_seq"),
    )


def _is_known(began_seqs: Mapping[str, int]) -> Column:
    """Whether the lake knows which key a member had: all of the history before was read, or all since a change of it."""
    is_late = F.lit(False)
    for origin, seq in began_seqs.items():
        if seq > 1:
            since = F.coalesce("since_seq", F.lit(0))
            is_late = is_late | ((F.col("receipt.origin") == origin) & (since < seq))
    return ~is_late


def _judged(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Of each record batch the receipts that are not what they should be, with the fault in words."""
    for batch in batches:
        columns = (batch.column(name).to_pylist() for name in _RECEIPT)
        faults = [_fault(*row) for row in zip(*columns, strict=True)]
        kept = batch.select(["origin", "log_id", "seq", "at"])
        told = pa.RecordBatch.from_arrays(
            [*kept.columns, pa.array(faults, pa.string())], names=[*kept.schema.names, "fault"]
        )
        yield told.filter(pa.compute.is_valid(told.column("fault")))


def _fault(
    mesh: str,
    sender: str,
    client_message_id: str,
    epoch: bytes,
    sequence: int,
    destination_ref: str,
    event_id: bytes,
    detail: bytes,
    key: str | None,
    invite: str | None,
    agreement: str | None,
    is_known: bool,
) -> str | None:
    """What is wrong with one receipt."""
    try:
        signed = event.decode(detail)
        event.verify(signed)
        said = receipt.from_event(signed)
    except Refused as refused:
        return refused.detail
    head = said.head
    told = (mesh, client_message_id, epoch, sequence, destination_ref, event_id)
    if (
        head.mesh,
        head.client_message_id,
        head.epoch,
        head.sequence,
        said.destination.ref,
        bytes.fromhex(signed.id),
    ) != told:
        return "the signed event is not the one that the entry tells of"
    if not is_known:
        return None  # its member may have had any key
    if key is None and invite is None:
        return f"member {sender} had no key then"
    is_own = (
        signed.pubkey == key if key is not None else _is_vouched_for(mesh, sender, invite, agreement, signed.pubkey)
    )
    return None if is_own else f"{signed.pubkey} was no key of member {sender} then"


@lru_cache(maxsize=KEYS_KNOWN_MAX)
def _is_vouched_for(mesh: str, member: str, invite: str | None, agreement: str | None, pubkey: str) -> bool:
    """Whether an invitation was signed for this member with this key: its entry names the member alone."""
    try:
        check_agreement(mesh, Join(invite=invite or "", agreement=agreement or "", member=member, name="-"), pubkey)
    except (Refused, ValueError):
        return False
    return True
