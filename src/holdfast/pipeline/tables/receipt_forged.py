"""Finds receipts that their recipient did not sign: every signature is checked again, from the history alone."""

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
"""How many signatures of invitations a worker remembers to have checked."""

_RECEIPT = (
    *("mesh", "sender", "client_message_id", "epoch", "sequence", "destination_ref", "event_id", "detail"),
    *("key", "invite", "agreement", "is_known"),
)


def forgeries_name_their_entry(new_receipt_forged: DataFrame) -> DataFrame:
    """A finding names the position of a receipt."""
    return new_receipt_forged.where(F.col("seq").isNull()).select("origin", "key")


@table(
    key=("origin", "kind", "key"),
    schema=SCHEMA,
    writing=Writing.APPEND,
    finds=True,
    invariant=forgeries_name_their_entry,
)
def receipt_forged(new_history: DataFrame, member_key: DataFrame, extent: DataFrame) -> DataFrame:
    """Findings: receipts that are not what their author signed, or whose author did not have the recipient's key at that time."""
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
    """Per key of a member the positions in which it was in force: from its change to the next, or without an end."""
    order = Window.partitionBy("origin", "mesh", "member").orderBy("seq")
    return changes.select(
        *("origin", "mesh", "member", "key", "invite", "agreement"),
        F.col("seq").alias("since_seq"),
        F.lead("seq").over(order).alias("until_seq"),
    )


def _is_known(began_seqs: Mapping[str, int]) -> Column:
    """Whether the lake can know which key a member had: it read all of the history before, or all since a change of that key."""
    is_late = F.lit(False)
    for origin, seq in began_seqs.items():
        if seq > 1:
            since = F.coalesce("since_seq", F.lit(0))
            is_late = is_late | ((F.col("receipt.origin") == origin) & (since < seq))
    return ~is_late


def _judged(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """For each record batch its forged receipts, with the fault in words."""
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
    """The fault of a receipt in words, or None."""
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
        return None  # the member's key is not known
    if key is None and invite is None:
        return f"member {sender} had no key then"
    is_own = (
        signed.pubkey == key if key is not None else _is_vouched_for(mesh, sender, invite, agreement, signed.pubkey)
    )
    return None if is_own else f"{signed.pubkey} was no key of member {sender} then"


@lru_cache(maxsize=KEYS_KNOWN_MAX)
def _is_vouched_for(mesh: str, member: str, invite: str | None, agreement: str | None, pubkey: str) -> bool:
    """Whether the invitation's key signed for this member and this key, since the member's `join` does not name the key."""
    try:
        check_agreement(mesh, Join(invite=invite or "", agreement=agreement or "", member=member, name="-"), pubkey)
    except (Refused, ValueError):
        return False
    return True
