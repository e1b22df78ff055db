"""The balance of a relay's lake: every recipient of every message is either open or closed with one outcome."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.pipeline.shelf import Shelf

OUTCOMES = ("delivered", "expired", "dropped", "quarantined", "moderated", "rolled_back", "full", "blocked")
"""The ways in which a message can end for a recipient."""

_RECIPIENTS = """
    SELECT coalesce(sum(len(recipients)), 0)::BIGINT AS recipients FROM {rows}
    WHERE origin LIKE 'relay:%' AND kind IN ('accepted', 'receipt')
"""
_CLOSED = "SELECT outcome, count(*) AS rows FROM {rows} GROUP BY outcome"


def zero() -> dict[str, int]:
    """The balance of an empty lake."""
    return dict.fromkeys(("recipients", *OUTCOMES, "open"), 0)


def counted(
    shelf: "Shelf", before: Mapping[str, int], added: Mapping[str, Sequence[Path]], open_rows: int
) -> dict[str, int]:
    """The balance after a batch: the one before it, plus the rows in the files that the batch added to `history` and `message_fate`."""
    after = {**zero(), **before, "open": open_rows}
    after["recipients"] += shelf.query_files("history", added["history"], _RECIPIENTS)[0]["recipients"]
    if "message_fate" in shelf.tables:
        for row in shelf.query_files("message_fate", added["message_fate"], _CLOSED):
            after[row["outcome"]] = after.get(row["outcome"], 0) + row["rows"]
    return after


def holds(balance: Mapping[str, int]) -> bool:
    """Whether the recipients are as many as the open and the closed deliveries together."""
    return balance["recipients"] == balance["open"] + sum(balance[outcome] for outcome in OUTCOMES)
