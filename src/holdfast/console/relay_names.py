"""The names that go with ids on the pages of a relay."""

from collections.abc import Iterable

from holdfast.store.engine import Transaction
from holdfast.store.statements import Statements

SQL = Statements(__package__, "relay.sql")
MESHES_LISTED_MAX = 200  # that a filter offers; others are found by their address


def names(transaction: Transaction, wanted: Iterable[tuple[str | None, str | None]]) -> dict[tuple[str, str], str]:
    """The names of members, by (mesh, member)."""
    keys = sorted({(mesh, member) for mesh, member in wanted if mesh and member})
    if not keys:
        return {}
    return {(mesh, member): name for mesh, member, name in transaction.lookup(SQL["names"], ("mesh", "member"), keys)}


def meshes(transaction: Transaction) -> list[tuple[str, str]]:
    """Meshes to choose from, as (id, name)."""
    return [(mesh, name) for mesh, name in transaction.rows(SQL["mesh_names"], {"limit": MESHES_LISTED_MAX})]


def like(text: str | None) -> str | None:
    """A part of a name as LIKE looks for it, in any case."""
    if text is None:
        return None
    quoted = text.lower().replace("!", "!!").replace("%", "!%").replace("_", "!_")
    return f"%{quoted}%"
