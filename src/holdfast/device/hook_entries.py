"""Entries of the device's history about hook events, which have their own database; each entry is appended once."""

from collections.abc import Sequence

from holdfast.protocol.history import Draft
from holdfast.store import history
from holdfast.store.engine import Transaction
from holdfast.store.statements import Statements

_SQL = Statements(__package__, "hook_entries.sql")


def append(transaction: Transaction, now: int, drafts: Sequence[Draft]) -> int:
    """Append the entries that the history does not have yet, since a crash may repeat a report; returns how many."""
    wanted = {(draft.event_id, str(draft.kind)): draft for draft in drafts}
    known = set(transaction.lookup(_SQL["known"], ("event_id", "kind"), list(wanted))) if wanted else set()
    entries = history.append(transaction, now, [draft for key, draft in wanted.items() if key not in known])
    return len(entries)
