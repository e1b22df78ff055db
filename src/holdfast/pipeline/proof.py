"""Up to where a history is proved to be in the lake: only that may be pruned at its source.

A source is told no position past an entry that the lake lacks, has twice, or has in a form that contradicts its chain or the source:
the good copy may be the source's.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.pipeline.plan import Mark
from holdfast.pipeline.records import BREACH

_DOUBTED_AFTER = {
    ("chain_break", "chain_mismatch"): 0,
    (BREACH.name, "log_rewritten"): 0,
    (BREACH.name, "log_truncated"): 1,  # its position is the last that is left
}
"""By table and kind of a finding: how many positions after its own the first doubtful entry lies."""


def in_doubt(findings: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """For each history with doubtful entries, the position before the first of them."""
    found: dict[str, int] = {}
    for origin, seq in filter(None, map(_doubted, findings)):
        found[origin] = min(found.get(origin, seq - 1), seq - 1)
    return found


def kept(marks: Mapping[str, Mark], uncompared: Collection[str], doubts: Mapping[str, int]) -> dict[str, Mark]:
    """Up to where each history may be pruned at its source; those that are still to be compared may not, and are left out."""
    compared = {origin: mark for origin, mark in marks.items() if origin not in uncompared}
    return {origin: _until(mark, doubts.get(origin, mark.seq)) for origin, mark in compared.items()}


def _until(mark: Mark, seq: int) -> Mark:
    return mark if mark.seq <= seq else Mark(mark.origin, mark.log_id, seq, None)


def _doubted(finding: Mapping[str, Any]) -> tuple[str, int] | None:
    """The history and the first position that a finding casts doubt on; None if it casts none."""
    behind = _DOUBTED_AFTER.get((finding["table"], finding["kind"]))
    if behind is not None:
        return finding["origin"], finding["seq"] + behind
    table, _, row = finding["key"].partition("/")
    if (finding["table"], table) != (BREACH.name, "history"):
        return None
    # A breach does not say which positions are missing, so all that its batch read of that log is in doubt.
    told = msgspec.json.decode(row)
    seq = told.get("first_seq", told.get("found_first_seq"))
    return None if seq is None else (told["origin"], seq)
