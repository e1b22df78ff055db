"""Up to where a history is proved to be in the lake: only that may be pruned at its source.

A source is told no position past an entry that the lake lacks, has twice, or has in a form that contradicts its chain or the source:
the good copy may be the source's. And none at all if somebody changed the tables that would tell.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.pipeline.findings import TABLE_CHANGED
from holdfast.pipeline.plan import Loss, Mark
from holdfast.pipeline.records import BREACH

_LOST_AFTER = {
    "log_rewritten": 0,
    "log_truncated": 1,  # its position is the last up to which the log is the lake's
}
"""By kind of a loss: how many positions after its own the first doubtful entry lies."""

_TELLING = {"history", "extent", "chain_break", BREACH.name}
"""The tables that have the entries, where logs were left, and what is wrong with entries."""


class _Broken(msgspec.Struct):
    """What a row that broke the rule of `history` says of what a batch read."""

    origin: str
    log_id: bytes = b""
    first_seq: int | None = None
    found_first_seq: int | None = None


def in_doubt(
    findings: Sequence[Mapping[str, Any]],
    losses: Sequence[Loss],
    left: Mapping[tuple[str, bytes], int],
    origins: Collection[str],
) -> dict[str, int]:
    """For each of these histories with doubtful entries, the position before the first of them.

    The losses are those that its log has now: one that is whole again is as good as it was. `left` tells where restores left logs, by
    origin and log id: what lay past that counts no more.
    """
    if any(map(_is_of_change, findings)):
        return dict.fromkeys(origins, 0)
    lost = [
        (one.origin, one.seq + _LOST_AFTER[one.kind])
        for one in losses
        if one.kind in _LOST_AFTER and one.seq is not None
    ]
    told = filter(None, map(_doubted, findings))
    doubted = [(origin, seq) for origin, log_id, seq in told if seq <= left.get((origin, log_id), seq)]
    found: dict[str, int] = {}
    for origin, seq in [*lost, *doubted]:
        found[origin] = min(found.get(origin, seq - 1), seq - 1)
    return found


def kept(marks: Mapping[str, Mark], uncompared: Collection[str], doubts: Mapping[str, int]) -> dict[str, Mark]:
    """Up to where each history may be pruned at its source; those that are still to be compared may not, and are left out."""
    compared = {origin: mark for origin, mark in marks.items() if origin not in uncompared}
    return {origin: _until(mark, doubts.get(origin, mark.seq)) for origin, mark in compared.items()}


def _until(mark: Mark, seq: int) -> Mark:
    return mark if mark.seq <= seq else Mark(mark.origin, mark.log_id, seq, None)


def _is_of_change(finding: Mapping[str, Any]) -> bool:
    """Whether a finding says that somebody changed a table that tells what is in doubt."""
    is_change = (finding["table"], finding["kind"]) == (BREACH.name, TABLE_CHANGED)
    return is_change and finding["key"].partition("/")[0] in _TELLING


def _doubted(finding: Mapping[str, Any]) -> tuple[str, bytes, int] | None:
    """The history, the log and the first position that a finding casts doubt on; None if it casts none."""
    begins, _, rest = finding["key"].partition("/")
    if (finding["table"], finding["kind"]) == ("chain_break", "chain_mismatch"):
        return finding["origin"], bytes.fromhex(begins), finding["seq"]
    if (finding["table"], begins) != (BREACH.name, "history"):
        return None
    # A breach does not say which positions are missing, so all that its batch read of that log is in doubt.
    told = msgspec.json.decode(rest, type=_Broken)
    seq = told.found_first_seq if told.first_seq is None else told.first_seq
    return None if seq is None else (told.origin, told.log_id, seq)
